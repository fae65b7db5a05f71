// Regular expressions over bytes: hash-consed, with Brzozowski derivatives as lazily built automaton states. Internal
// to the room.
//
//   RxArena rx;                                   // starts as a copy of the precomputed JSON pieces (RxBase)
//   RxId r = rx.concat(rx.literal("a"), rx.repeat(rx.bytes(digits), 0, 1000));
//   uint32_t next = rx.step(r, 'a');              // (state << 1) | nullable; 0: nothing may follow
//
// An expression is a state: its language is what may still come. Counted repetitions stay counted, so {0,10000} makes
// one state for each count that an output really reaches. step() never returns a state whose language is empty: where
// an intersection or a complement could be empty, states are explored until a finite text is found (bounded; error()
// tells when the bound was reached).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_set.h"
#include "grammar/char_set.h"
#include "grammar/flat_map.h"
#include "grammar/limits.h"

namespace deepinfer::grammar {

using RxId = uint32_t;
inline constexpr RxId kRxNone = 0;      // nothing
inline constexpr RxId kRxEmpty = 1;     // the empty string
inline constexpr RxId kRxAnything = 2;  // every byte string
inline constexpr uint32_t kRxUnbounded = UINT32_MAX;
inline constexpr size_t kRxSearchStatesMax = 20'000;  // looked at to find out whether a language is empty

// A small deterministic automaton whose accepting states may have no edges left; state 0 starts.
struct ByteDfa {
  struct Edge {
    uint8_t first, last;
    uint32_t to;
  };
  std::vector<std::vector<Edge>> edges;  // by state, sorted
  std::vector<bool> accepts;
  bool acyclic = true;
  uint8_t universe = 0;  // RxFlag of the universe that the strings of state 0 are single characters of
};

// How a code point is written: as UTF-8, or inside a JSON string (raw or escaped).
enum class Encoding : uint8_t { kUtf8, kJson };
std::shared_ptr<const ByteDfa> make_char_dfa(const CharSet& set, Encoding encoding);

// Sorted distinct strings, of which a state holds a range with a common prefix.
struct StringSet {
  std::vector<std::string> values;
};

enum RxFlag : uint8_t {
  kRxNullable = 1,
  kRxCheck = 2,      // holds an intersection or complement: emptiness must be looked for
  kRxJsonText = 4,   // a subset of (JSON character)*
  kRxUtf8Text = 8,   // a subset of (UTF-8 character)*
  kRxInfinite = 16,  // surely infinitely many strings
  kRxFinite = 32,    // surely finitely many
};

enum class RxKind : uint8_t {
  kNone,
  kEmpty,
  kBytes,
  kLiteral,
  kStrings,
  kJsonStrings,
  kDfa,
  kConcat,
  kAlt,
  kAnd,
  kNot,
  kRepeat
};

struct RxNode {
  RxKind kind;
  uint8_t flags;
  uint32_t a = 0, b = 0, c = 0, d = 0, e = 0;
  bool operator==(const RxNode&) const = default;
};

class RxArena {
 public:
  // With `bare`, without the precomputed pieces (only used to make them).
  explicit RxArena(bool bare = false);
  RxArena(const RxArena&) = delete;
  RxArena& operator=(const RxArena&) = delete;

  RxId bytes(const ByteSet& set);
  RxId literal(std::string_view bytes);
  RxId strings(std::vector<std::string> values);       // any of them
  RxId json_strings(std::vector<std::string> values);  // any of these UTF-8 values, spelled inside a JSON string
  RxId chars(const CharSet& set, Encoding encoding);
  RxId dfa(std::shared_ptr<const ByteDfa> machine);
  RxId concat(RxId a, RxId b);
  RxId alt(std::span<const RxId> parts);
  RxId both(std::span<const RxId> parts);
  RxId complement(RxId a);
  RxId repeat(RxId a, uint32_t min, uint32_t max);
  RxId alt(RxId a, RxId b) { const RxId p[] = {a, b}; return alt(p); }
  RxId both(RxId a, RxId b) { const RxId p[] = {a, b}; return both(p); }
  RxId without_empty(RxId a);
  // All strings of characters in an encoding.
  RxId universe(Encoding encoding) const { return universe_[static_cast<int>(encoding)]; }

  bool nullable(RxId r) const { return nodes_[r].flags & kRxNullable; }
  const RxNode& node(RxId r) const { return nodes_[r]; }
  std::string literal_bytes(RxId r) const { return pool_.substr(nodes_[r].a, nodes_[r].b); }
  size_t size() const { return nodes_.size(); }

  uint32_t step(RxId r, uint8_t byte) {
    const uint32_t* row = rows_[r];
    if (row != nullptr && row[byte] != kUnknown) return row[byte];
    return step_slow(r, byte);
  }
  // The row of a state by byte, with kUnknown where nobody has looked; null for literals (use step()).
  static constexpr uint32_t kUnknown = UINT32_MAX;
  const uint32_t* row(RxId r) { return rows_[r] != nullptr ? rows_[r] : new_row(r); }
  const ByteSet& first(RxId r);
  // Whether some string is in the language.
  bool alive(RxId r);
  bool matches(RxId r, std::string_view bytes);
  // Whether every JSON text (as inside quotes) surely is the start of a string of the language.
  bool takes_any_json_text(RxId r) const;
  // Whether the language is JSON text and then a closing quote, which alone can end it.
  bool ends_with_quote(RxId r) const;
  // A state with the same behaviour on all texts of at most `length` bytes; counts beyond are forgotten, so that states
  // can share masks.
  RxId truncate(RxId r, uint32_t length);

