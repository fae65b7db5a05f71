// Left recursion is removed by solving the rules as left-linear equations over expressions (Arden's rule: A = A x | y
// is y x*), so that a machine never has to call a rule at the place where it already is.
#include <algorithm>
#include <map>

#include "grammar/analysis.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kGroupMax = 64;
constexpr int kDepthMax = 5000;
constexpr int kRounds = 5;

// The rules that can be called at the start of each rule.
class LeftCalls {
 public:
  LeftCalls(const Grammar::Impl& g, const std::vector<bool>& nullable)
      : g_(g), nullable_(nullable), seen_(g.exprs.size(), UINT32_MAX) {}

  std::vector<uint32_t> of(uint32_t rule) {
    std::vector<uint32_t> calls;
    std::vector<ExprId> stack{g_.rules[rule].body};
    while (!stack.empty()) {
      const ExprId e = stack.back();
      stack.pop_back();
      if (seen_[e] == rule) continue;
      seen_[e] = rule;
      const ExprNode& n = g_.exprs.node(e);
      if (n.kind == ExprKind::kRule) {
        calls.push_back(n.a);
      } else if (n.kind == ExprKind::kSequence) {
        stack.push_back(n.a);
        if (nullable_[n.a]) stack.push_back(n.b);
      } else if (n.kind == ExprKind::kAnyOrder) {
        const AnyOrder& d = g_.exprs.definition(n.a);
        stack.insert(stack.end(), d.items.begin(), d.items.end());
        stack.push_back(d.others);
      } else {
        for_each_child(g_, e, [&](ExprId child) { stack.push_back(child); });
      }
    }
    return calls;
  }

 private:
  const Grammar::Impl& g_;
  const std::vector<bool>& nullable_;
  std::vector<uint32_t> seen_;
};

// Groups of rules that call each other at their starts (Tarjan, without recursion); only groups with a cycle.
std::vector<std::vector<uint32_t>> find_cycles(const std::vector<std::vector<uint32_t>>& calls) {
  struct Frame {
    uint32_t rule;
    size_t next;
  };
  const auto count = static_cast<uint32_t>(calls.size());
  std::vector<uint32_t> index(count, UINT32_MAX), low(count), open;
  std::vector<bool> is_open(count);
  std::vector<std::vector<uint32_t>> groups;
  uint32_t clock = 0;
  for (uint32_t start = 0; start < count; ++start) {
    if (index[start] != UINT32_MAX) continue;
    std::vector<Frame> stack{{start, 0}};
    while (!stack.empty()) {
      auto& [rule, next] = stack.back();
      if (next == 0) {
        index[rule] = low[rule] = clock++;
        open.push_back(rule);
        is_open[rule] = true;
      }
      if (next < calls[rule].size()) {
        const uint32_t to = calls[rule][next++];
        if (index[to] == UINT32_MAX) {
          stack.push_back({to, 0});
          continue;
        }
        if (is_open[to]) low[rule] = std::min(low[rule], index[to]);
        if (next < calls[rule].size()) continue;
      }
      if (next < calls[rule].size()) continue;
      const uint32_t done = rule, done_low = low[rule];
      if (done_low == index[done]) {
        std::vector<uint32_t> group;
        do {
          group.push_back(open.back());
          is_open[open.back()] = false;
          open.pop_back();
        } while (group.back() != done);
        const bool self = std::find(calls[done].begin(), calls[done].end(), done) != calls[done].end();
        if (group.size() > 1 || self) {
          std::sort(group.begin(), group.end());
          groups.push_back(std::move(group));
        }
      }
      stack.pop_back();
      if (!stack.empty()) low[stack.back().rule] = std::min(low[stack.back().rule], done_low);
    }
  }
  return groups;
}

class Solver {
 public:
  Solver(Grammar::Impl& g, NotEmpty& not_empty, Budget& budget) : g_(g), not_empty_(not_empty), budget_(budget) {}

  Status solve(const std::vector<uint32_t>& group) {
    if (group.size() > kGroupMax) {
      return make_error(Code::kUnsupported,
                        "{} rules are left-recursive through each other (at most {}), among them '{}'", group.size(),
                        kGroupMax, g_.rules[group[0]].name);
    }
    std::vector<uint32_t> variables;
    for (uint32_t rule : group) {
      const bool empties = not_empty_.nullable_rule(rule);
      const uint32_t variable = not_empty_.rule_variant(rule);
      if (empties) g_.rules[rule].body = g_.exprs.choice(g_.exprs.rule(variable), kExprEmpty);
      if (position_.emplace(variable, variables.size()).second) variables.push_back(variable);
    }
    const size_t n = variables.size();
    after_.assign(n, std::vector<ExprId>(n, kExprNone));
    rest_.assign(n, kExprNone);
    for (size_t i = 0; i < n; ++i) {
      Split s = split(g_.rules[variables[i]].body, 0);
      rest_[i] = s.rest;
      for (auto [j, after] : s.after) after_[i][j] = after;
    }
    if (failed_)
      return make_error(Code::kResourceExhausted, "the grammar is nested too deeply to remove its left recursion");
    for (size_t i = 0; i < n; ++i) DI_RETURN_IF_ERROR(eliminate(i, n));
    for (size_t i = 0; i < n; ++i) g_.rules[variables[i]].body = rest_[i];
    return {};
  }

