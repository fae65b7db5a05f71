// The one grammar form that regular expressions, JSON Schema, EBNF and structural tags compile into, and its builder.
//
// Two kinds of expression:
//   Text   a regular set of Unicode strings: a *value*, without saying how it is spelled. Closed under and, or, not.
//   Expr   what the output must look like in bytes: spelled Texts, sequences, choices, counts and rules. Rules may
//          recurse freely (left recursion and ambiguity included).
//
//   GrammarBuilder b;
//   // pattern and maxLength
//   Text name = b.all_of({*parse_regex(b, "^[a-z]", RegexMode::kSearch), b.repeat(b.any_char(), 0, 40)});
//   Rule value = b.new_rule("value");
//   Expr list = b.sequence({b.literal("["), b.ref(value), b.literal("]")});
//   b.define(value, b.choice({b.json_string(name), b.utf8(b.text("null")), list}));
//   Result<Grammar> grammar = b.finish(value);           // refuses undefined, empty and endless rules
//
// Handles are small values that belong to their builder. Equal expressions get equal handles, so building the same
// thing twice is free. Cost: creating an expression is about 100 ns; counts are never unrolled ({0,10000} is as cheap
// as {0,1}), complements and intersections are worked out while the grammar is used, a state at a time.
//
// Errors: builder calls never fail by themselves. The first error (a limit, a cancelled compile) is kept: from then on
// every call returns none(), ok() is false, status() has the error, and finish() returns it. Loops over input should
// stop when !ok().
//
// Tokens: a grammar is about text; matcher.h binds it to a vocabulary. Only added tokens that literals may be written
// with have to be named beforehand (set_added_tokens); the grammar then belongs to that tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/added_token.h"
#include "grammar/char_set.h"
#include "grammar/limits.h"

namespace deepinfer::grammar {

inline constexpr uint32_t kUnbounded = UINT32_MAX;
inline constexpr uint32_t kMaxWhitespace = 32;  // of whitespace(): longest run
inline constexpr size_t kAnyOrderMax = 1024;    // items of any_order()

struct Text {
  uint32_t id = 0;
  bool operator==(const Text&) const = default;
};
struct Expr {
  uint32_t id = 0;
  bool operator==(const Expr&) const = default;
};
struct Rule {
  uint32_t id = 0;
  bool operator==(const Rule&) const = default;
};

// Where a literal of the grammar may be written with an added token of the vocabulary (README of the structured
// fixtures).
enum class Spelling : uint8_t {
  kPlain,        // ordinary tokens only: JSON Schema, regex
  kAddedTokens,  // each part that spells an added token (set_added_tokens) is that token and nothing else: GBNF, tags
};

// A deterministic automaton over ASCII, for arithmetic conditions (multiples of n) that have no short expression. State
// 0 starts.
struct Automaton {
  struct Edge {
    uint8_t first, last;  // bytes below 0x80, both inclusive; the edges of a state are disjoint
    uint32_t to;
  };
  struct State {
    bool accepts = false;
    std::vector<Edge> edges;
  };
  std::vector<State> states;
};

class Grammar;

class GrammarBuilder {
 public:
  explicit GrammarBuilder(const Limits& limits = {});
  ~GrammarBuilder();
  GrammarBuilder(const GrammarBuilder&) = delete;
  GrammarBuilder& operator=(const GrammarBuilder&) = delete;

  bool ok() const;
  const Status& status() const;
  Budget& budget();
  // Makes the builder fail with `error` (the first one is kept).
  void fail(Status error);

  // The tokens that Spelling::kAddedTokens writes parts of literals with; the longest match from the left counts.
  void set_added_tokens(std::vector<AddedToken> tokens);
  // The added tokens in `bytes`, as (offset, index in the list that was set).
  std::vector<std::pair<size_t, size_t>> find_added_tokens(std::string_view bytes) const;

