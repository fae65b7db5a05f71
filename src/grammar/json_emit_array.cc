// Arrays: a prefix, then items of one kind, with counts; `contains` as counters; `uniqueItems` by members in any order
// where the values are few, and by remembering items otherwise.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "grammar/json_emit.h"

namespace deepinfer::grammar {
namespace {

constexpr size_t kUniqueMax = 512;
constexpr size_t kContainsStatesMax = 20'000;
constexpr size_t kContainsMax = 4;

uint32_t clipped(int64_t n) { return n >= kUnbounded ? kUnbounded : static_cast<uint32_t>(n); }

}  // namespace

class ArrayEmitter {
 public:
  ArrayEmitter(JsonEmitter& emitter, const ArrayShape& shape)
      : e_(emitter), normal_(emitter.normal_), b_(emitter.b_), a_(shape) {}

  Expr run() {
    if (a_.unique == kNoNode || (a_.max && *a_.max <= 1)) return body();
    if (a_.contains.empty() && a_.prefix.empty()) {
      if (auto values = normal_.few_values(a_.rest, kUniqueMax)) return listed(*values);
    }
    const uint32_t enough = e_.normal_.builder().budget().limits().unique_items_max;
    uint32_t at_least = normal_.values_at_least(a_.rest, enough);
    if (a_.rest == kNothing || (a_.max && *a_.max <= static_cast<int64_t>(a_.prefix.size()))) at_least = kUnbounded;
    for (ConjId item : a_.prefix) at_least = std::min(at_least, normal_.values_at_least(item, enough));
    for (const ArrayShape::Contains& c : a_.contains) {
      const uint32_t counted =
          c.min > 1 ? normal_.values_at_least(normal_.conj_and(a_.rest, c.item), enough) : kUnbounded;
      if (counted >= c.min) continue;
      e_.refuse(a_.unique, "uniqueItems",
                fmt::format("needs {} different items for contains, and only {} are known to exist", c.min, counted));
      return b_.none();
    }
    if (a_.min > 1 && a_.min > at_least) {
      e_.refuse(
          a_.unique, "uniqueItems",
          fmt::format("needs {} different items, and only {} are known to exist in some place", a_.min, at_least));
      return b_.none();
    }
    unique_ = true;
    return b_.unique(body(), at_least);
  }

 private:
  Expr body() {
    if (a_.contains.empty()) return plain();
    if (a_.contains.size() > kContainsMax) {
      e_.refuse(a_.contains[0].node, "contains", "more than 4 of them about one array are not supported");
      return b_.none();
    }
    return counted();
  }

  Expr value(ConjId conj) { return unique_ ? b_.unique_item(e_.value(conj)) : e_.value(conj); }

  using State =
      std::vector<int64_t>;  // items written, then how many of each `contains`; both stop where more make no difference

  Expr rest_of(int64_t low, std::optional<int64_t> high, bool first) {
    if (high && *high < low) return b_.none();
    Expr item = value(a_.rest), more = b_.sequence({e_.parts_.comma(), item});
    if (!first) return b_.repeat(more, clipped(low), high ? clipped(*high) : kUnbounded);
    if (high && *high == 0) return b_.empty();
    Expr some = b_.sequence(
        {item, b_.repeat(more, clipped(std::max<int64_t>(low, 1) - 1), high ? clipped(*high - 1) : kUnbounded)});
    return low == 0 ? b_.optional(some) : some;
  }

  Expr plain() {
    const auto k = static_cast<int64_t>(a_.prefix.size());
    std::optional<int64_t> high = a_.max ? std::optional(*a_.max - k) : std::nullopt;
    Expr tail = high && *high < 0 ? b_.none() : rest_of(std::max<int64_t>(0, a_.min - k), high, k == 0);
    for (int64_t i = k; i-- > 0;) {
      Expr item = value(a_.prefix[static_cast<size_t>(i)]);
      if (i > 0) item = b_.sequence({e_.parts_.comma(), item});
      tail = b_.sequence({item, tail});
      if (i >= a_.min) tail = b_.optional(tail);
    }
    return tail;
  }

