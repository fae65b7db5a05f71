// The automaton of a grammar over a vocabulary: positions, steps and masks, all lazy. Internal to the room; see
// matcher.h.
//
// A position (a node) is a set of items (symbol, rest): something that must come now, and the position from which the
// text goes on behind it. So a node is a stack, or many that share their ends; its language is the union over its items
// of L(symbol) L(rest). Nodes are hash-consed: equal positions have equal ids, whoever reached them, and steps and
// masks are remembered per node. A symbol is a state of a regular piece (rx.h), an expression that is opened when it is
// first looked at (expr.h), an added token, or the end of the text.
//
// Unique items (machine_unique.cc) are not context-free. Below a kUniqueExpr, a position also holds the text of each
// item that is being written and the items before it, as symbols of their own in its stack: such an *exact* position
// belongs to one text. Its *plain* counterpart, without them, allows the same but for repeated items, and has the
// cached masks; what would repeat an item, or leave no other one to write, is taken out of the mask by walking the
// exact positions, only along the texts of the earlier items.
#pragma once

#include <cstdint>
#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/grammar_impl.h"
#include "grammar/limits.h"
#include "grammar/unique_store.h"
#include "grammar/vocabulary_impl.h"

namespace deepinfer::grammar {

using NodeId = uint32_t;
inline constexpr NodeId kNodeDead = 0;  // no text fits
inline constexpr NodeId kNodeEnd = 1;   // only the end fits

class Machine {
 public:
  Machine(Grammar::Impl& grammar, const Vocabulary::Impl& vocabulary, const Limits& limits);

  NodeId start();
  NodeId step(NodeId node, uint8_t byte);
  // The position after an added token.
  NodeId step_token(NodeId node, uint32_t token);
  bool accepts(NodeId node);
  const ByteSet& first(NodeId node);
  // Whether an added token may come next.
  bool has_tokens(NodeId node);
  // The tokens that may come next, without the end tokens.
  void fill_mask(NodeId node, std::span<uint32_t> mask);

  // The first limit that was reached since clear_error(); results since then must not be used.
  const Status& error() const { return error_; }
  void clear_error();
  // request_work_max is for each token; clear_error() starts anew too.
  void restart_work() { work_ = 0; }
  uint64_t memory_bytes() const { return memory_ + unique_.memory_bytes() + grammar_.exprs.memory_bytes(); }
  // What the grammar held before anything was worked out.
  const ExprArena::Mark& mark() const { return mark_; }
  // Forgets all nodes, states and masks.
  void reset();

 private:
  struct Item {
    uint32_t symbol;
    NodeId rest;
    bool operator==(const Item&) const = default;
  };
  struct Node {
    uint32_t items, count;            // raw, in items_
    uint32_t open = 0, open_count = 0;  // only states and tokens, all of them; valid if is_open
    uint32_t depth = 0;
    uint32_t hash = 0;
    uint32_t visit = 0;               // stamp of the last walk of drop_covered that passed here
    uint32_t popped = 0;              // stamp of the last opening that passed here
    uint32_t first = 0;               // index in firsts_, plus 1
    uint32_t mask = 0;                // index in masks_, plus 1
    bool is_open = false, accepts = false;
    bool is_exact = false;            // kUniqueExpr, kItemText or kItemSet occurs in it or below
    bool has_text = false;            // kItemText with a text does
    bool has_set = false;             // kItemSet does
    int8_t is_live = -1;              // exact: whether some text leads on from here; -1: not looked at
  };
  struct CachedMask {
    NodeId owner = kNodeDead;
    std::vector<uint32_t> words;
  };
  using Items = std::vector<Item>;
  // Tokens with a comma in them that may stand between items.
  struct CommaTokens {
    std::vector<uint32_t> with_item;  // behind it an item begins
    std::vector<uint32_t> others;
  };

