// Facts about the expressions below a root, worked out in linear time. Internal to the room.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "grammar/grammar_impl.h"

namespace deepinfer::grammar {

// Calls visit(child) for the expressions directly inside `e`; for a rule, its body.
template <class F>
void for_each_child(const Grammar::Impl& grammar, ExprId e, F&& visit) {
  const ExprNode& n = grammar.exprs.node(e);
  switch (n.kind) {
    case ExprKind::kSequence:
      visit(n.a);
      visit(n.b);
      break;
    case ExprKind::kChoice:
      for (ExprId part : grammar.exprs.list(n)) visit(part);
      break;
    case ExprKind::kRepeat:
    case ExprKind::kUnique:
    case ExprKind::kUniqueItem:
      visit(n.a);
      break;
    case ExprKind::kRule:
      visit(grammar.rules[n.a].body);
      break;
    case ExprKind::kAnyOrder: {
      const AnyOrder& d = grammar.exprs.definition(n.a);
      for (ExprId item : d.items) visit(item);
      visit(d.separator);
      visit(d.others);
      break;
    }
    default:
      break;
  }
}

// The expressions reached from `root`, through rules, ascending.
std::vector<ExprId> reachable(const Grammar::Impl& grammar, ExprId root);

enum class Fact : uint8_t {
  kProductive,  // some finite text can be produced
  kNullable,    // the empty text can be produced
  kHasUnique,   // an array of unique items is somewhere inside
};
// By expression id, for the given expressions (which must be closed under for_each_child).
std::vector<bool> find_fact(Grammar::Impl& grammar, const std::vector<ExprId>& exprs, Fact fact);

// Variants of expressions that do not produce the empty text.
class NotEmpty {
 public:
  // `nullable_rules`: by rule id; grows with the rules that are made.
  NotEmpty(Grammar::Impl& grammar, std::vector<bool> nullable_rules)
      : g_(grammar), nullable_rules_(std::move(nullable_rules)) {}
  bool nullable(ExprId e);
  ExprId of(ExprId e);
  // The rule that produces what `rule` does, but for the empty text; made if need be.
  uint32_t rule_variant(uint32_t rule);
  bool nullable_rule(uint32_t rule) const { return nullable_rules_[rule]; }
  // Some expression was nested too deeply.
  bool failed() const { return failed_; }

 private:
  Grammar::Impl& g_;
  std::vector<bool> nullable_rules_;
  std::unordered_map<ExprId, bool> nullable_;
  std::unordered_map<ExprId, ExprId> variants_;
  std::unordered_map<uint32_t, uint32_t> rule_variants_;
  int depth_ = 0;
  bool failed_ = false;
};

// Rewrites left-recursive rules into ones that are not (left_recursion.cc).
Status remove_left_recursion(Grammar::Impl& grammar, Budget& budget);

}  // namespace deepinfer::grammar
