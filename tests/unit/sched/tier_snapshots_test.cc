// Window snapshots in lower tiers: what is written, what is asked for, and what happens to answers nobody waits for.
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

constexpr int kPrompt = 60;  // KEEP 8, blocks of 8: 6 blocks before the decoder's rows, a snapshot at row 48

SchedulerConfig config_of() {
  SchedulerConfig c = small_config();
  c.tier_gets_max = 16;
  c.tier_wait_s = 1000;
  c.tier_snapshots = true;
  return c;
}

struct Tiers {
  explicit Tiers(const SchedulerConfig& config = config_of()) : driver(config) {}

  // What is written until nothing is left to do; the tier has nothing.
  std::vector<TierPut> drain() {
    std::vector<TierPut> all, list;
    for (int i = 0; i < 200 && driver.s->has_work(); ++i) {
      driver.step();
      std::vector<kv::BlockKey> keys;
      for (const TierGet& g : gets()) keys.push_back(g.key);
      for (const kv::BlockKey& key : keys) answer(key, 0);
      list.clear();
      driver.s->take_tier_puts(&list);
      for (const TierPut& p : list) driver.s->host().unpin(p.host);
      all.insert(all.end(), list.begin(), list.end());
    }
    driver.drain();
    return all;
  }
  std::vector<TierGet> gets() {
    std::vector<TierGet> list;
    driver.s->take_tier_gets(&list);
    return list;
  }
  void answer(const kv::BlockKey& key, size_t bytes) {
    driver.s->tier_arrived(key, std::vector<std::byte>(bytes), driver.now);
  }
  std::vector<kv::BlockKey> keys() { return driver.s->prompt_keys(0, prompt_of(kPrompt), {}); }
  Driver driver;
};

size_t windows_of(const std::vector<TierGet>& gets) {
  return static_cast<size_t>(std::ranges::count(gets, config_of().snapshot_bytes, &TierGet::bytes));
}

TEST(TierSnapshots, AreWrittenOnceUnderTheirOwnKey) {
  Tiers t;
  t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 2});
  const std::vector<TierPut> puts = t.drain();
  const kv::BlockKey key = kv::windows_key(t.keys()[5]);
  ASSERT_EQ(std::ranges::count(puts, key, &TierPut::key), 1);
  const TierPut& put = *std::ranges::find(puts, key, &TierPut::key);
  const std::vector<int32_t> text = prompt_of(kPrompt);
  EXPECT_EQ(put.tokens, std::vector<int32_t>(text.begin() + 40, text.begin() + 48));
  EXPECT_EQ(t.driver.s->stats().snapshots_put, 1);
  t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 2});
  EXPECT_TRUE(t.drain().empty());
}

TEST(TierSnapshots, NoneWithoutTheOption) {
  SchedulerConfig c = config_of();
  c.tier_snapshots = false;
  Tiers t(c);
  t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 2});
  EXPECT_EQ(t.drain().size(), 7u);
  EXPECT_EQ(t.driver.s->stats().snapshots_taken, 1);
  EXPECT_EQ(t.driver.s->stats().snapshots_put, 0);
}

