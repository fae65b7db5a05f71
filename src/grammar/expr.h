// The expressions of a grammar, hash-consed: what an output must look like, over byte-level regular pieces (rx.h) and
// rules. Internal to the room; built through GrammarBuilder, walked by Machine.
//
// Children are always older (smaller ids) than the expressions that hold them; only rules close cycles.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grammar/rx.h"

namespace deepinfer::grammar {

using ExprId = uint32_t;
inline constexpr ExprId kExprNone = 0;
inline constexpr ExprId kExprEmpty = 1;

enum class ExprKind : uint8_t {
  kNone,
  kEmpty,
  kRx,
  kToken,
  kSequence,
  kChoice,
  kRepeat,
  kRule,
  kAnyOrder,
  kUnique,
  kUniqueItem
};

struct ExprNode {
  ExprKind kind;
  bool has_rule = false;    // a rule is used somewhere inside
  bool has_unique = false;  // kUnique or kUniqueItem occurs somewhere inside; through rules only after prepare()
  // kRx: a = state. kToken: a = id. kSequence: a then b. kChoice: b parts at a in the list pool. kRepeat: a, b..c
  // times. kRule: a = rule. kAnyOrder: a = definition, b = set of the items still unused (item_set), d = items written.
  // kUnique: a = body, b = different values that its items surely have (a lower bound). kUniqueItem: a = the item.
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// See GrammarBuilder::any_order.
struct AnyOrder {
  std::vector<ExprId> items;
  std::vector<uint64_t> required;  // a bit for each item
  bool is_required(size_t i) const { return required[i / 64] >> (i % 64) & 1; }
  uint32_t required_count() const;
  bool has_unique = false;
  ExprId separator = kExprEmpty, others = kExprNone;
  uint32_t min = 0, max = kRxUnbounded;
};

class ExprArena {
 public:
  ExprArena();
  RxArena& rx() { return rx_; }

  ExprId regular(RxId r);
  ExprId token(uint32_t id);
  ExprId sequence(ExprId head, ExprId tail);
  ExprId sequence(std::span<const ExprId> parts);
  ExprId choice(std::span<const ExprId> parts);
  ExprId choice(ExprId a, ExprId b) { const ExprId p[] = {a, b}; return choice(p); }
  ExprId repeat(ExprId a, uint32_t min, uint32_t max);
  ExprId rule(uint32_t rule);
  ExprId any_order(AnyOrder definition);
  ExprId any_order_state(uint32_t definition, std::span<const uint64_t> unused, uint32_t written);
  // The words of an interned set of items; they move when expressions are made.
  std::span<const uint64_t> item_set(const ExprNode& n) const {
    return {item_sets_.data() + n.b, any_orders_[n.a].required.size()};
  }
  // `body` with unique_items inside: no two of them are the same JSON value.
  ExprId unique(ExprId body, uint32_t values_at_least);
  ExprId unique_item(ExprId item);
  // Sets has_unique, which prepare() finds through the rules.
  void mark_unique(ExprId e);

  const ExprNode& node(ExprId e) const { return nodes_[e]; }
  std::span<const ExprId> list(const ExprNode& n) const { return {lists_.data() + n.a, n.b}; }
  const AnyOrder& definition(uint32_t index) const { return any_orders_[index]; }
  size_t size() const { return nodes_.size(); }
  uint64_t memory_bytes() const { return memory_ + rx_.memory_bytes(); }

  struct Mark {
    size_t nodes, lists, item_sets;
    RxArena::Mark rx;
  };
  Mark mark() const { return {nodes_.size(), lists_.size(), item_sets_.size(), rx_.mark()}; }
  void rewind(const Mark& mark);
  // Becomes what `other` was at the mark.
  void copy(const ExprArena& other, const Mark& mark);

 private:
  uint64_t hash(const ExprNode& n) const;
  ExprId intern(const ExprNode& node);
  void rebuild_table(size_t size);

  RxArena rx_;
  std::vector<ExprNode> nodes_;
  std::vector<uint32_t> table_;
  std::vector<ExprId> lists_;
  std::vector<AnyOrder> any_orders_;
  std::vector<uint64_t> item_sets_;
  FlatMap item_set_of_;  // hash of a set -> place in item_sets_, plus 1
  uint64_t memory_ = 0;
};

}  // namespace deepinfer::grammar