  NodeId make(Items& items);
  NodeId make_one(uint32_t symbol, NodeId rest);
  NodeId find_or_add(std::span<const Item> items);
  void append_raw(NodeId node, Items& to);
  NodeId unite(std::span<const Item> same_symbol);
  uint32_t next_stamp();
  bool surely_nullable(uint32_t symbol) const;
  void drop_covered(std::vector<NodeId>& rests);
  void merge(Items& items);
  void open(NodeId node);
  // exact: the expression stood as a kUniqueExpr.
  void expand(ExprId e, bool exact, NodeId rest, Items& to);
  void expand_any_order(const ExprNode& n, bool exact, NodeId rest, Items& to);
  uint32_t symbol_of(ExprId e, bool exact) const;
  NodeId push(ExprId e, bool exact, NodeId rest);
  std::span<const Item> open_items(NodeId node);
  NodeId step_slow(NodeId node, uint8_t byte);
  void fail(Status status);
  void charge(size_t items);

  NodeId plain(NodeId node);
  NodeId blank(NodeId node);
  NodeId rebuild(NodeId node, bool keep, FlatMap& known);
  NodeId advance(NodeId node, uint8_t byte);
  NodeId finish_item(NodeId rest, UniqueStore::TextId text);
  // keep: only readings that do not have the value yet, unchanged.
  NodeId insert(NodeId node, UniqueStore::ValueId value, bool keep);
  bool is_free(NodeId node, UniqueStore::TextId text);
  bool is_live(NodeId node);
  void find_repeats(NodeId node, UniqueStore::TextId text, ByteSet& next);
  bool is_between_items(NodeId node);
  bool runs_short(NodeId node);
  ByteSet risky_bytes(NodeId node);
  void remove_repeats(NodeId node, std::span<uint32_t> mask);
  void remove_below(const Trie& trie, uint32_t begin, uint32_t end, NodeId node, std::span<uint32_t> mask);
  void remove_token(int32_t token, std::span<uint32_t> mask);
  uint32_t comma_tokens(NodeId node);
  void find_comma_tokens(const Trie& trie, uint32_t begin, uint32_t end, NodeId node, int seen, CommaTokens& found);
  bool fits(NodeId node, uint32_t token);

  void compute_mask(NodeId node, std::span<uint32_t> mask);
  void add_state(RxId state, NodeId rest, std::span<uint32_t> mask);
  LocalMask& local(RxId state, int part);
  LocalMask& make_local(RxId state, int part);
  void walk_below(const Trie& trie, uint32_t trie_node, NodeId node, std::span<uint32_t> mask);
  void set_tokens(int32_t token, std::span<uint32_t> mask);

  Grammar::Impl& grammar_;
  const Vocabulary::Impl& vocabulary_;
  Limits limits_;
  ExprArena::Mark mark_;
  LocalMasks masks_of_;
  Status error_;

  std::vector<Node> nodes_;
  std::vector<Item> items_;
  std::vector<uint32_t> table_;
  FlatMap steps_, unions_;
  std::vector<ByteSet> firsts_;
  std::vector<std::array<uint32_t, kParts>> local_index_;  // by state: index in locals_, plus 1
  FlatMap local_of_;  // cut state and part -> index in locals_, plus 1
  std::vector<std::unique_ptr<LocalMask>> locals_;
  std::vector<CachedMask> cache_;
  size_t cache_next_ = 0, cache_max_ = 0;
  uint32_t stamp_ = 0;
  uint64_t memory_ = 0;
  uint64_t work_ = 0;  // since clear_error()
  int depth_ = 0;
  std::vector<std::pair<uint32_t, NodeId>> exits_;  // scratch of walk_below

  UniqueStore unique_;
  FlatMap plain_of_, blank_of_, advanced_;
  FlatMap comma_tokens_of_;  // blank position -> index in comma_tokens_
  std::vector<CommaTokens> comma_tokens_;
  uint32_t search_left_ = 0;  // positions that is_live may still look at
  int search_depth_ = 0;
};

}  // namespace deepinfer::grammar