  Expr listed(const std::vector<const JsonValue*>& values) {
    std::vector<Expr> items;
    for (const JsonValue* v : values) items.push_back(e_.parts_.listed(*v));
    return b_.any_order(items, std::vector<bool>(items.size()), e_.parts_.comma(), b_.none(), clipped(a_.min),
                        a_.max ? clipped(*a_.max) : kUnbounded);
  }

  Expr counted() {
    const auto k = static_cast<int64_t>(a_.prefix.size());
    items_cap_ = std::max<int64_t>(k, a_.min);
    for (const ArrayShape::Contains& c : a_.contains) items_cap_ = std::max(items_cap_, c.from);
    if (a_.max) items_cap_ = *a_.max;
    items_cap_ = std::max<int64_t>(items_cap_, 1);
    Expr start = at(State(1 + a_.contains.size(), 0));
    while (!waiting_.empty()) {
      if (!normal_.status().ok() || !b_.ok()) return b_.none();
      if (rules_.size() > kContainsStatesMax) {
        e_.refuse(a_.contains[0].node, "contains", "together with these counts it needs too many states");
        return b_.none();
      }
      State state = waiting_.back();
      waiting_.pop_back();
      b_.define(rules_.at(state), step(state));
    }
    return start;
  }

  Expr at(const State& state) {
    auto it = rules_.find(state);
    if (it == rules_.end()) {
      it = rules_.emplace(state, b_.new_rule("items")).first;
      waiting_.push_back(state);
    }
    return b_.ref(it->second);
  }

  Expr step(const State& state) {
    std::vector<Expr> ways;
    bool complete = state[0] >= a_.min;
    for (size_t c = 0; c < a_.contains.size(); ++c) complete = complete && state[1 + c] >= a_.contains[c].min;
    if (complete) ways.push_back(b_.empty());
    if (a_.max && state[0] >= *a_.max) return b_.choice(ways);
    const bool in_prefix = state[0] < static_cast<int64_t>(a_.prefix.size());
    item(state, 0, in_prefix ? a_.prefix[static_cast<size_t>(state[0])] : a_.rest, state, ways);
    return b_.choice(ways);
  }

  // Adds the ways in which the next item is or is not one of those that each `contains` from c on counts.
  void item(const State& before, size_t c, ConjId conj, State after, std::vector<Expr>& ways) {
    if (conj == kNothing) return;
    if (c == a_.contains.size()) {
      after[0] = std::min(before[0] + 1, items_cap_);
      Expr written = value(conj);
      if (before[0] > 0) written = b_.sequence({e_.parts_.comma(), written});
      ways.push_back(b_.sequence({written, at(after)}));
      return;
    }
    const ArrayShape::Contains& k = a_.contains[c];
    if (before[0] < k.from) return item(before, c + 1, conj, after, ways);
    const int64_t cap = k.max ? *k.max + 1 : k.min;
    State counted = after;
    counted[1 + c] = std::min(after[1 + c] + 1, cap);
    if (!k.max || counted[1 + c] <= *k.max) item(before, c + 1, normal_.conj_and(conj, k.item), counted, ways);
    if (!k.max) return item(before, c + 1, conj, after, ways);  // not counting an item never hurts a lower bound
    if (k.item == kNothing) return item(before, c + 1, conj, after, ways);
    if (k.item == kAnything) return;
    const std::vector<Literal>& literals = normal_.literals(k.item);
    if (literals.size() != 1 || literals[0].is_value()) {
      e_.refuse(k.node, "contains", "the negation of this combination is not supported");
      return;
    }
    item(before, c + 1, normal_.conj_and(conj, Literal{literals[0].code ^ 1}), after, ways);
  }

  JsonEmitter& e_;
  Normaliser& normal_;
  GrammarBuilder& b_;
  const ArrayShape& a_;
  bool unique_ = false;
  int64_t items_cap_ = 1;
  std::map<State, Rule> rules_;
  std::vector<State> waiting_;
};

Expr JsonEmitter::array(const ArrayShape& shape) { return parts_.array(ArrayEmitter(*this, shape).run()); }

}  // namespace deepinfer::grammar
