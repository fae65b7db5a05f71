// The prefix cache in device memory: which blocks hold the KV of which chain of tokens (design.md 5 decision 2, and 6).
//
//   PrefixIndex index(blocks, {});
//   Match m = index.match(keys, tokens, now_s, ttl_s);      // m.blocks whole blocks; m.node is the deepest of them
//   index.hold(m.node);                                     // nothing of the chain leaves while a sequence uses it
//   index.share_blocks(m, &table);                         // block ids, first token first
//   ... after a step wrote block 5 ...
//   int n = index.insert(node4, keys[5], tokens5, block, now_s, ttl_s);
//   index.drop(node);
//
// A node is one block behind its parent's; the index is one holder of the block in the pool. Keys come from
// kv/cache_key.h and cover the whole chain; match() compares the tokens themselves as well, so a key alone never serves
// KV.
//
// Eviction (evict) takes leaves that nobody holds, lowest value first: value = clock at the last use + cost of
// computing the block's tokens again per byte, where the clock rises to the value of what was evicted (the "greedy
// dual" rule). Rows far into a long prompt cost more, since they attend to more. Ties go to the older node. Blocks are
// all of one size, so cost per byte is cost. Pinned and held chains never leave; expired ones are not matched and leave
// with expire().
//
// Not thread-safe. Costs: match and hold O(blocks of the chain), evict O(log nodes). The pool must outlive the index.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_key.h"
#include "kv/faults.h"

namespace deepinfer::kv {

inline constexpr int kNoNode = -1;

struct PrefixIndexOptions {
  int block_tokens = kBlockTokens;
  // Context length at which attention has doubled the cost of a row.
  double attention_tokens = 65536;
  Faults faults;
};

struct PrefixCounters {
  int64_t inserted = 0, evicted = 0, expired = 0;
  int64_t token_mismatches = 0;  // a key fitted and the tokens did not: never expected
};

class PrefixIndex {
 public:
  PrefixIndex(BlockPool& pool, PrefixIndexOptions options);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  struct Match {
    int node = kNoNode;
    int blocks = 0;
  };
  // The longest chain of whole blocks that is here. Marks it as used now and lets it live for ttl_s more seconds.
  Match match(std::span<const BlockKey> keys, std::span<const int32_t> tokens, double now_s, double ttl_s);
  // Block ids of a match, first token first; shared with the caller (one more holder each).
  void share_blocks(const Match& m, std::vector<int32_t>* table);

  // Adds a block of complete, written KV behind `parent` (kNoNode: the first block). Returns the node that stands for
  // the key: a new one, which now also holds `block`, or the one that was there before (`block` is then not taken).
  // kNoNode if a fault or another chain under the same key forbids it.
  int insert(int parent, const BlockKey& key, std::span<const int32_t> tokens, int block, double now_s, double ttl_s);

  // While held, a node and all before it stay. hold(kNoNode) does nothing.
  void hold(int node);
  void drop(int node);
  // Moves a hold one block on: `child` is behind `node` (or a first block, if node is kNoNode).
  void move_hold(int node, int child);

  // Pins the chain that ends with this key until unpin; false if it is not here. Pins count.
  bool pin(const BlockKey& key);
  bool unpin(const BlockKey& key);

  // Gives at least `wanted` blocks back to the pool if so many can leave; returns how many did.
  int evict(int wanted);
  // Drops what has passed its time. Linear in the number of nodes: call it now and then.
  int expire(double now_s);

  int size() const { return static_cast<int>(by_key_.size()); }
  // Blocks that evict() could give back now.
  int evictable() const { return size() - held_nodes_; }
  int block_of(int node) const { return nodes_[node].block; }
  const PrefixCounters& counters() const { return counters_; }

 private:
  struct Node {
    BlockKey key;
    int32_t parent = kNoNode;
    int32_t block = kNoBlock;
    int32_t children = 0;
    int32_t locks = 0;    // holds and pins on this node or on one behind it
    int32_t pins = 0;     // of this very node
    int32_t heap_at = -1;
    int32_t depth = 0;    // blocks before it
    uint64_t order = 0;   // of insertion
    double value = 0;
    double expires_s = 0;
  };

  std::span<int32_t> tokens_of(int node);
  int new_node();
  void remove(int node);
  void touch(Node& n, double now_s, double ttl_s);
  double cost(const Node& n) const;
  bool before(int a, int b) const;
  void heap_push(int node);
  void heap_erase(int node);
  void heap_up(int at);
  void heap_down(int at);

  BlockPool& pool_;
  const PrefixIndexOptions options_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;    // [nodes, block_tokens]
  std::vector<int32_t> unused_;    // free entries of nodes_
  std::vector<int32_t> heap_;      // leaves without locks, the first to leave in front
  std::unordered_map<BlockKey, int, BlockKeyHash> by_key_;  // looked up, never walked
  double clock_ = 0;
  uint64_t next_order_ = 0;
  int held_nodes_ = 0;
  PrefixCounters counters_;
};

}  // namespace deepinfer::kv
