// A tier that delays, loses, damages and swaps records: what the reader hands on is right or a miss, once for each
// fetch.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kv/record.h"
#include "kv/tier_reader.h"
#include "tests/support/fake_tier.h"

namespace deepinfer::kv {
namespace {

constexpr size_t kPage = 48;
constexpr int kTokens = 4;

struct Block {
  BlockKey key;
  std::vector<int32_t> tokens;
  std::vector<std::byte> page;
};

std::vector<Block> some_blocks(int count) {
  std::vector<Block> blocks;
  for (int i = 0; i < count; ++i) {
    Block b{.tokens = {i, i + 1, i + 2, i + 3}, .page = std::vector<std::byte>(kPage, static_cast<std::byte>(i))};
    b.key = next_key(BlockKey{}, b.tokens, {});
    blocks.push_back(std::move(b));
  }
  return blocks;
}

TierReaderCounters read_all(TierFaults faults, unsigned seed) {
  FakeTier tier(faults, seed);
  const std::vector<Block> blocks = some_blocks(40);
  for (const Block& b : blocks) {
    std::vector<std::byte> record(record_bytes(kTokens, kPage));
    seal_record(b.key, b.tokens, b.page, record);
    tier.put(b.key, record, {});
  }
  std::array<Tier::Completion, 64> done;
  for (int i = 0; i < faults.delay_max + 3; ++i) tier.poll(done);

  TierReader reader(tier, {.page_bytes = kPage, .block_tokens = kTokens, .in_flight_max = 8, .timeout_s = 20});
  std::map<BlockKey, int> ended;
  std::vector<TierReader::Arrived> kept;
  size_t next = 0;
  for (int now = 0; ended.size() < blocks.size() && now < 1000; ++now) {
    while (next < blocks.size() && reader.fetch(blocks[next].key, blocks[next].tokens, now)) ++next;
    EXPECT_LE(reader.in_flight(), 8);
    reader.poll(now, [&](const TierReader::Arrived& a) {
      EXPECT_EQ(++ended[a.key], 1);
      const auto b = std::ranges::find(blocks, a.key, &Block::key);
      if (a.ok) {
        EXPECT_TRUE(std::ranges::equal(a.page, b->page)) << "wrong KV got through";
        if ((b - blocks.begin()) % 3 > 0) kept.push_back(a);
      } else {
        EXPECT_TRUE(a.page.empty());
      }
    });
  }
  EXPECT_EQ(ended.size(), blocks.size());
  for (const TierReader::Arrived& a : kept)
    EXPECT_TRUE(std::ranges::equal(a.page, std::ranges::find(blocks, a.key, &Block::key)->page)) << "used again";
  EXPECT_EQ(reader.in_flight(), 0);
  EXPECT_EQ(tier.jobs(), 0u) << "a get that took too long was not cancelled: it may still write into a reused buffer";
  return reader.counters();
}

TEST(TierReader, ReadsWhatIsThere) {
  const TierReaderCounters c = read_all({.delay_max = 5}, 1);
  EXPECT_EQ(c.hits, 40);
  EXPECT_GT(c.refused, 0);  // it was asked for more than in_flight_max
}

TEST(TierReader, EachFaultIsAMissAndCounted) {
  EXPECT_EQ(read_all({.lost_record = 1}, 2).missing, 40);
  EXPECT_EQ(read_all({.flip = 1}, 2).damaged, 40);
  EXPECT_EQ(read_all({.cut = 1}, 2).damaged, 40);
  EXPECT_EQ(read_all({.error = 1}, 2).errors, 40);
  EXPECT_EQ(read_all({.lost_completion = 1}, 2).late, 40);
  const TierReaderCounters swapped = read_all({.swapped = 1}, 2);  // another block's sound record under this key
  EXPECT_EQ(swapped.damaged, 39);
  EXPECT_EQ(swapped.hits, 1);
}

TEST(TierReader, MixedFaultsOverSeeds) {
  TierReaderCounters sum;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const TierReaderCounters c = read_all({.lost_completion = 0.05,
                                           .lost_record = 0.1,
                                           .flip = 0.2,
                                           .cut = 0.05,
                                           .swapped = 0.1,
                                           .error = 0.05,
                                           .delay_max = 8},
                                          seed);
    EXPECT_EQ(c.hits + c.missing + c.damaged + c.late + c.errors, 40);
    sum.hits += c.hits;
    sum.damaged += c.damaged;
  }
  EXPECT_GT(sum.hits, 0);
  EXPECT_GT(sum.damaged, 0);
}

}  // namespace
}  // namespace deepinfer::kv
