#include "grammar/expr.h"

#include <algorithm>
#include <bit>

namespace deepinfer::grammar {

ExprArena::ExprArena() {
  table_.assign(256, UINT32_MAX);
  intern({ExprKind::kNone});
  intern({ExprKind::kEmpty});
}

uint64_t ExprArena::hash(const ExprNode& n) const {
  uint64_t h = static_cast<uint64_t>(n.kind) * 0x9e3779b97f4a7c15ull;
  if (n.kind == ExprKind::kChoice) {
    for (ExprId id : list(n)) h = mix_bits(h ^ (id + 0x9e3779b97f4a7c15ull));
    return h;
  }
  h = mix_bits(h ^ (static_cast<uint64_t>(n.a) << 32 | n.b));
  return mix_bits(h ^ (static_cast<uint64_t>(n.c) << 32 | n.d));
}

void ExprArena::rebuild_table(size_t size) {
  table_.assign(size, UINT32_MAX);
  for (ExprId id = 0; id < nodes_.size(); ++id) {
    size_t i = hash(nodes_[id]) & (size - 1);
    while (table_[i] != UINT32_MAX) i = (i + 1) & (size - 1);
    table_[i] = id;
  }
}

ExprId ExprArena::intern(const ExprNode& n) {
  const bool is_list = n.kind == ExprKind::kChoice;
  size_t i = hash(n) & (table_.size() - 1);
  for (; table_[i] != UINT32_MAX; i = (i + 1) & (table_.size() - 1)) {
    const ExprNode& o = nodes_[table_[i]];
    if (o.kind != n.kind) continue;
    if (is_list ? std::ranges::equal(list(o), list(n)) : o.a == n.a && o.b == n.b && o.c == n.c && o.d == n.d) {
      if (is_list) lists_.resize(n.a);  // the list was appended for the comparison
      return table_[i];
    }
  }
  const ExprId id = static_cast<ExprId>(nodes_.size());
  table_[i] = id;
  nodes_.push_back(n);
  memory_ += sizeof(ExprNode) + 16 + (is_list ? n.b * sizeof(ExprId) : 0);
  if (nodes_.size() * 2 > table_.size()) rebuild_table(table_.size() * 2);
  return id;
}

ExprId ExprArena::regular(RxId r) {
  if (r == kRxNone) return kExprNone;
  if (r == kRxEmpty) return kExprEmpty;
  return intern({ExprKind::kRx, false, false, r});
}

ExprId ExprArena::token(uint32_t id) { return intern({ExprKind::kToken, false, false, id}); }

ExprId ExprArena::sequence(ExprId head, ExprId tail) {
  if (head == kExprNone || tail == kExprNone) return kExprNone;
  if (head == kExprEmpty) return tail;
  if (tail == kExprEmpty) return head;
  // the list leans to the right; without recursion, since it may be long
  if (nodes_[head].kind == ExprKind::kSequence) {
    std::vector<ExprId> parts;
    for (; nodes_[head].kind == ExprKind::kSequence; head = nodes_[head].b) parts.push_back(nodes_[head].a);
    ExprId e = sequence(head, tail);
    for (size_t i = parts.size(); i-- > 0;) e = sequence(parts[i], e);
    return e;
  }
  const ExprNode &h = nodes_[head], &t = nodes_[tail];
  return intern({ExprKind::kSequence, h.has_rule || t.has_rule, h.has_unique || t.has_unique, head, tail});
}

ExprId ExprArena::sequence(std::span<const ExprId> parts) {
  ExprId e = kExprEmpty;
  for (size_t i = parts.size(); i-- > 0;) {
    const ExprNode n = nodes_[parts[i]], m = nodes_[e];  // copies: new expressions move the old ones
    const ExprId next = m.kind == ExprKind::kSequence ? m.a : e;
    const ExprNode o = nodes_[next];
    // Two literals side by side become one.
    if (n.kind == ExprKind::kRx && o.kind == ExprKind::kRx && rx_.node(n.a).kind == RxKind::kLiteral &&
        rx_.node(o.a).kind == RxKind::kLiteral) {
      const ExprId joined = regular(rx_.literal(rx_.literal_bytes(n.a) + rx_.literal_bytes(o.a)));
      e = m.kind == ExprKind::kSequence ? sequence(joined, m.b) : joined;
    } else {
      e = sequence(parts[i], e);
    }
  }
  return e;
}

ExprId ExprArena::choice(std::span<const ExprId> input) {
  std::vector<ExprId> parts;
  parts.reserve(input.size());
  for (ExprId e : input) {
    if (e == kExprNone) continue;
    const ExprNode& n = nodes_[e];
    if (n.kind == ExprKind::kChoice) parts.insert(parts.end(), list(n).begin(), list(n).end());
    else parts.push_back(e);
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  // Literals side by side become one set of strings.
  auto is_literal = [this](ExprId e) {
    return nodes_[e].kind == ExprKind::kRx && rx_.node(nodes_[e].a).kind == RxKind::kLiteral;
  };
  if (std::count_if(parts.begin(), parts.end(), is_literal) > 1) {
    std::vector<std::string> values;
    for (ExprId e : parts) {
      if (is_literal(e)) values.push_back(rx_.literal_bytes(nodes_[e].a));
    }
    std::erase_if(parts, is_literal);
    parts.push_back(regular(rx_.strings(std::move(values))));
  }
  if (parts.empty()) return kExprNone;
  if (parts.size() == 1) return parts[0];
  bool has_rule = false, has_unique = false;
  for (ExprId e : parts) {
    has_rule |= nodes_[e].has_rule;
    has_unique |= nodes_[e].has_unique;
  }
  const auto begin = static_cast<uint32_t>(lists_.size());
  lists_.insert(lists_.end(), parts.begin(), parts.end());
  return intern({ExprKind::kChoice, has_rule, has_unique, begin, static_cast<uint32_t>(parts.size())});
}

ExprId ExprArena::repeat(ExprId a, uint32_t min, uint32_t max) {
  if (max == 0 || a == kExprEmpty) return kExprEmpty;
  if (max < min) return kExprNone;
  if (a == kExprNone) return min == 0 ? kExprEmpty : kExprNone;
  if (min == 1 && max == 1) return a;
  const ExprNode n = nodes_[a];
  if (n.kind == ExprKind::kRepeat && ((n.b <= 1 && n.c == kRxUnbounded) || (min == 0 && max == 1 && n.b <= 1))) {
    // (x*){m,n} and (x+){m,n}, (x{0,n})? and (x{1,n})?
    if (n.c == kRxUnbounded) return repeat(n.a, n.b == 0 ? 0 : min, kRxUnbounded);
    return repeat(n.a, 0, n.c);
  }
  return intern({ExprKind::kRepeat, n.has_rule, n.has_unique, a, min, max});
}

ExprId ExprArena::rule(uint32_t rule) { return intern({ExprKind::kRule, true, false, rule}); }

ExprId ExprArena::unique(ExprId body, uint32_t values_at_least) {
  if (body == kExprNone || body == kExprEmpty) return body;
  return intern({ExprKind::kUnique, nodes_[body].has_rule, true, body, values_at_least});
}

ExprId ExprArena::unique_item(ExprId item) {
  if (item == kExprNone || item == kExprEmpty) return item;
  return intern({ExprKind::kUniqueItem, nodes_[item].has_rule, true, item});
}

void ExprArena::mark_unique(ExprId e) {
  nodes_[e].has_unique = true;
  if (nodes_[e].kind == ExprKind::kAnyOrder) any_orders_[nodes_[e].a].has_unique = true;
}

uint32_t AnyOrder::required_count() const {
  uint32_t count = 0;
  for (uint64_t word : required) count += static_cast<uint32_t>(std::popcount(word));
  return count;
}

ExprId ExprArena::any_order(AnyOrder definition) {
  const size_t count = definition.items.size();
  definition.required.resize(std::max<size_t>(1, (count + 63) / 64));
  std::vector<uint64_t> all(definition.required.size());
  for (size_t i = 0; i < count; ++i) all[i / 64] |= 1ull << (i % 64);
  for (ExprId item : definition.items) definition.has_unique |= nodes_[item].has_unique;
  definition.has_unique |= nodes_[definition.others].has_unique;
  memory_ += sizeof(AnyOrder) + count * sizeof(ExprId);
  any_orders_.push_back(std::move(definition));
  return any_order_state(static_cast<uint32_t>(any_orders_.size() - 1), all, 0);
}

ExprId ExprArena::any_order_state(uint32_t definition, std::span<const uint64_t> unused, uint32_t written) {
  uint64_t h = unused.size();
  for (uint64_t word : unused) h = mix_bits(h ^ word) + word;
  size_t at = 0;
  for (;; h = mix_bits(h + 1)) {
    if (h == FlatMap::kNoKey) continue;
    uint32_t& place = item_set_of_[h];
    if (place == 0) {
      at = item_sets_.size();
      place = static_cast<uint32_t>(at) + 1;
      item_sets_.insert(item_sets_.end(), unused.begin(), unused.end());
      memory_ += unused.size_bytes() + 16;
      break;
    }
    at = place - 1;
    if (at + unused.size() <= item_sets_.size() &&
        std::equal(unused.begin(), unused.end(), item_sets_.begin() + static_cast<long>(at)))
      break;
  }
  return intern({ExprKind::kAnyOrder, true, any_orders_[definition].has_unique, definition, static_cast<uint32_t>(at),
                 0, written});
}

void ExprArena::copy(const ExprArena& other, const Mark& mark) {
  rx_.copy(other.rx_, mark.rx);
  nodes_ = other.nodes_;
  table_ = other.table_;
  lists_ = other.lists_;
  any_orders_ = other.any_orders_;
  item_sets_ = other.item_sets_;
  rewind(mark);
}

void ExprArena::rewind(const Mark& mark) {
  nodes_.resize(mark.nodes);
  lists_.resize(mark.lists);
  item_sets_.resize(mark.item_sets);
  item_set_of_.clear();
  memory_ =
      nodes_.size() * (sizeof(ExprNode) + 16) + lists_.size() * sizeof(ExprId) + item_sets_.size() * sizeof(uint64_t);
  rebuild_table(table_.size());
  rx_.rewind(mark.rx);
}

}  // namespace deepinfer::grammar
