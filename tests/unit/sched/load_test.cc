// Loading a prompt's blocks from lower tiers or computing them: whichever measurements say is faster.
#include "sched/load_rate.h"
#include "tests/unit/sched/driver.h"

namespace deepinfer::sched {
namespace {

constexpr int kPrompt = 60;      // 6 blocks of 8 before the decoder's rows
// so that computing what a tier could give takes about 40 s; a step of the driver is 1 s
constexpr double kRowS = 1;

struct Loads {
  Loads() : driver([] {
    SchedulerConfig c = small_config();
    c.tier_gets_max = 16;
    c.tier_wait_s = 1000;
    c.tier_puts_max = 0;
    return c;
  }()) {
    driver.s->set_cost({.prefill_row_s = kRowS});
  }
  // A new prompt whose blocks all come, each so long after it was asked for. How many were asked for.
  int run(double takes_s) {
    driver.submit({.prompt = prompt_of(kPrompt, 1000 * ++prompts), .max_tokens = 1});
    const std::vector<std::byte> page(small_config().block_bytes);
    int asked = 0;
    std::vector<TierGet> gets;
    for (driver.s->take_tier_gets(&gets); !gets.empty(); driver.s->take_tier_gets(&gets)) {
      asked += static_cast<int>(gets.size());
      std::vector<kv::BlockKey> keys;
      for (const TierGet& g : gets) keys.push_back(g.key);
      gets.clear();
      for (const kv::BlockKey& key : keys) driver.s->tier_arrived(key, page, driver.now += takes_s);
      driver.step();  // asks for more
    }
    driver.drain();
    gets.clear();
    driver.s->take_tier_gets(&gets);
    EXPECT_TRUE(gets.empty());
    return asked;
  }
  Driver driver;
  int prompts = 0;
};

TEST(Load, FastTiersAreAskedForEverything) {
  Loads loads;
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(loads.run(0.1), 6);
    EXPECT_EQ(loads.driver.s->stats().tier_blocks, 6 * i);
    EXPECT_EQ(loads.driver.s->stats().tier_loads, i);
  }
  EXPECT_EQ(loads.driver.s->stats().tier_loads_declined, 0);
  EXPECT_EQ(loads.driver.s->stats().tier_loads_late, 0);
}

TEST(Load, SlowTiersAreLeftAloneAndTriedAgainLater) {
  Loads loads;
  EXPECT_GT(loads.run(300), 0);
  int declined = 0;
  while (declined < 100 && loads.run(300) == 0) ++declined;
  EXPECT_GE(declined, 5);
  EXPECT_LT(declined, 60);
  const SchedulerStats counted = loads.driver.s->stats();
  EXPECT_EQ(counted.tier_loads_declined, declined);
  EXPECT_EQ(counted.tier_blocks_declined, 6 * declined);
  // It has become fast: after a few tries it is used for everything again.
  int asked = 0;
  for (int i = 0; i < 200 && asked < 6; ++i) asked = loads.run(0.1);
  EXPECT_EQ(asked, 6);
  EXPECT_EQ(loads.run(0.1), 6);
}

// What has come when computing would have been done by now is used, the rest is computed.
TEST(Load, PartOfAPromptIsUsedWhenTheRestIsLate) {
  Loads loads;
  loads.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
  const std::vector<std::byte> page(small_config().block_bytes);
  std::vector<TierGet> gets;
  for (int i = 0; i < 2; ++i) {
    gets.clear();
    loads.driver.s->take_tier_gets(&gets);
    ASSERT_FALSE(gets.empty());
    const std::vector<TierGet> now = gets;
    for (size_t k = 0; k < std::min<size_t>(now.size(), 2); ++k)
      loads.driver.s->tier_arrived(now[k].key, page, loads.driver.now += 0.1);
    if (i == 1) break;
    loads.driver.step();
    EXPECT_TRUE(loads.driver.s->fetching());
  }
  loads.driver.now += 60;
  loads.driver.step();
  EXPECT_FALSE(loads.driver.s->fetching());
  EXPECT_EQ(loads.driver.s->stats().tier_blocks, 3);
  EXPECT_EQ(loads.driver.s->stats().tier_loads, 1);
  EXPECT_EQ(loads.driver.s->stats().tier_loads_late, 1);
  loads.driver.drain();
}

// What comes for a request that did not wait for it is nobody's, whoever sits in its place by then.
TEST(Load, LatePagesBehindAGapAreNotTheNextPrompts) {
  Loads loads;
  Scheduler& s = *loads.driver.s;
  const std::vector<std::byte> page(small_config().block_bytes);
  std::vector<TierGet> gets;
  const auto ask = [&](size_t asked) {
    gets.clear();
    s.take_tier_gets(&gets);
    EXPECT_EQ(gets.size(), asked);
    std::vector<kv::BlockKey> keys;
    for (const TierGet& g : gets) keys.push_back(g.key);
    return keys;
  };
  const int64_t first = loads.driver.submit({.prompt = prompt_of(kPrompt), .max_tokens = 1});
  s.tier_arrived(ask(1).at(0), page, loads.driver.now);
  loads.driver.step();
  const std::vector<kv::BlockKey> late = ask(5);
  s.tier_arrived(late.at(0), {}, loads.driver.now);
  loads.driver.now += 60;
  loads.driver.step();
  EXPECT_EQ(loads.driver.ended[first], EndReason::kMaxTokens);
  EXPECT_EQ(s.stats().tier_blocks, 1);

  loads.driver.submit({.prompt = prompt_of(kPrompt, 500), .max_tokens = 1});
  const std::vector<kv::BlockKey> own = ask(1);
  for (size_t i = 1; i < late.size(); ++i) s.tier_arrived(late[i], page, loads.driver.now);
  s.tier_arrived(own.at(0), page, loads.driver.now);
  loads.driver.step();
  EXPECT_TRUE(s.fetching());
  for (const kv::BlockKey& key : ask(5)) s.tier_arrived(key, {}, loads.driver.now);
  loads.driver.step();
  EXPECT_FALSE(s.fetching());
  EXPECT_EQ(s.stats().tier_blocks, 2) << "pages of another prompt were taken";
  loads.driver.drain();
}

TEST(Load, RateIsTheLatelyMeasuredOne) {
  LoadRate rate;
  EXPECT_EQ(rate.seconds(100), 0) << "nothing is known";
  double now = 5;
  for (int batch = 0; batch < 4; ++batch) {
    rate.asked(now);
    rate.arrived(now += 0.2);
    for (int i = 0; i < 9; ++i) rate.arrived(now += 0.01);
    now += 50;  // nobody asks
  }
  EXPECT_NEAR(rate.seconds(1), 0.2, 1e-9);
  EXPECT_NEAR(rate.seconds(11), 0.3, 1e-9);
  rate.asked(now);
  rate.arrived(now += 0.2);
  for (int i = 0; i < 60; ++i) rate.arrived(now += 0.1);
  EXPECT_NEAR(rate.seconds(11), 0.2 + 10 * 0.1, 1e-3) << "it has become slower";
  const double before = rate.seconds(11);
  rate.fade();
  EXPECT_NEAR(rate.seconds(11), 0.9 * before, 1e-9);
}

// What else comes, such as windows, is no block and takes none of a block's time, but what the first one waited.
TEST(Load, RateLeavesOutWhatIsNoBlock) {
  LoadRate rate;
  rate.asked(5);
  rate.other_arrived(5.1);
  EXPECT_EQ(rate.seconds(100), 0) << "no block has come";
  rate.arrived(5.2);
  rate.other_arrived(7);
  rate.arrived(7.01);
  EXPECT_NEAR(rate.seconds(1), 0.2, 1e-9);
  EXPECT_NEAR(rate.seconds(11), 0.2 + 10 * 0.01, 1e-9);
}

}  // namespace
}  // namespace deepinfer::sched
