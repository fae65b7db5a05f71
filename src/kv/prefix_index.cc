#include "kv/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace deepinfer::kv {

PrefixIndex::PrefixIndex(BlockPool& pool, PrefixIndexOptions options) : pool_(pool), options_(std::move(options)) {}

std::span<int32_t> PrefixIndex::tokens_of(int node) {
  return std::span<int32_t>(tokens_).subspan(static_cast<size_t>(node) * options_.block_tokens, options_.block_tokens);
}

double PrefixIndex::cost(const Node& n) const {
  const double context = static_cast<double>(n.depth) * options_.block_tokens;
  return 1.0 + context / options_.attention_tokens;
}

void PrefixIndex::touch(Node& n, double now_s, double ttl_s) {
  n.expires_s = std::max(n.expires_s, now_s + ttl_s);
  n.value = clock_ + cost(n);
}

PrefixIndex::Match PrefixIndex::match(std::span<const BlockKey> keys, std::span<const int32_t> tokens, double now_s,
                                      double ttl_s) {
  Match m;
  const auto block = static_cast<size_t>(options_.block_tokens);
  for (size_t i = 0; i < keys.size() && (i + 1) * block <= tokens.size(); ++i) {
    const auto it = by_key_.find(keys[i]);
    if (it == by_key_.end()) break;
    const int at = it->second;
    Node& n = nodes_[at];
    if (n.expires_s <= now_s) break;
    if (n.parent != m.node || !std::ranges::equal(tokens_of(at), tokens.subspan(i * block, block))) {
      ++counters_.token_mismatches;
      break;
    }
    const bool in_heap = n.heap_at >= 0;
    if (in_heap) heap_erase(at);
    touch(n, now_s, ttl_s);
    if (in_heap) heap_push(at);
    m = {at, m.blocks + 1};
  }
  return m;
}

void PrefixIndex::share_blocks(const Match& m, std::vector<int32_t>* table) {
  const size_t first = table->size();
  table->resize(first + m.blocks);
  size_t at = table->size();
  for (int n = m.node; n != kNoNode; n = nodes_[n].parent) {
    pool_.share(nodes_[n].block);
    (*table)[--at] = nodes_[n].block;
  }
  assert(at == first);
}

int PrefixIndex::new_node() {
  if (!unused_.empty()) {
    const int node = unused_.back();
    unused_.pop_back();
    return node;
  }
  nodes_.emplace_back();
  tokens_.resize(nodes_.size() * options_.block_tokens);
  return static_cast<int>(nodes_.size()) - 1;
}

int PrefixIndex::insert(int parent, const BlockKey& key, std::span<const int32_t> tokens, int block, double now_s,
                        double ttl_s) {
  if (options_.faults.fails(FaultPoint::kIndexInsert)) return kNoNode;
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    const int at = it->second;
    Node& n = nodes_[at];
    if (n.parent != parent || !std::ranges::equal(tokens_of(at), tokens)) {
      ++counters_.token_mismatches;
      return kNoNode;
    }
    const bool in_heap = n.heap_at >= 0;
    if (in_heap) heap_erase(at);
    touch(n, now_s, ttl_s);
    if (in_heap) heap_push(at);
    return at;
  }
  const int at = new_node();
  Node& n = nodes_[at];
  n = Node{};
  n.key = key;
  n.parent = parent;
  n.block = block;
  n.order = next_order_++;
  if (parent != kNoNode) {
    Node& p = nodes_[parent];
    n.depth = p.depth + 1;
    ++p.children;
    if (p.heap_at >= 0) heap_erase(parent);
  }
  std::ranges::copy(tokens, tokens_of(at).begin());
  touch(n, now_s, ttl_s);
  pool_.share(block);
  by_key_.emplace(key, at);
  heap_push(at);
  ++counters_.inserted;
  return at;
}

void PrefixIndex::move_hold(int node, int child) {
  assert(nodes_[child].parent == node);
  (void)node;
  Node& c = nodes_[child];
  if (c.locks++ == 0) {
    ++held_nodes_;
    if (c.heap_at >= 0) heap_erase(child);
  }
}

