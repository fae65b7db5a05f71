#include "grammar/machine.h"

#include <algorithm>

#include "grammar/symbol.h"

namespace deepinfer::grammar {
namespace {

constexpr uint64_t kMaskCacheBytes = 24 << 20;
constexpr int kUniteDepthMax = 2000;
constexpr uint32_t kExactDepthMax = 2000;

}  // namespace

Machine::Machine(Grammar::Impl& grammar, const Vocabulary::Impl& vocabulary, const Limits& limits)
    : grammar_(grammar),
      vocabulary_(vocabulary),
      limits_(limits),
      mark_(grammar.exprs.mark()),
      masks_of_(vocabulary, grammar.exprs.rx()) {
  const uint64_t mask_bytes = (vocabulary.entries.size() + 31) / 32 * sizeof(uint32_t);
  cache_max_ = std::max<uint64_t>(8, std::min(kMaskCacheBytes, limits.memory_bytes_max / 4) / mask_bytes);
  reset();
}

void Machine::reset() {
  if (!nodes_.empty()) grammar_.exprs.rewind(mark_);
  nodes_.clear();
  items_.clear();
  table_.assign(256, UINT32_MAX);
  steps_.clear();
  unions_.clear();
  firsts_.clear();
  local_index_.clear();
  local_of_.clear();
  locals_.clear();
  cache_.clear();
  cache_next_ = 0;
  unique_.clear();
  for (FlatMap* map : {&plain_of_, &blank_of_, &advanced_, &comma_tokens_of_}) map->clear();
  comma_tokens_.clear();
  stamp_ = 0;
  memory_ = 0;
  clear_error();
  find_or_add({});
  const Item end{kEndSymbol, kNodeDead};
  find_or_add({&end, 1});
}

void Machine::fail(Status status) {
  if (error_.ok()) error_ = std::move(status);
}

void Machine::charge(size_t items) {
  work_ += items;
  if (work_ > limits_.request_work_max) {
    fail(make_error(Code::kResourceExhausted,
                    "the grammar is too ambiguous here: one token takes more than {} steps (limit request_work_max)",
                    limits_.request_work_max));
  }
}

void Machine::clear_error() {
  error_ = {};
  work_ = 0;
  grammar_.exprs.rx().clear_error();
}

NodeId Machine::start() { return push(grammar_.root, true, kNodeEnd); }

// --- Nodes
// ---------------------------------------------------------------------------------------------------------------------

NodeId Machine::find_or_add(std::span<const Item> items) {
  charge(items.size());
  if (!error_.ok()) return kNodeDead;
  uint64_t h = items.size();
  for (const Item& i : items) h = mix_bits(h ^ (static_cast<uint64_t>(i.symbol) << 32 | i.rest));
  size_t slot = static_cast<uint32_t>(h >> 32) & (table_.size() - 1);
  for (; table_[slot] != UINT32_MAX; slot = (slot + 1) & (table_.size() - 1)) {
    const Node& n = nodes_[table_[slot]];
    if (n.hash == static_cast<uint32_t>(h >> 32) && n.count == items.size() &&
        std::equal(items.begin(), items.end(), items_.begin() + n.items))
      return table_[slot];
  }
  const auto id = static_cast<NodeId>(nodes_.size());
  Node node{static_cast<uint32_t>(items_.size()), static_cast<uint32_t>(items.size())};
  for (const Item& i : items) {
    if (i.symbol == kEndSymbol) continue;
    const Node& rest = nodes_[i.rest];
    node.depth = std::max(node.depth, rest.depth + 1);
    node.is_exact |= kind_of(i.symbol) >= SymbolKind::kUniqueExpr || rest.is_exact;
    node.has_set |= rest.has_set || kind_of(i.symbol) == SymbolKind::kItemSet;
    node.has_text |=
        rest.has_text || (kind_of(i.symbol) == SymbolKind::kItemText && index_of(i.symbol) != UniqueStore::kNoText);
  }
  if (node.is_exact && node.depth > kExactDepthMax) {
    fail(make_error(Code::kResourceExhausted, "an output with arrays of unique items nests deeper than {} levels",
                    kExactDepthMax));
    return kNodeDead;
  }
  if (node.depth > limits_.request_stack_max) {
    fail(make_error(Code::kResourceExhausted, "the output nests deeper than {} levels (limit request_stack_max)",
                    limits_.request_stack_max));
    return kNodeDead;
  }
  if (items.size() > limits_.request_items_max) {
    fail(make_error(Code::kResourceExhausted,
                    "the output can be read in more than {} ways at once (limit request_items_max)",
                    limits_.request_items_max));
    return kNodeDead;
  }
  if (memory_bytes() > 2 * limits_.memory_bytes_max) {
    fail(make_error(Code::kResourceExhausted,
                    "the constraint takes more than {} bytes of memory (limit memory_bytes_max)",
                    limits_.memory_bytes_max));
    return kNodeDead;
  }
  node.hash = static_cast<uint32_t>(h >> 32);
  table_[slot] = id;
  items_.insert(items_.end(), items.begin(), items.end());
  nodes_.push_back(node);
  memory_ += sizeof(Node) + 8 + items.size() * sizeof(Item);
  if (nodes_.size() * 2 > table_.size()) {
    table_.assign(table_.size() * 2, UINT32_MAX);
    for (NodeId k = 0; k < nodes_.size(); ++k) {
      size_t s = nodes_[k].hash & (table_.size() - 1);
      while (table_[s] != UINT32_MAX) s = (s + 1) & (table_.size() - 1);
      table_[s] = k;
    }
  }
  return id;
}

NodeId Machine::make_one(uint32_t symbol, NodeId rest) {
  const Item item{symbol, rest};
  return find_or_add({&item, 1});
}

// Sorts; items with the same symbol become one with their rests united.
void Machine::merge(Items& items) {
  if (items.size() < 2) return;
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.symbol != b.symbol ? a.symbol < b.symbol : a.rest < b.rest; });
  size_t kept = 0;
  for (size_t i = 0; i < items.size();) {
    size_t end = i + 1;
    while (end < items.size() && items[end].symbol == items[i].symbol) ++end;
    items[kept++] = {items[i].symbol, end == i + 1 ? items[i].rest : unite({items.data() + i, end - i})};
    i = end;
  }
  items.resize(kept);
}

