// The prefix index: matching, comparison of tokens, holds and pins, time to live, order of eviction.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kv/prefix_index.h"

namespace deepinfer::kv {
namespace {

constexpr int kBlock = 4;

class Cache {
 public:
  explicit Cache(int blocks, PrefixIndexOptions options = {.block_tokens = kBlock})
      : pool(blocks), index(pool, options) {}

  std::vector<BlockKey> keys(std::span<const int32_t> tokens) const {
    std::vector<BlockKey> out;
    for (size_t i = 0; i + kBlock <= tokens.size(); i += kBlock)
      out.push_back(next_key(out.empty() ? BlockKey{} : out.back(), tokens.subspan(i, kBlock), {}));
    return out;
  }
  // A sequence computes all whole blocks and ends; returns their blocks, deepest node last.
  std::vector<int> add(std::span<const int32_t> tokens, double now = 0, double ttl = 1e9) {
    const auto k = keys(tokens);
    std::vector<int> nodes;
    int parent = kNoNode;
    for (size_t i = 0; i < k.size(); ++i) {
      int block = pool.take();
      if (block == kNoBlock && index.evict(1) > 0) block = pool.take();
      EXPECT_NE(block, kNoBlock);
      const int node = index.insert(parent, k[i], tokens.subspan(i * kBlock, kBlock), block, now, ttl);
      index.move_hold(parent, node);
      pool.release(block);
      nodes.push_back(parent = node);
    }
    index.drop(parent);
    return nodes;
  }
  int hit(std::span<const int32_t> tokens, double now = 0, double ttl = 1e9) {
    return index.match(keys(tokens), tokens, now, ttl).blocks;
  }

