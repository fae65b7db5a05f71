// The masks of positions: the cached masks of regular states, and behind the places where these may end, the tokens
// that go on.
#include <algorithm>

#include "grammar/machine.h"
#include "grammar/symbol.h"

namespace deepinfer::grammar {

void Machine::fill_mask(NodeId node, std::span<uint32_t> mask) {
  if (nodes_[node].is_exact) {
    const NodeId any_items = plain(node);
    if (error_.ok()) fill_mask(any_items, mask);
    if (error_.ok()) remove_repeats(node, mask);
    return;
  }
  if (nodes_[node].mask != 0) {
    const auto& words = cache_[nodes_[node].mask - 1].words;
    std::copy(words.begin(), words.end(), mask.begin());
    return;
  }
  std::fill(mask.begin(), mask.end(), 0u);
  compute_mask(node, mask);
  if (!error_.ok()) return;
  if (cache_.size() < cache_max_) {
    cache_next_ = cache_.size();
    cache_.emplace_back();
    memory_ += mask.size_bytes();
  }
  CachedMask& slot = cache_[cache_next_];
  if (slot.owner != kNodeDead) nodes_[slot.owner].mask = 0;
  slot.owner = node;
  slot.words.assign(mask.begin(), mask.end());
  nodes_[node].mask = static_cast<uint32_t>(cache_next_) + 1;
  cache_next_ = (cache_next_ + 1) % cache_max_;
}

void Machine::compute_mask(NodeId node, std::span<uint32_t> mask) {
  open(node);
  const uint32_t begin = nodes_[node].open, count = nodes_[node].is_open ? nodes_[node].open_count : 0;
  for (uint32_t i = 0; i < count && error_.ok(); ++i) {
    const Item item = items_[begin + i];
    if (kind_of(item.symbol) == SymbolKind::kToken) {
      const uint32_t token = index_of(item.symbol);
      if (token < vocabulary_.entries.size()) mask[token >> 5] |= 1u << (token & 31);
    } else {
      add_state(item.symbol, item.rest, mask);
    }
  }
}

LocalMask& Machine::local(RxId state, int part) {
  if (state >= local_index_.size()) local_index_.resize(std::max<size_t>(state + 1, local_index_.size() * 2));
  const uint32_t index = local_index_[state][static_cast<size_t>(part)];
  return index != 0 ? *locals_[index - 1] : make_local(state, part);
}

LocalMask& Machine::make_local(RxId state, int part) {
  RxArena& rx = grammar_.exprs.rx();
  const RxId cut = rx.truncate(state, kPartLength[part]);
  uint32_t& index = local_of_[static_cast<uint64_t>(cut) << 2 | static_cast<uint64_t>(part)];
  if (index == 0) {
    locals_.push_back(std::make_unique<LocalMask>());
    index = static_cast<uint32_t>(locals_.size());
    LocalMask& made = *locals_.back();
    if (cut < RxBase::get().size) made = vocabulary_.base[cut * kParts + static_cast<size_t>(part)];
    else made = masks_of_.make(cut, part);
    memory_ += made.memory_bytes();
    if (rx.error())
      fail(make_error(Code::kResourceExhausted,
                      "a condition on a string is too deep or takes too many states (limit {})", kRxSearchStatesMax));
  }
  local_index_[state][static_cast<size_t>(part)] = index;
  return *locals_[index - 1];
}

void Machine::set_tokens(int32_t token, std::span<uint32_t> mask) {
  if (!vocabulary_.has_same) {
    mask[static_cast<uint32_t>(token) >> 5] |= 1u << (token & 31);
    return;
  }
  for (auto t = static_cast<uint32_t>(token); t != Vocabulary::Impl::kNoToken; t = vocabulary_.next_same[t]) {
    mask[t >> 5] |= 1u << (t & 31);
  }
}

void Machine::add_state(RxId state, NodeId rest, std::span<uint32_t> mask) {
  constexpr uint64_t kTrieNodesPerItem = 8, kWordsPerItem = 256;
  charge(masks_of_.take_walked() / kTrieNodesPerItem + 1);
  for (int part = 0; part < kParts; ++part) {
    if (vocabulary_.parts[part].nodes.empty()) continue;
    LocalMask& m = local(state, part);
    if (m.is_dense) {
      charge(mask.size() / kWordsPerItem);
      for (size_t w = 0; w < mask.size(); ++w) mask[w] |= m.words[w];
    } else {
      for (uint32_t t : m.tokens) mask[t >> 5] |= 1u << (t & 31);
    }
    if (!m.has_exits || rest == kNodeEnd) continue;
    const ByteSet next = first(rest);
    if ((next & ~m.looked_for) != ByteSet{}) {
      memory_ -= m.memory_bytes();
      masks_of_.look_for(part, next, m);
      memory_ += m.memory_bytes();
    }
    for (const LocalMask::Group& g : m.groups) {
      if (!next.has(g.byte)) continue;
      const NodeId to = step(rest, g.byte);
      if (to == kNodeDead) continue;
      const Trie& trie = *g.trie;
      for (uint32_t i = g.begin; i < g.end; ++i) {
        const Trie::Node& n = trie.nodes[m.exit_nodes[i]];
        if (n.token >= 0) set_tokens(n.token, mask);
        if (n.end > m.exit_nodes[i] + 1) walk_below(trie, m.exit_nodes[i], to, mask);
      }
    }
  }
}

// Adds the tokens below a trie node that fit at a position.
void Machine::walk_below(const Trie& trie, uint32_t trie_node, NodeId node, std::span<uint32_t> mask) {
  open(node);
  const uint32_t begin = nodes_[node].open, count = nodes_[node].is_open ? nodes_[node].open_count : 0;
  const Trie::Node top = trie.nodes[trie_node];
  charge(1);
  for (uint32_t i = 0; i < count && error_.ok(); ++i) {
    const Item item = items_[begin + i];
    if (kind_of(item.symbol) != SymbolKind::kState) continue;
    const size_t mark = exits_.size();
    masks_of_.walk(trie, trie_node + 1, top.end, top.depth, item.symbol,
                   [&](const Trie::Node& n) { set_tokens(n.token, mask); },
                   [&](uint32_t index, const Trie::Node&) { exits_.emplace_back(index, item.rest); });
    if (exits_.size() > mark && item.rest != kNodeEnd) {
      const ByteSet next = first(item.rest);
      for (size_t k = mark; k < exits_.size(); ++k) {
        const uint32_t at = exits_[k].first;
        for (uint32_t c = at + 1; c < trie.nodes[at].end; c = trie.nodes[c].end) {
          if (!next.has(trie.nodes[c].byte)) continue;
          const NodeId to = step(item.rest, trie.nodes[c].byte);
          if (to == kNodeDead) continue;
          if (trie.nodes[c].token >= 0) set_tokens(trie.nodes[c].token, mask);
          if (trie.nodes[c].end > c + 1) walk_below(trie, c, to, mask);
        }
      }
    }
    exits_.resize(mark);
  }
}

}  // namespace deepinfer::grammar