void PrefixIndex::hold(int node) {
  for (int at = node; at != kNoNode; at = nodes_[at].parent) move_hold(nodes_[at].parent, at);
}

void PrefixIndex::drop(int node) {
  for (int at = node; at != kNoNode; at = nodes_[at].parent) {
    Node& n = nodes_[at];
    assert(n.locks > 0);
    if (--n.locks > 0) continue;
    --held_nodes_;
    n.value = std::max(n.value, clock_ + cost(n));  // it was in use until now
    if (n.children == 0) heap_push(at);
  }
}

bool PrefixIndex::pin(const BlockKey& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return false;
  ++nodes_[it->second].pins;
  hold(it->second);
  return true;
}

bool PrefixIndex::unpin(const BlockKey& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end() || nodes_[it->second].pins == 0) return false;
  --nodes_[it->second].pins;
  drop(it->second);
  return true;
}

void PrefixIndex::remove(int node) {
  Node& n = nodes_[node];
  assert(n.children == 0 && n.locks == 0);
  if (n.heap_at >= 0) heap_erase(node);
  by_key_.erase(n.key);
  const int block = n.block, parent = n.parent;
  unused_.push_back(node);
  if (parent != kNoNode) {
    Node& p = nodes_[parent];
    if (--p.children == 0 && p.locks == 0) heap_push(parent);
  }
  pool_.release(block);
}

int PrefixIndex::evict(int wanted) {
  const int before = pool_.free_count();
  while (pool_.free_count() - before < wanted && !heap_.empty()) {
    const int node = heap_.front();
    clock_ = std::max(clock_, nodes_[node].value);
    remove(node);
    ++counters_.evicted;
  }
  return pool_.free_count() - before;
}

int PrefixIndex::expire(double now_s) {
  const int64_t before = counters_.expired;
  bool again = true;
  while (again) {  // a removed leaf may leave an expired parent as a leaf
    again = false;
    for (int at = 0; at < static_cast<int>(nodes_.size()); ++at) {
      if (nodes_[at].heap_at < 0 || nodes_[at].expires_s > now_s) continue;
      remove(at);
      ++counters_.expired;
      again = true;
    }
  }
  return static_cast<int>(counters_.expired - before);
}

bool PrefixIndex::before(int a, int b) const {
  const Node &x = nodes_[a], &y = nodes_[b];
  return x.value != y.value ? x.value < y.value : x.order < y.order;
}

void PrefixIndex::heap_push(int node) {
  nodes_[node].heap_at = static_cast<int>(heap_.size());
  heap_.push_back(node);
  heap_up(nodes_[node].heap_at);
}

void PrefixIndex::heap_erase(int node) {
  const int at = nodes_[node].heap_at, last = heap_.back();
  heap_.pop_back();
  nodes_[node].heap_at = -1;
  if (last == node) return;
  heap_[at] = last;
  nodes_[last].heap_at = at;
  heap_up(at);
  heap_down(nodes_[last].heap_at);
}

void PrefixIndex::heap_up(int at) {
  while (at > 0) {
    const int up = (at - 1) / 2;
    if (!before(heap_[at], heap_[up])) return;
    std::swap(heap_[at], heap_[up]);
    nodes_[heap_[at]].heap_at = at;
    nodes_[heap_[up]].heap_at = up;
    at = up;
  }
}

void PrefixIndex::heap_down(int at) {
  const int size = static_cast<int>(heap_.size());
  for (;;) {
    int first = at;
    for (int child = 2 * at + 1; child <= 2 * at + 2 && child < size; ++child) {
      if (before(heap_[child], heap_[first])) first = child;
    }
    if (first == at) return;
    std::swap(heap_[at], heap_[first]);
    nodes_[heap_[at]].heap_at = at;
    nodes_[heap_[first]].heap_at = first;
    at = first;
  }
}

}  // namespace deepinfer::kv
