#include "grammar/analysis.h"

#include <algorithm>

namespace deepinfer::grammar {
namespace {

constexpr int kDepthMax = 5000;

}  // namespace

std::vector<ExprId> reachable(const Grammar::Impl& grammar, ExprId root) {
  std::vector<bool> seen(grammar.exprs.size());
  std::vector<ExprId> stack{root}, out;
  seen[root] = true;
  while (!stack.empty()) {
    const ExprId e = stack.back();
    stack.pop_back();
    out.push_back(e);
    for_each_child(grammar, e, [&](ExprId child) {
      if (!seen[child]) {
        seen[child] = true;
        stack.push_back(child);
      }
    });
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<bool> find_fact(Grammar::Impl& grammar, const std::vector<ExprId>& exprs, Fact fact) {
  const size_t count = grammar.exprs.size();
  RxArena& rx = grammar.exprs.rx();
  std::vector<bool> holds(count);
  std::vector<uint32_t> needs(count, 1);  // children that must still turn true
  std::vector<uint32_t> parent_begin(count + 1), parents;
  std::vector<ExprId> ready;
  // Which children count: all of a sequence, any of a choice, the required ones of an any-order.
  auto premises = [&](ExprId e, auto&& visit) {
    const ExprNode& n = grammar.exprs.node(e);
    if (n.kind == ExprKind::kAnyOrder && fact != Fact::kHasUnique) {
      const AnyOrder& d = grammar.exprs.definition(n.a);
      if (fact == Fact::kNullable) return;
      uint32_t must = 0;
      for (size_t i = 0; i < d.items.size(); ++i) {
        if (d.is_required(i)) {
          visit(d.items[i]);
          ++must;
        }
      }
      if (std::max(must, d.min) > 1) visit(d.separator);
      return;
    }
    for_each_child(grammar, e, visit);
  };
  for (ExprId e : exprs) premises(e, [&](ExprId child) { ++parent_begin[child + 1]; });
  for (size_t i = 0; i < count; ++i) parent_begin[i + 1] += parent_begin[i];
  parents.resize(parent_begin[count]);
  std::vector<uint32_t> fill(parent_begin.begin(), parent_begin.end() - 1);
  for (ExprId e : exprs) {
    const ExprNode& n = grammar.exprs.node(e);
    uint32_t children = 0;
    premises(e, [&](ExprId child) {
      parents[fill[child]++] = e;
      ++children;
    });
    if (fact == Fact::kHasUnique) {
      if (!n.has_unique) continue;
      holds[e] = true;
      ready.push_back(e);
      continue;
    }
    bool now = false;
    switch (n.kind) {
      case ExprKind::kNone:
        break;
      case ExprKind::kEmpty:
        now = true;
        break;
      case ExprKind::kRx:
        now = fact == Fact::kNullable ? rx.nullable(n.a) : rx.alive(n.a);
        break;
      case ExprKind::kToken:
        now = fact == Fact::kProductive;
        break;
      case ExprKind::kSequence:
        needs[e] = 2;
        break;
      case ExprKind::kRepeat:
        now = n.b == 0;
        break;
      case ExprKind::kAnyOrder: {
        const AnyOrder& d = grammar.exprs.definition(n.a);
        needs[e] = children;
        now = fact == Fact::kNullable ? d.required_count() == 0 && d.min == 0 : children == 0;
        break;
      }
      default:
        break;
    }
    if (now) {
      holds[e] = true;
      ready.push_back(e);
    }
  }
  while (!ready.empty()) {
    const ExprId e = ready.back();
    ready.pop_back();
    for (uint32_t i = parent_begin[e]; i < parent_begin[e + 1]; ++i) {
      const ExprId p = parents[i];
      if (holds[p] || --needs[p] > 0) continue;
      holds[p] = true;
      ready.push_back(p);
    }
  }
  return holds;
}

bool produces_nothing(Grammar::Impl& grammar, ExprId e) {
  return !find_fact(grammar, reachable(grammar, e), Fact::kProductive)[e];
}

bool NotEmpty::nullable(ExprId e) {
  const ExprNode n = g_.exprs.node(e);
  switch (n.kind) {
    case ExprKind::kEmpty:
      return true;
    case ExprKind::kRx:
      return g_.exprs.rx().nullable(n.a);
    case ExprKind::kRule:
      return nullable_rules_[n.a];
    case ExprKind::kNone:
    case ExprKind::kToken:
      return false;
    case ExprKind::kAnyOrder: {
      const AnyOrder& d = g_.exprs.definition(n.a);
      return d.required_count() == 0 && d.min == 0;
    }
    default:
      break;
  }
  if (auto it = nullable_.find(e); it != nullable_.end()) return it->second;
  if (++depth_ > kDepthMax) failed_ = true;
  bool result = false;
  if (!failed_) {
    if (n.kind == ExprKind::kSequence) {
      result = nullable(n.a) && nullable(n.b);
    } else if (n.kind == ExprKind::kRepeat) {
      result = n.b == 0 || nullable(n.a);
    } else if (n.kind == ExprKind::kUnique || n.kind == ExprKind::kUniqueItem) {
      result = nullable(n.a);
    } else {
      const std::vector<ExprId> parts(g_.exprs.list(n).begin(), g_.exprs.list(n).end());
      result = std::any_of(parts.begin(), parts.end(), [this](ExprId p) { return nullable(p); });
    }
  }
  --depth_;
  nullable_[e] = result;
  return result;
}

ExprId NotEmpty::of(ExprId e) {
  if (!nullable(e) || failed_) return e;
  if (auto it = variants_.find(e); it != variants_.end()) return it->second;
  if (++depth_ > kDepthMax) failed_ = true;
  const ExprNode n = g_.exprs.node(e);
  ExprId out = kExprNone;
  switch (n.kind) {
    case ExprKind::kRx:
      out = g_.exprs.regular(g_.exprs.rx().without_empty(n.a));
      break;
    case ExprKind::kRule:
      out = g_.exprs.rule(rule_variant(n.a));
      break;
    case ExprKind::kSequence:  // both sides are nullable
      out = g_.exprs.choice(g_.exprs.sequence(of(n.a), n.b), of(n.b));
      break;
    case ExprKind::kChoice: {
      std::vector<ExprId> parts(g_.exprs.list(n).begin(), g_.exprs.list(n).end());
      for (ExprId& p : parts) p = of(p);
      out = g_.exprs.choice(parts);
      break;
    }
    case ExprKind::kRepeat: {
      const ExprId unit = of(n.a);
      out = g_.exprs.sequence(unit, g_.exprs.repeat(unit, 0, n.c == kRxUnbounded ? n.c : n.c - 1));
      break;
    }
    case ExprKind::kAnyOrder: {
      AnyOrder d = g_.exprs.definition(n.a);
      d.min = 1;
      out = g_.exprs.any_order(std::move(d));
      break;
    }
    case ExprKind::kUnique:
      out = g_.exprs.unique(of(n.a), n.b);
      break;
    case ExprKind::kUniqueItem:
      out = g_.exprs.unique_item(of(n.a));
      break;
    default:
      break;
  }
  --depth_;
  variants_[e] = out;
  return out;
}

uint32_t NotEmpty::rule_variant(uint32_t rule) {
  if (!nullable_rules_[rule]) return rule;
  if (auto it = rule_variants_.find(rule); it != rule_variants_.end()) return it->second;
  const auto made = static_cast<uint32_t>(g_.rules.size());
  g_.rules.push_back({g_.rules[rule].name, kExprNone, true});
  nullable_rules_.push_back(false);
  rule_variants_[rule] = made;
  const ExprId body = of(g_.rules[rule].body);
  g_.rules[made].body = body;
  return made;
}

namespace {

// Copies the given expressions with `change(node, mapped children)` applied; rule bodies and the root follow.
class Rewriter {
 public:
  Rewriter(Grammar::Impl& g, const std::vector<ExprId>& exprs) : g_(g), exprs_(exprs), to_(g.exprs.size(), kExprNone) {}

  // keep: by expression; what is not kept becomes none. unit: called with (old repeat, mapped unit, &min).
  template <class Unit>
  Status run(const std::vector<bool>& keep, Unit&& unit, Budget& budget) {
    for (ExprId e : exprs_) {
      DI_RETURN_IF_ERROR(budget.spend(1));
      if (keep[e]) to_[e] = copy(e, unit);
    }
    for (ExprId e : exprs_) {
      const ExprNode n = g_.exprs.node(e);
      if (n.kind == ExprKind::kRule && keep[e]) g_.rules[n.a].body = to_[g_.rules[n.a].body];
    }
    g_.root = to_[g_.root];
    return {};
  }

 private:
  template <class Unit>
  ExprId copy(ExprId e, Unit&& unit) {
    const ExprNode n = g_.exprs.node(e);
    switch (n.kind) {
      case ExprKind::kSequence:
        return g_.exprs.sequence(to_[n.a], to_[n.b]);
      case ExprKind::kChoice: {
        std::vector<ExprId> parts(g_.exprs.list(n).begin(), g_.exprs.list(n).end());
        for (ExprId& p : parts) p = to_[p];
        return g_.exprs.choice(parts);
      }
      case ExprKind::kRepeat: {
        uint32_t min = n.b;
        const ExprId mapped = unit(n, to_[n.a], min);
        return g_.exprs.repeat(mapped, min, n.c);
      }
      case ExprKind::kAnyOrder: {
        AnyOrder d = g_.exprs.definition(n.a);
        for (ExprId& item : d.items) item = to_[item];
        d.separator = to_[d.separator];
        d.others = to_[d.others];
        return g_.exprs.any_order(std::move(d));
      }
      case ExprKind::kUnique:
        return g_.exprs.unique(to_[n.a], n.b);
      case ExprKind::kUniqueItem:
        return g_.exprs.unique_item(to_[n.a]);
      default:
        return e;
    }
  }

  Grammar::Impl& g_;
  const std::vector<ExprId>& exprs_;
  std::vector<ExprId> to_;
};

Status check_rules(const Grammar::Impl& g, const std::vector<ExprId>& exprs, const std::vector<bool>& productive,
                   bool strict) {
  for (ExprId e : exprs) {
    const ExprNode& n = g.exprs.node(e);
    if (n.kind == ExprKind::kRule && !productive[e] && strict) {
      return make_error(Code::kInvalidArgument,
                        "rule '{}' can produce no finite text: each of its alternatives needs itself or nothing",
                        g.rules[n.a].name);
    }
  }
  return {};
}

// x* with an x that may be empty would loop in place: x is replaced by what x produces but for the empty text.
Status make_repeats_progress(Grammar::Impl& g, Budget& budget) {
  constexpr int kRounds = 20;
  std::unique_ptr<NotEmpty> not_empty;
  for (int round = 0; round < kRounds; ++round) {
    DI_RETURN_IF_ERROR(budget.look());
    const std::vector<ExprId> exprs = reachable(g, g.root);
    const std::vector<bool> nullable = find_fact(g, exprs, Fact::kNullable);
    const bool loops = std::any_of(exprs.begin(), exprs.end(), [&](ExprId e) {
      const ExprNode& n = g.exprs.node(e);
      return n.kind == ExprKind::kRepeat && nullable[n.a];
    });
    if (!loops) return {};
    if (!not_empty) {
      std::vector<bool> rules(g.rules.size());
      for (ExprId e : exprs) {
        if (g.exprs.node(e).kind == ExprKind::kRule) rules[g.exprs.node(e).a] = nullable[e];
      }
      not_empty = std::make_unique<NotEmpty>(g, std::move(rules));
    }
    Rewriter rewriter(g, exprs);
    DI_RETURN_IF_ERROR(rewriter.run(
        std::vector<bool>(g.exprs.size(), true),
        [&](const ExprNode& n, ExprId unit, uint32_t& min) {
          if (!nullable[n.a]) return unit;
          min = 0;
          return not_empty->of(unit);
        },
        budget));
    if (not_empty->failed()) break;
  }
  return make_error(Code::kResourceExhausted, "the grammar nests repetitions of things that may be empty too deeply");
}

}  // namespace

Status prepare(Grammar::Impl& g, bool strict_rules, Budget& budget) {
  DI_RETURN_IF_ERROR(budget.look());
  const std::vector<ExprId> exprs = reachable(g, g.root);
  for (ExprId e : exprs) {
    const ExprNode& n = g.exprs.node(e);
    if (n.kind == ExprKind::kRule && !g.rules[n.a].defined) {
      return make_error(Code::kInvalidArgument, "rule '{}' is used but not defined", g.rules[n.a].name);
    }
  }
  for (ExprId e : exprs) {
    const ExprNode& n = g.exprs.node(e);
    if (n.kind == ExprKind::kChoice && n.b > budget.limits().request_items_max) {
      return make_error(Code::kResourceExhausted,
                        "there are {} ways to go on at one place, more than {} (limit request_items_max)", n.b,
                        budget.limits().request_items_max);
    }
  }
  DI_RETURN_IF_ERROR(budget.look());
  const std::vector<bool> productive = find_fact(g, exprs, Fact::kProductive);
  DI_RETURN_IF_ERROR(budget.look());
  DI_RETURN_IF_ERROR(check_rules(g, exprs, productive, strict_rules));
  if (!productive[g.root]) {
    return make_error(Code::kInvalidArgument, "no text at all can satisfy the constraint");
  }
  const bool all = std::all_of(exprs.begin(), exprs.end(), [&](ExprId e) { return productive[e] || e == kExprNone; });
  if (!all) {
    Rewriter rewriter(g, exprs);
    DI_RETURN_IF_ERROR(rewriter.run(productive, [](const ExprNode&, ExprId unit, uint32_t&) { return unit; }, budget));
  }
  DI_RETURN_IF_ERROR(make_repeats_progress(g, budget));
  DI_RETURN_IF_ERROR(remove_left_recursion(g, budget));
  if (g.uses_unique) {
    const std::vector<ExprId> used = reachable(g, g.root);
    const std::vector<bool> unique = find_fact(g, used, Fact::kHasUnique);
    for (ExprId e : used) {
      if (unique[e]) g.exprs.mark_unique(e);
    }
  }
  return {};
}

}  // namespace deepinfer::grammar