 private:
  // An expression as (a variable, then ...) | ... | rest | empty, where rest does not start with a variable and is not
  // empty.
  struct Split {
    std::map<size_t, ExprId> after;
    ExprId rest = kExprNone;
    bool empty = false;
  };

  void join(Split& a, const Split& b) {
    for (auto [j, e] : b.after) {
      auto [it, fresh] = a.after.emplace(j, e);
      if (!fresh) it->second = g_.exprs.choice(it->second, e);
    }
    a.rest = g_.exprs.choice(a.rest, b.rest);
    a.empty |= b.empty;
  }

  Split then(Split head, ExprId tail, int depth) {
    Split out;
    for (auto [j, e] : head.after) out.after[j] = g_.exprs.sequence(e, tail);
    out.rest = g_.exprs.sequence(head.rest, tail);
    if (head.empty) join(out, split(tail, depth));
    return out;
  }

  Split split(ExprId e, int depth) {
    Split out;
    if (depth > kDepthMax) {
      failed_ = true;
      return out;
    }
    const ExprNode n = g_.exprs.node(e);
    switch (n.kind) {
      case ExprKind::kRule: {
        const bool empties = not_empty_.nullable_rule(n.a);
        const uint32_t variable = empties ? not_empty_.rule_variant(n.a) : n.a;
        auto it = position_.find(variable);
        if (it != position_.end()) out.after[it->second] = kExprEmpty;
        else out.rest = g_.exprs.rule(variable);
        out.empty = empties;
        return out;
      }
      case ExprKind::kSequence:
        return then(split(n.a, depth + 1), n.b, depth + 1);
      case ExprKind::kChoice: {
        const std::vector<ExprId> parts(g_.exprs.list(n).begin(), g_.exprs.list(n).end());
        for (ExprId p : parts) join(out, split(p, depth + 1));
        return out;
      }
      case ExprKind::kRepeat: {
        const uint32_t min = n.b == 0 ? 0 : n.b - 1, max = n.c == kRxUnbounded ? n.c : n.c - 1;
        out = then(split(n.a, depth + 1), g_.exprs.repeat(n.a, min, max), depth + 1);
        out.empty |= n.b == 0;
        return out;
      }
      default:
        out.empty = not_empty_.nullable(e);
        out.rest = not_empty_.of(e);
        return out;
    }
  }

  Status eliminate(size_t i, size_t n) {
    if (after_[i][i] != kExprNone) {
      const ExprId loop = g_.exprs.repeat(not_empty_.of(after_[i][i]), 0, kRxUnbounded);
      after_[i][i] = kExprNone;
      for (size_t j = 0; j < n; ++j) after_[i][j] = g_.exprs.sequence(after_[i][j], loop);
      rest_[i] = g_.exprs.sequence(rest_[i], loop);
    }
    for (size_t k = 0; k < n; ++k) {
      const ExprId through = after_[k][i];
      if (k == i || through == kExprNone) continue;
      after_[k][i] = kExprNone;
      for (size_t j = 0; j < n; ++j) {
        DI_RETURN_IF_ERROR(budget_.spend(1));
        after_[k][j] = g_.exprs.choice(after_[k][j], g_.exprs.sequence(after_[i][j], through));
      }
      rest_[k] = g_.exprs.choice(rest_[k], g_.exprs.sequence(rest_[i], through));
    }
    return {};
  }

  Grammar::Impl& g_;
  NotEmpty& not_empty_;
  Budget& budget_;
  std::map<uint32_t, size_t> position_;
  std::vector<std::vector<ExprId>> after_;  // after_[i][j]: rule i may start with rule j, followed by this
  std::vector<ExprId> rest_;
  bool failed_ = false;
};

}  // namespace

Status remove_left_recursion(Grammar::Impl& g, Budget& budget) {
  for (int round = 0; round < kRounds; ++round) {
    if (g.rules.empty()) return {};
    const std::vector<ExprId> exprs = reachable(g, g.root);
    const std::vector<bool> nullable = find_fact(g, exprs, Fact::kNullable);
    LeftCalls left_calls(g, nullable);
    std::vector<std::vector<uint32_t>> calls(g.rules.size());
    std::vector<bool> nullable_rules(g.rules.size());
    for (ExprId e : exprs) {
      const ExprNode& n = g.exprs.node(e);
      if (n.kind != ExprKind::kRule) continue;
      DI_RETURN_IF_ERROR(budget.spend(1));
      calls[n.a] = left_calls.of(n.a);
      nullable_rules[n.a] = nullable[e];
    }
    const auto groups = find_cycles(calls);
    if (groups.empty()) return {};
    NotEmpty not_empty(g, std::move(nullable_rules));
    for (const auto& group : groups) {
      Solver solver(g, not_empty, budget);
      DI_RETURN_IF_ERROR(solver.solve(group));
    }
    if (not_empty.failed()) break;
  }
  return make_error(Code::kUnsupported,
                    "the grammar's left recursion could not be removed; write the rules without it");
}

}  // namespace deepinfer::grammar