// What a tier knows it has is asked for at once, the windows before the blocks; what may be there once a block was.
TEST(TierSnapshots, TheNearestKnownOnesAreAskedFor) {
  for (const int known : {0, 48, 40}) {
    SCOPED_TRACE(known);
    SchedulerConfig c = config_of();
    Tiers keys_only;
    const std::vector<kv::BlockKey> keys = keys_only.keys();
    if (known > 0) {
      c.tier_known = [keys, known](std::span<const kv::BlockKey> asked) {
        if (asked.size() > 1 || asked[0] == keys[0]) return kv::Tier::Known{std::min<size_t>(asked.size(), 6), true};
        return kv::Tier::Known{asked[0] == kv::windows_key(keys[static_cast<size_t>(known / 8 - 1)]), true};
      };
    }
    Tiers t(c);
    t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
    t.driver.step();
    std::vector<TierGet> gets = t.gets();
    if (known == 0) {
      ASSERT_EQ(gets.size(), 1u);
      EXPECT_EQ(gets[0].bytes, c.block_bytes);
      t.answer(gets[0].key, gets[0].bytes);
      t.driver.step();
      gets = t.gets();
      EXPECT_EQ(gets.size(), 5u + 1u);
      EXPECT_EQ(windows_of(gets), 1u);
    } else {
      // One block of replay is more than the 7 rows without a snapshot.
      EXPECT_EQ(gets.size(), known == 48 ? 7u : 6u);
      EXPECT_EQ(windows_of(gets), known == 48 ? 1u : 0u);
      EXPECT_EQ(gets[0].bytes, known == 48 ? c.snapshot_bytes : c.block_bytes);
    }
    std::vector<std::pair<kv::BlockKey, size_t>> answers;
    for (const TierGet& g : gets) answers.emplace_back(g.key, g.bytes);
    for (const auto& [key, bytes] : answers) t.answer(key, bytes);
    t.drain();
    EXPECT_EQ(t.driver.s->stats().snapshots_used, known == 40 ? 0 : 1);
    EXPECT_EQ(t.driver.s->stats().replayed_rows, known == 40 ? 7 : 0);
    EXPECT_EQ(t.driver.s->stats().tier_blocks, 6);
  }
}

// The request waits for its windows, and replays when they are not there.
TEST(TierSnapshots, MissingOrWrongOnesAreReplayed) {
  for (const size_t bytes : {size_t{0}, config_of().block_bytes}) {
    SchedulerConfig c = config_of();
    c.tier_known = [](std::span<const kv::BlockKey> asked) {
      return kv::Tier::Known{std::min<size_t>(asked.size(), 6), true};
    };
    Tiers t(c);
    const int64_t id = t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
    t.driver.step();
    const std::vector<TierGet> gets = t.gets();
    ASSERT_EQ(windows_of(gets), 1u);
    kv::BlockKey windows;
    std::vector<kv::BlockKey> blocks;
    for (const TierGet& g : gets) {
      if (g.bytes == c.snapshot_bytes)
        windows = g.key;
      else
        blocks.push_back(g.key);
    }
    for (const kv::BlockKey& key : blocks) t.answer(key, c.block_bytes);
    t.driver.step();
    EXPECT_EQ(t.driver.rows_of(id), nullptr) << "it did not wait for its windows";
    t.answer(windows, bytes);
    t.drain();
    EXPECT_EQ(t.driver.s->stats().snapshots_loaded, 0);
    EXPECT_EQ(t.driver.s->stats().replayed_rows, 7);
  }
}

// An answer may come when nobody waits any more, or for somebody else who began alike.
TEST(TierSnapshots, LateAnswersAreNobodys) {
  SchedulerConfig c = config_of();
  c.tier_known = [](std::span<const kv::BlockKey> asked) {
    return kv::Tier::Known{std::min<size_t>(asked.size(), 6), true};
  };
  Tiers t(c);
  const int64_t first = t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
  t.driver.step();
  std::vector<std::pair<kv::BlockKey, size_t>> late;
  for (const TierGet& g : t.gets()) late.emplace_back(g.key, g.bytes);
  ASSERT_EQ(late.size(), 7u);
  t.driver.s->cancel(first);
  t.driver.step();
  t.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
  t.driver.step();
  for (const auto& [key, bytes] : late) t.answer(key, bytes);
  for (int i = 0; i < 50 && t.driver.s->has_work(); ++i) {
    late.clear();
    for (const TierGet& g : t.gets()) late.emplace_back(g.key, g.bytes);
    for (const auto& [key, bytes] : late) t.answer(key, bytes);
    t.driver.step();
  }
  t.drain();
  EXPECT_TRUE(t.driver.s->check_accounting().ok());
}

}  // namespace
}  // namespace deepinfer::sched
