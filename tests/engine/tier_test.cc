// Lower tiers behind the engine: a prompt whose blocks come from one equals a cold prompt, whatever the tier does, and
// requests that need nothing from it do not wait.
#include <chrono>
#include <thread>

#include "tests/engine/support.h"
#include "tests/support/fake_tier.h"

namespace deepinfer {
namespace {

using engine::Request;
using testing::Collected;
using testing::make_request;

constexpr int kPrompt = 900;

std::unique_ptr<engine::Engine> engine_on(std::shared_ptr<kv::Tier> tier, double wait_s = 5,
                                          double flush_s = 60) {
  testing::EngineSetup s;
  s.sequences = 4;
  s.options.tier = std::move(tier);
  s.options.tier_wait_s = wait_s;
  s.options.tier_flush_s = flush_s;
  return testing::make_engine(s);
}

struct Answers {
  std::vector<int32_t> prompt = testing::random_prompt(kPrompt, 3);
  Collected cold;

  Answers() { cold = testing::run(*testing::make_engine({}), make_request(prompt, false))[0]; }
};

const Answers& answers() {
  static const Answers a;
  return a;
}

// A first engine fills the tier, a second one, as after a restart, reads from it.
TEST(Tier, OutlivesTheEngine) {
  const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{.delay_max = 6}, 1);
  {
    const auto first = engine_on(tier);
    const Collected got = testing::run(*first, make_request(answers().prompt, true))[0];
    expect_equal(got, answers().cold);
    EXPECT_EQ(got.usage.cached_tokens, 0);
  }
  const auto second = engine_on(tier);
  const Collected got = testing::run(*second, make_request(answers().prompt, true))[0];
  expect_equal(got, answers().cold);
  EXPECT_EQ(got.usage.cached_tokens, 768);  // up to the border before the decoder's start
  EXPECT_LT(got.usage.replayed_tokens, 768);
  const engine::EngineStats stats = second->stats();
  EXPECT_EQ(stats.tier.hits, 6);
  EXPECT_EQ(stats.scheduler.tier_blocks, 6);
  expect_equal(testing::run(*second, make_request(answers().prompt, true))[0], answers().cold);
  EXPECT_TRUE(second->check_accounting().ok()) << second->check_accounting().message();
}

// design.md 5.2: a damaged, foreign, late or missing record is a miss.
TEST(Tier, FaultsCostTimeNeverAnAnswer) {
  int64_t hits = 0, damaged = 0;
  for (unsigned seed = 1; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{.lost_completion = seed == 1 ? 0.3 : 0,
                                                                    .lost_record = seed == 2 ? 0.2 : 0.02,
                                                                    .flip = seed == 3 ? 0.5 : 0.05,
                                                                    .cut = 0.02,
                                                                    .swapped = seed == 4 ? 0.5 : 0.02,
                                                                    .error = 0.02,
                                                                    .delay_max = 20},
                                                     seed);
    for (int life = 0; life < 2; ++life) {
      const auto engine = engine_on(tier, 0.2, 0.3);  // what has no answer by then never gets one
      expect_equal(testing::run(*engine, make_request(answers().prompt, true))[0], answers().cold);
      const engine::EngineStats stats = engine->stats();
      hits += stats.tier.hits;
      damaged += stats.tier.damaged;
    }
  }
  EXPECT_GT(hits, 0);
  EXPECT_GT(damaged, 0);
}

// Gets that never end: the request with the prefix waits its time and computes, others go by.
TEST(Tier, NobodyWaitsForAnothersPages) {
  const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{.lost_completion = 1}, 1);
  const auto engine = engine_on(tier, 5, 0.3);  // s, in which three short requests come by
  auto waiting = engine->submit(make_request(answers().prompt, true)).value();
  while (engine->stats().scheduler.fetching == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 3; ++i) testing::run(*engine, make_request(testing::random_prompt(20, 40 + i), true));
  EXPECT_EQ(engine->stats().scheduler.fetching, 1) << "the short requests waited for the long one";
  expect_equal(testing::collect(*waiting, 1)[0], answers().cold);
  auto left = engine->submit(make_request(testing::random_prompt(kPrompt, 9), true)).value();
  left->cancel();
  EXPECT_EQ(testing::collect(*left, 1)[0].reason, engine::FinishReason::kCancelled);
}

// Requests with one prefix ask for its pages once.
TEST(Tier, SharedPrefixIsFetchedOnce) {
  const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{.delay_max = 6}, 1);
  testing::run(*engine_on(tier), make_request(answers().prompt, true));
  const auto engine = engine_on(tier);
  std::vector<std::unique_ptr<engine::Stream>> streams;
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = answers().prompt;
    prompt.push_back(100 + i);
    streams.push_back(engine->submit(make_request(std::move(prompt), true)).value());
  }
  for (auto& s : streams) EXPECT_GE(testing::collect(*s, 1)[0].usage.cached_tokens, 768);
  EXPECT_EQ(engine->stats().tier.hits, 6);
}

}  // namespace
}  // namespace deepinfer
