// Block pool against a plain model; keys: everything they must cover changes them.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "kv/block_pool.h"
#include "kv/cache_key.h"

namespace deepinfer::kv {
namespace {

TEST(BlockPool, FollowsAPlainModelOverRandomCalls) {
  std::mt19937 rng(1);
  for (int round = 0; round < 50; ++round) {
    const int count = 1 + static_cast<int>(rng() % 20);
    BlockPool pool(count);
    std::deque<int> free;
    for (int i = 0; i < count; ++i) free.push_back(i);
    std::map<int, int> holders;
    std::vector<int> freed;
    pool.on_free([&](int id) { freed.push_back(id); });
    for (int step = 0; step < 300; ++step) {
      const int what = static_cast<int>(rng() % 3);
      if (what == 0) {
        const int id = pool.take();
        ASSERT_EQ(id, free.empty() ? kNoBlock : free.front());
        if (free.empty()) continue;
        free.pop_front();
        holders[id] = 1;
      } else if (!holders.empty()) {
        const auto it = std::next(holders.begin(), static_cast<int64_t>(rng() % holders.size()));
        const int id = it->first;
        if (what == 1) {
          pool.share(id);
          ++it->second;
        } else {
          pool.release(id);
          if (--it->second == 0) {
            holders.erase(id);
            free.push_back(id);
            ASSERT_EQ(freed.back(), id);
          }
        }
        ASSERT_EQ(pool.holders(id), holders.contains(id) ? holders[id] : 0);
      }
      ASSERT_EQ(pool.free_count(), static_cast<int>(free.size()));
    }
  }
}

TEST(BlockPoolDeathTest, DoubleReleaseAborts) {
  BlockPool pool(2);
  const int id = pool.take();
  pool.release(id);
  EXPECT_DEATH(pool.release(id), "which is free");
  EXPECT_DEATH(pool.share(id), "which is free");
}

TEST(CacheKey, EveryPartOfTheScopeAndChainCounts) {
  const CacheScope base{
      .checkpoint = "c", .layout = "l", .kv_dtype = "t", .numeric_class = "n", .replay = Replay::kExact, .tenant = "x"};
  const std::vector<int32_t> tokens{1, 2, 3, 4}, other{1, 2, 3, 5};
  const ImageDigest image{7}, other_image{8};
  std::set<BlockKey> keys;
  std::vector<CacheScope> scopes(7, base);
  scopes[1].checkpoint = "c2";
  scopes[2].layout = "l2";
  scopes[3].kv_dtype = "t2";
  scopes[4].numeric_class = "n2";
  scopes[5].replay = Replay::kBounded;
  scopes[6].tenant = "y";
  CacheScope shifted = base;  // fields must not run into each other
  shifted.checkpoint = "cl";
  shifted.layout = "";
  scopes.push_back(shifted);
  size_t expected = 0;
  for (const CacheScope& s : scopes) {
    const BlockKey root = root_key(s);
    for (const BlockKey& k :
         {root, next_key(root, tokens, {}), next_key(root, other, {}), next_key(root, tokens, {{image}}),
          next_key(root, tokens, {{other_image}}), next_key(next_key(root, tokens, {}), tokens, {}),
          next_key(next_key(root, other, {}), tokens, {})}) {
      keys.insert(k);
      ++expected;
    }
  }
  EXPECT_EQ(keys.size(), expected);
  EXPECT_EQ(root_key(base), root_key(base));
  EXPECT_EQ(next_key(root_key(base), tokens, {{image}}), next_key(root_key(base), tokens, {{image}}));
}

}  // namespace
}  // namespace deepinfer::kv