  // --- Texts: sets of strings of code points
  // -------------------------------------------------------------------------------------
  Text no_text();                                    // the empty set
  Text text(std::string_view utf8);                  // exactly this string ("" for the empty one); must be valid UTF-8
  Text one_of(std::span<const std::string> values);  // any of these strings, also many thousands
  Text chars(const CharSet& set);                    // one code point of the set
  Text any_char();                                   // one code point
  Text any_text();                                   // all strings
  Text concat(std::span<const Text> parts);
  Text any_of(std::span<const Text> parts);          // union; the empty set without parts
  Text all_of(std::span<const Text> parts);          // intersection; all strings without parts
  Text complement(Text a);                           // all strings that are not in a
  Text repeat(Text a, uint32_t min, uint32_t max);   // min..max (or kUnbounded) times
  Text automaton(const Automaton& machine);          // only for utf8(), not inside json_string()
  Text concat(std::initializer_list<Text> parts) { return concat(std::span(parts.begin(), parts.size())); }
  Text any_of(std::initializer_list<Text> parts) { return any_of(std::span(parts.begin(), parts.size())); }
  Text all_of(std::initializer_list<Text> parts) { return all_of(std::span(parts.begin(), parts.size())); }
  // Whether the set is empty; exact. May explore many states; a limit makes the builder fail, and the answer is then
  // true.
  bool is_empty(Text a);
  // How many strings are in the set; stops at `enough`, and may say too few where many states would have to be looked
  // at.
  uint32_t count_at_least(Text a, uint32_t enough);
  // Whether `value` (UTF-8) is in the set.
  bool contains(Text a, std::string_view value);

  // --- Expressions: what is written
  // ------------------------------------------------------------------------------------------------
  Expr none();                                       // nothing can be written here
  Expr empty();                                      // the empty string
  Expr literal(std::string_view bytes, Spelling spelling = Spelling::kPlain);
  Expr token(uint32_t id);                           // an added token
  // Any of these byte strings; for enums, any number of values.
  Expr literals(std::span<const std::string> values);
  Expr utf8(Text a);                                 // the string itself, as UTF-8
  // A JSON string with its quotes whose *decoded* value is in the set. Each character may be raw or escaped (\n,
  // \u00e9, \ud83d\ude00); control characters, the quote and the backslash must be escaped; a lone surrogate escape is
  // refused; an escape counts as one character, a surrogate pair too. `any_text()` and `repeat(any_char(), m, n)` are
  // precomputed per vocabulary.
  Expr json_string(Text value);
  Expr json_integer();                               // -?(0|[1-9][0-9]*)
  Expr json_number();                                // RFC 8259 number
  // At most kMaxWhitespace space, \t, \n, \r (runs without bound are how constrained models loop for ever).
  Expr whitespace();
  Expr sequence(std::span<const Expr> parts);
  Expr choice(std::span<const Expr> parts);
  Expr repeat(Expr a, uint32_t min, uint32_t max);
  Expr optional(Expr a) { return repeat(a, 0, 1); }
  Expr sequence(std::initializer_list<Expr> parts) { return sequence(std::span(parts.begin(), parts.size())); }
  Expr choice(std::initializer_list<Expr> parts) { return choice(std::span(parts.begin(), parts.size())); }
  // Items in any order, `separator` between two: item i at most once, and at least once if required[i]. `others`
  // (none() for no such thing) may stand anywhere, any number of times; the number of all items lies in [min, max]. At
  // most kAnyOrderMax items.
  Expr any_order(std::span<const Expr> items, const std::vector<bool>& required, Expr separator, Expr others,
                 uint32_t min = 0, uint32_t max = kUnbounded);

  // An array's inside in which no two of the unique_items, as JSON values, are equal; the items may be spelled in any
  // way. The items surely have at least `values_at_least` different values (1 if nothing is known: then masks cost
  // more).
  Expr unique(Expr body, uint32_t values_at_least);
  Expr unique_item(Expr item);

  // --- Rules: named expressions that may recurse
  // -----------------------------------------------------------------------------------
  Rule new_rule(std::string_view name);              // the name is for messages
  void define(Rule rule, Expr body);                 // once per rule
  bool is_defined(Rule rule) const;
  Expr ref(Rule rule);
  // Whether the expression can produce nothing at all (an unsatisfiable schema). Rules that it uses must be defined.
  bool is_none(Expr a);

  // Checks the rules reached from the root and hands the grammar over; the builder is spent then. Refused: rules
  // without a definition, and a root that can produce no finite text. Rules below the root that can produce nothing
  // drop out of the choices that use them, unless strict_rules is set: then they are refused by name.
  Result<Grammar> finish(Expr root, bool strict_rules = false);
  Result<Grammar> finish(Rule root, bool strict_rules = false);

 private:
  friend class Grammar;
  struct Impl;
  std::vector<Text> join_strings(std::span<const Text> parts);

  std::unique_ptr<Impl> impl_;
};

// A finished grammar. Movable; not tied to a vocabulary.
class Grammar {
 public:
  Grammar(Grammar&&) noexcept;
  Grammar& operator=(Grammar&&) noexcept;
  ~Grammar();

  struct Impl;
  explicit Grammar(std::unique_ptr<Impl> impl);
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::grammar