NodeId Machine::make(Items& items) {
  merge(items);
  return find_or_add(items);
}

void Machine::append_raw(NodeId node, Items& to) {
  const Node& n = nodes_[node];
  to.insert(to.end(), items_.begin() + n.items, items_.begin() + n.items + n.count);
}

uint32_t Machine::next_stamp() {
  if (++stamp_ == 0) {
    for (Node& n : nodes_) n.visit = n.popped = 0;
    stamp_ = 1;
  }
  return stamp_;
}

bool Machine::surely_nullable(uint32_t symbol) const {
  if (kind_of(symbol) == SymbolKind::kState) return grammar_.exprs.rx().nullable(symbol);
  if (kind_of(symbol) != SymbolKind::kExpr && kind_of(symbol) != SymbolKind::kUniqueExpr) return false;
  const ExprNode& n = grammar_.exprs.node(index_of(symbol));
  return n.kind == ExprKind::kRepeat && n.b == 0;
}

// Drops positions to which another one leads without any text: what fits there fits there too. Otherwise the readings
// of an ambiguous text would pile up.
void Machine::drop_covered(std::vector<NodeId>& rests) {
  const uint32_t stamp = next_stamp();
  for (size_t i = rests.size(); i-- > 0;) {
    if (nodes_[rests[i]].visit == stamp) continue;
    std::vector<NodeId> stack{rests[i]};
    while (!stack.empty()) {
      const Node n = nodes_[stack.back()];
      stack.pop_back();
      charge(n.count);
      for (uint32_t k = n.items; k < n.items + n.count; ++k) {
        const NodeId rest = items_[k].rest;
        if (!surely_nullable(items_[k].symbol) || nodes_[rest].visit == stamp) continue;
        nodes_[rest].visit = stamp;
        stack.push_back(rest);
      }
    }
  }
  std::erase_if(rests, [&](NodeId rest) { return nodes_[rest].visit == stamp; });
}

// The union of the rests of items with one symbol (sorted by rest).
NodeId Machine::unite(std::span<const Item> same_symbol) {
  const NodeId first = same_symbol.front().rest, last = same_symbol.back().rest;
  if (first == last) return first;
  const bool pair = same_symbol.size() == 2;
  const uint64_t key = static_cast<uint64_t>(first) << 32 | last;
  if (pair) {
    if (const uint32_t* known = unions_.find(key)) return *known;
  }
  if (depth_ > kUniteDepthMax) {
    fail(make_error(Code::kResourceExhausted, "the output can be read in too many ways that stay apart for too long"));
    return kNodeDead;
  }
  ++depth_;
  std::vector<NodeId> rests;
  for (const Item& i : same_symbol) {
    if (rests.empty() || rests.back() != i.rest) rests.push_back(i.rest);
  }
  drop_covered(rests);
  NodeId made = rests[0];
  if (rests.size() > 1) {
    Items items;
    for (NodeId rest : rests) append_raw(rest, items);
    made = make(items);
  }
  --depth_;
  if (pair && error_.ok()) {
    unions_[key] = made;
    memory_ += 24;
  }
  return made;
}

uint32_t Machine::symbol_of(ExprId e, bool exact) const {
  return exact && grammar_.exprs.node(e).has_unique ? unique_symbol(e) : expr_symbol(e);
}