  // Searches for a text of a language charge `budget` (which may be null) and stop when it is spent.
  void set_budget(Budget* budget) { budget_ = budget; }
  // Looking for a text took too many states or too long, or an expression was too deep; steps return 0 then.
  bool error() const { return error_; }
  void clear_error() { error_ = false; }
  uint64_t memory_bytes() const { return memory_; }
  uint64_t work() const { return work_; }

  // A mark to which everything made later can be dropped again.
  struct Mark {
    size_t nodes, lists, sets, strings, dfas;
  };
  Mark mark() const;
  void rewind(const Mark& mark);
  // Becomes what `other` was at the mark.
  void copy(const RxArena& other, const Mark& mark);

 private:
  friend struct RxBase;
  RxId intern(const RxNode& node);
  RxId intern_list(RxKind kind, uint8_t flags, std::span<const RxId> list);
  uint64_t hash(const RxNode& node) const;
  void grow_table();
  std::span<const RxId> list(const RxNode& n) const { return {lists_.data() + n.a, n.b}; }
  uint32_t pack(RxId r) const { return r << 1 | (nodes_[r].flags & kRxNullable); }
  uint32_t step_slow(RxId r, uint8_t byte);
  uint32_t* make_row(RxId r);
  const uint32_t* new_row(RxId r);
  RxId derive(RxId r, uint8_t byte, ByteSet& same, int depth);
  RxId derive_strings(const RxNode& n, uint8_t byte, ByteSet& same);
  RxId derive_json_strings(const RxNode& n, uint8_t byte, ByteSet& same);
  RxId strings_state(RxKind kind, uint32_t set, uint32_t first, uint32_t last, uint32_t depth, uint32_t escape);
  RxId json_advance(const RxNode& n, uint32_t code_point);
  bool json_viable(const RxNode& n, uint32_t escape) const;
  uint32_t add_strings(std::vector<std::string> values);
  uint32_t dfa_index(std::shared_ptr<const ByteDfa> machine);
  RxId dfa_state(uint32_t machine, uint32_t state);
  bool merge_counts(std::vector<RxId>& parts);
  const std::vector<RxId>& successors(RxId r);
  bool is_cofinite(RxId r, RxId* rest) const;
  int alive_by_parts(RxId r);
  RxId truncate_list(RxId r, uint32_t length);

  std::vector<RxNode> nodes_;
  std::vector<uint32_t*> rows_;
  std::vector<uint32_t> first_index_;  // into firsts_, plus 1
  std::vector<int8_t> alive_;          // -1 unknown
  std::vector<uint32_t> table_;        // open addressing, ids
  std::string pool_;                   // bytes of literals
  std::vector<RxId> lists_;
  std::vector<ByteSet> sets_;
  std::vector<ByteSet> firsts_;
  std::vector<std::shared_ptr<const StringSet>> strings_;
  std::vector<std::shared_ptr<const ByteDfa>> dfas_;
  std::vector<CharSet> dfa_sets_;   // of dfas_[i], where it was made from a set of characters
  FlatMap char_dfas_[2];            // hash of a set -> index in dfas_
  FlatMap literals_;                // hash of a literal's bytes -> place in pool_, plus 1
  FlatMap string_sets_;             // hash of the values -> index in strings_, plus 1
  FlatMap truncated_;               // (state, length) -> state
  std::unordered_map<RxId, std::vector<RxId>> successors_;
  std::vector<std::unique_ptr<uint32_t[]>> row_chunks_;
  size_t rows_left_ = 0;
  RxId universe_[2] = {kRxAnything, kRxAnything};
  uint64_t memory_ = 0, work_ = 0;
  bool error_ = false;
  Budget* budget_ = nullptr;
};

// The expressions that nearly every grammar uses, with all their states worked out once per process. Their ids are the
// same in every RxArena, so what a vocabulary precomputes for them holds for all grammars.
inline constexpr uint32_t kMaxWhitespaceRun = 32;

struct RxBase {
  RxId utf8_char, json_char, utf8_text, json_text;
  RxId json_string;          // "..." with any value
  RxId json_string_not_empty;
  RxId json_integer, json_number, whitespace;
  size_t size;               // ids below this are base expressions

  static const RxBase& get();

 private:
  friend class RxArena;
  struct Made;
  static const Made& made();
  static const RxArena& arena();
};

// Longest tokens of the three parts that a vocabulary is cut into (vocabulary_impl.h): masks of a part forget counts
// beyond it.
inline constexpr uint32_t kPartLength[] = {16, 48, 1024};
inline constexpr int kParts = 3;

}  // namespace deepinfer::grammar