  BlockPool pool;
  PrefixIndex index;
};

std::vector<int32_t> run_of(int first, int count) {
  std::vector<int32_t> t(count);
  std::iota(t.begin(), t.end(), first);
  return t;
}

TEST(PrefixIndex, MatchesWholeBlocksOfTheSharedPrefix) {
  Cache c(16);
  std::vector<int32_t> a = run_of(0, 14);
  c.add(a);  // three whole blocks
  EXPECT_EQ(c.index.size(), 3);
  EXPECT_EQ(c.hit(a), 3);
  EXPECT_EQ(c.hit(std::span(a).first(11)), 2);
  EXPECT_EQ(c.hit(std::span(a).first(3)), 0);
  for (int at = 0; at < 12; ++at) {
    std::vector<int32_t> b = a;
    b[at] = 999;
    EXPECT_EQ(c.hit(b), at / kBlock) << at;
  }
}

TEST(PrefixIndex, AKeyWithOtherTokensIsAMiss) {
  Cache c(8);
  const std::vector<int32_t> a = run_of(0, 8), b = run_of(100, 8);
  c.add(a);
  // b under a's keys: what a collision of keys would look like.
  EXPECT_EQ(c.index.match(c.keys(a), b, 0, 1).blocks, 0);
  EXPECT_EQ(c.index.counters().token_mismatches, 1);
  const int block = c.pool.take();
  EXPECT_EQ(c.index.insert(kNoNode, c.keys(a)[0], std::span(b).first(kBlock), block, 0, 1), kNoNode);
  EXPECT_EQ(c.pool.holders(block), 1);
}

TEST(PrefixIndex, SharesBlocksInOrder) {
  Cache c(8);
  const std::vector<int32_t> a = run_of(0, 12);
  const std::vector<int> nodes = c.add(a);
  const PrefixIndex::Match m = c.index.match(c.keys(a), a, 0, 1);
  std::vector<int32_t> table{77};
  c.index.share_blocks(m, &table);
  ASSERT_EQ(table.size(), 4u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(table[i + 1], c.index.block_of(nodes[i]));
    EXPECT_EQ(c.pool.holders(table[i + 1]), 2);
  }
}

TEST(PrefixIndex, HeldAndPinnedChainsStay) {
  Cache c(6);
  const std::vector<int32_t> a = run_of(0, 8), b = run_of(50, 8), d = run_of(90, 8);
  c.add(a);
  c.add(b);
  const PrefixIndex::Match m = c.index.match(c.keys(a), a, 0, 1);
  c.index.hold(m.node);
  EXPECT_EQ(c.index.evictable(), 2);
  ASSERT_TRUE(c.index.pin(c.keys(b)[0]));
  EXPECT_EQ(c.index.evictable(), 1);
  EXPECT_EQ(c.index.evict(10), 1);  // only b's second block may go
  EXPECT_EQ(c.hit(a), 2);
  EXPECT_EQ(c.hit(b), 1);
  EXPECT_FALSE(c.index.pin(c.keys(d)[0]));
  ASSERT_TRUE(c.index.unpin(c.keys(b)[0]));
  EXPECT_FALSE(c.index.unpin(c.keys(b)[0]));
  c.index.drop(m.node);
  EXPECT_EQ(c.index.evict(10), 3);
  EXPECT_EQ(c.pool.free_count(), 6);
}

TEST(PrefixIndex, EvictsLeavesLeastValuableFirst) {
  Cache c(12, {.block_tokens = kBlock, .attention_tokens = 4});
  const std::vector<int32_t> longer = run_of(0, 16), shorter = run_of(50, 4), third = run_of(80, 4);
  c.add(longer);   // costs 1, 2, 3, 4 by depth
  c.add(shorter);  // 1
  c.add(third);    // 1
  EXPECT_EQ(c.hit(shorter), 1);
  EXPECT_EQ(c.index.evict(1), 1);
  EXPECT_EQ(c.hit(shorter), 0) << "equal cost: the older one goes first";
  EXPECT_EQ(c.hit(third), 1);
  EXPECT_EQ(c.index.evict(1), 1);
  EXPECT_EQ(c.hit(third), 0) << "cheap to compute again, though used last";
  EXPECT_EQ(c.hit(longer), 4);
  EXPECT_EQ(c.index.evict(1), 1);
  EXPECT_EQ(c.hit(longer), 3) << "chains are eaten from their end";
}

TEST(PrefixIndex, RecencyWinsOverCostInTheLongRun) {
  Cache c(8, {.block_tokens = kBlock, .attention_tokens = 4});
  const std::vector<int32_t> old_long = run_of(0, 16);
  c.add(old_long);
  for (int i = 0; i < 40; ++i) c.add(run_of(100 + 10 * i, 8));  // newcomers push; the clock rises with what is evicted
  EXPECT_LT(c.hit(old_long), 4) << "an unused block does not stay for ever because it was dear";
}

TEST(PrefixIndex, TimeToLive) {
  Cache c(8);
  const std::vector<int32_t> chat = run_of(0, 8), agent = run_of(50, 8);
  c.add(chat, 0, 700);
  c.add(agent, 0, 300);
  EXPECT_EQ(c.hit(agent, 299, 300), 2);  // a use renews it
  EXPECT_EQ(c.hit(agent, 598, 0), 2);
  EXPECT_EQ(c.hit(agent, 600, 300), 0);
  EXPECT_EQ(c.hit(chat, 600, 0), 2);
  EXPECT_EQ(c.index.expire(600), 2);
  EXPECT_EQ(c.index.size(), 2);
  EXPECT_EQ(c.index.expire(701), 2);
  EXPECT_EQ(c.pool.free_count(), 8);
}

TEST(PrefixIndex, FaultsRefuseToInsert) {
  int left = 1;
  PrefixIndexOptions options{.block_tokens = kBlock};
  options.faults.hook = [&](FaultPoint p) { return p == FaultPoint::kIndexInsert && left-- > 0; };
  Cache c(4, options);
  const std::vector<int32_t> a = run_of(0, 4);
  const int block = c.pool.take();
  EXPECT_EQ(c.index.insert(kNoNode, c.keys(a)[0], a, block, 0, 1), kNoNode);
  EXPECT_NE(c.index.insert(kNoNode, c.keys(a)[0], a, block, 0, 1), kNoNode);
}

// Random use: matches equal a plain list of what was added and not evicted, the same calls evict the same, nothing
// leaks.
TEST(PrefixIndex, RandomUseIsRightAndRepeatable) {
  const auto play = [](unsigned seed) {
    std::mt19937 rng(seed);
    Cache c(24, {.block_tokens = kBlock, .attention_tokens = 8});
    std::string log;
    for (int step = 0; step < 400; ++step) {
      std::vector<int32_t> t;
      for (int i = static_cast<int>(rng() % 24); i >= 0; --i) t.push_back(static_cast<int32_t>(rng() % 2));
      if (rng() % 3 == 0) c.add(t, step, 50);
      const PrefixIndex::Match m = c.index.match(c.keys(t), t, step, 50);
      log += fmt::format("{}/{} ", m.blocks, c.index.size());
      EXPECT_LE(m.blocks * kBlock, static_cast<int>(t.size()));
      EXPECT_EQ(c.pool.free_count() + c.index.size(), 24);
      if (rng() % 20 == 0) c.index.expire(step);
      if (rng() % 10 == 0) c.index.evict(static_cast<int>(rng() % 5));
    }
    EXPECT_EQ(c.index.evictable(), c.index.size());
    c.index.evict(24);
    EXPECT_EQ(c.pool.free_count(), 24);
    EXPECT_EQ(c.index.counters().token_mismatches, 0);
    return log;
  };
  for (unsigned seed = 0; seed < 20; ++seed) EXPECT_EQ(play(seed), play(seed));
}

}  // namespace
}  // namespace deepinfer::kv