NodeId Machine::push(ExprId e, bool exact, NodeId rest) {
  if (e == kExprEmpty) return rest;
  if (e == kExprNone) return kNodeDead;
  const ExprNode& n = grammar_.exprs.node(e);
  if (n.kind == ExprKind::kRx) return make_one(state_symbol(n.a), rest);
  return make_one(symbol_of(e, exact), rest);
}

// Replaces an expression by what it starts with. Rules never come back to the same place without a byte (left recursion
// was removed), so this ends.
void Machine::expand(ExprId e, bool exact, NodeId rest, Items& to) {
  const ExprNode n = grammar_.exprs.node(e);
  auto add = [&](ExprId part, NodeId behind) {
    if (part == kExprNone) return;
    if (part == kExprEmpty) {
      append_raw(behind, to);
      return;
    }
    const ExprNode& p = grammar_.exprs.node(part);
    to.push_back({p.kind == ExprKind::kRx      ? state_symbol(p.a)
                  : p.kind == ExprKind::kToken ? token_symbol(p.a)
                                               : symbol_of(part, exact),
                  behind});
  };
  switch (n.kind) {
    case ExprKind::kNone:
      break;
    case ExprKind::kEmpty:
    case ExprKind::kRx:
    case ExprKind::kToken:
      add(e, rest);
      break;
    case ExprKind::kSequence:
      add(n.a, push(n.b, exact, rest));
      break;
    case ExprKind::kChoice:
      for (uint32_t i = 0; i < n.b; ++i) add(grammar_.exprs.list(n)[i], rest);
      break;
    case ExprKind::kRepeat: {
      const uint32_t min = n.b == 0 ? 0 : n.b - 1, max = n.c == kRxUnbounded ? n.c : n.c - 1;
      if (n.b == 0) append_raw(rest, to);
      add(n.a, push(grammar_.exprs.repeat(n.a, min, max), exact, rest));
      break;
    }
    case ExprKind::kRule:
      add(grammar_.rules[n.a].body, rest);
      break;
    case ExprKind::kAnyOrder:
      expand_any_order(n, exact, rest, to);
      break;
    case ExprKind::kUnique:
      add(n.a, exact ? make_one(set_symbol(unique_.empty_set(n.b)), rest) : rest);
      break;
    case ExprKind::kUniqueItem:
      add(n.a, exact ? make_one(text_symbol(UniqueStore::kEmptyText), rest) : rest);
      break;
  }
}

void Machine::expand_any_order(const ExprNode& n, bool exact, NodeId rest, Items& to) {
  const AnyOrder& d = grammar_.exprs.definition(n.a);
  const std::span<const uint64_t> set = grammar_.exprs.item_set(n);
  std::vector<uint64_t> unused(set.begin(), set.end());
  uint32_t must = 0;
  for (size_t w = 0; w < unused.size(); ++w) must += static_cast<uint32_t>(std::popcount(unused[w] & d.required[w]));
  const uint32_t written = n.d;
  if (must == 0 && written >= d.min) append_raw(rest, to);
  // Room must stay for the required ones.
  const auto room = d.max == kRxUnbounded ? kRxUnbounded : d.max - written;
  if (room == 0) return;
  // Counts that no longer matter are not told apart.
  const bool count = d.max != kRxUnbounded || written < d.min;
  const uint32_t next = count ? written + 1 : std::max(1u, d.min);
  Items items;
  for (size_t i = 0; i < d.items.size(); ++i) {
    const uint64_t bit = 1ull << (i % 64);
    if (!(unused[i / 64] & bit) || d.items[i] == kExprNone || (!d.is_required(i) && room <= must)) continue;
    unused[i / 64] &= ~bit;
    const NodeId behind = push(grammar_.exprs.any_order_state(n.a, unused, next), exact, rest);
    unused[i / 64] |= bit;
    items.push_back({symbol_of(d.items[i], exact), behind});
  }
  if (d.others != kExprNone && room > must) {
    items.push_back({symbol_of(d.others, exact), push(grammar_.exprs.any_order_state(n.a, unused, next), exact, rest)});
  }
  if (items.empty()) return;
  if (written == 0 || d.separator == kExprEmpty) {
    to.insert(to.end(), items.begin(), items.end());
  } else {
    to.push_back({expr_symbol(d.separator), make(items)});
  }
}

void Machine::open(NodeId node) {
  if (nodes_[node].is_open) return;
  Items pending, done;
  append_raw(node, pending);
  const uint32_t stamp = next_stamp();
  nodes_[node].popped = stamp;
  bool accepts = false;
  // Rounds: all readings of one expression are merged before it is opened, so that their number stays polynomial.
  while (!pending.empty() && error_.ok()) {
    charge(pending.size());
    merge(pending);
    Items next;
    for (const Item& item : pending) {
      switch (kind_of(item.symbol)) {
        case SymbolKind::kEnd:
          accepts = true;
          break;
        case SymbolKind::kToken:
          done.push_back(item);
          break;
        case SymbolKind::kExpr:
        case SymbolKind::kUniqueExpr:
          expand(index_of(item.symbol), kind_of(item.symbol) == SymbolKind::kUniqueExpr, item.rest, next);
          break;
        case SymbolKind::kItemText:
          append_raw(finish_item(item.rest, index_of(item.symbol)), next);
          break;
        case SymbolKind::kItemSet:
          append_raw(item.rest, next);
          break;
        case SymbolKind::kState:
          if (item.symbol != kRxEmpty) done.push_back(item);
          if (grammar_.exprs.rx().nullable(item.symbol)) {
            Node& rest = nodes_[item.rest];
            if (rest.is_open) {
              accepts |= rest.accepts;
              done.insert(done.end(), items_.begin() + rest.open, items_.begin() + rest.open + rest.open_count);
            } else if (rest.popped != stamp) {
              rest.popped = stamp;
              append_raw(item.rest, next);
            }
          }
          break;
      }
    }
    if (next.size() > limits_.request_items_max) {
      fail(make_error(Code::kResourceExhausted,
                      "the output can be read in more than {} ways at once (limit request_items_max)",
                      limits_.request_items_max));
    }
    pending.swap(next);
  }
  merge(done);
  if (!error_.ok()) return;
  Node& n = nodes_[node];
  n.open = static_cast<uint32_t>(items_.size());
  n.open_count = static_cast<uint32_t>(done.size());
  items_.insert(items_.end(), done.begin(), done.end());
  memory_ += done.size() * sizeof(Item);
  n.accepts = accepts;
  n.is_open = true;
}

std::span<const Machine::Item> Machine::open_items(NodeId node) {
  open(node);
  const Node& n = nodes_[node];
  if (!n.is_open) return {};
  return {items_.data() + n.open, n.open_count};
}

bool Machine::accepts(NodeId node) {
  open(node);
  return nodes_[node].is_open && nodes_[node].accepts;
}

bool Machine::has_tokens(NodeId node) {
  for (const Item& i : open_items(node)) {
    if (kind_of(i.symbol) == SymbolKind::kToken) return true;
  }
  return false;
}

NodeId Machine::step(NodeId node, uint8_t byte) {
  const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
  if (const uint32_t* known = steps_.find(key)) return *known;
  NodeId to = step_slow(node, byte);
  if (nodes_[to].is_exact && !is_live(to)) to = kNodeDead;
  if (!error_.ok()) return kNodeDead;
  steps_[key] = to;
  memory_ += 24;
  return to;
}

NodeId Machine::step_slow(NodeId node, uint8_t byte) {
  RxArena& rx = grammar_.exprs.rx();
  open(node);
  Items items;
  const uint32_t begin = nodes_[node].open, count = nodes_[node].is_open ? nodes_[node].open_count : 0;
  for (uint32_t i = 0; i < count; ++i) {
    const Item item = items_[begin + i];
    if (kind_of(item.symbol) != SymbolKind::kState) continue;
    const uint32_t next = rx.step(item.symbol, byte) >> 1;
    if (next == kRxNone) continue;
    const NodeId rest = nodes_[item.rest].has_text ? advance(item.rest, byte) : item.rest;
    if (rest == kNodeDead) continue;
    if (next == kRxEmpty) {
      append_raw(rest, items);
    } else {
      items.push_back({state_symbol(next), rest});
    }
  }
  if (rx.error()) {
    fail(make_error(Code::kResourceExhausted,
                    "a condition on a string takes too many states to decide (limit {}); make it simpler",
                    kRxSearchStatesMax));
  }
  return make(items);
}

NodeId Machine::step_token(NodeId node, uint32_t token) {
  for (const Item& i : open_items(node)) {
    if (i.symbol == token_symbol(token)) return i.rest;
  }
  return kNodeDead;
}

const ByteSet& Machine::first(NodeId node) {
  if (nodes_[node].first == 0) {
    ByteSet set;
    open(node);
    const uint32_t begin = nodes_[node].open, count = nodes_[node].is_open ? nodes_[node].open_count : 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t symbol = items_[begin + i].symbol;
      if (kind_of(symbol) == SymbolKind::kState) set = set | grammar_.exprs.rx().first(symbol);
    }
    firsts_.push_back(set);
    memory_ += sizeof(ByteSet);
    if (!error_.ok()) return firsts_.back();
    nodes_[node].first = static_cast<uint32_t>(firsts_.size());
  }
  return firsts_[nodes_[node].first - 1];
}

}  // namespace deepinfer::grammar
