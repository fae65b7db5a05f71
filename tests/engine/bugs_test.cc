// Troubles that users of other servers met (fixtures/bugs), as far as they concern the engine: 15, 17, 18, 20 and 22
// here, 8 and 10 in text_test.cc, 12 in tests/unit/engine.
#include <cstdlib>

#include "tests/engine/support.h"
#include "tests/support/fake_tier.h"

namespace deepinfer {
namespace {

using engine::Request;
using testing::Collected;

Request make_request(std::vector<int32_t> prompt, int tokens, bool cache) {
  Request r = testing::make_request(std::move(prompt), cache, tokens);
  r.ignore_end = true;
  return r;
}

// tiny-random has 65,536 positions.
std::unique_ptr<engine::Engine> long_engine(int rows, int sequences) {
  testing::EngineSetup s;
  s.context = 65536;
  s.rows = rows;
  s.sequences = sequences;
  return testing::make_engine(s);
}

class LongContext : public ::testing::Test {
  void SetUp() override {
    if (std::getenv("DEEPINFER_TEST_ALL") == nullptr) GTEST_SKIP() << "long; DEEPINFER_TEST_ALL=1 runs it";
  }
};

std::unique_ptr<engine::Engine> engine_with(const engine::DraftOptions& drafts) {
  testing::EngineSetup s;
  s.model = testing::kSanitized ? "tiny-random" : "tiny-trained";
  s.options.drafts = drafts;
  return testing::make_engine(s);
}

// 15: a penalty that counts the drafts before a verified row.
TEST(Bugs, PenaltyUnderSpeculation) {
  const auto plain = engine_with({});
  for (const bool model : {false, true}) {
    const auto drafting = engine_with({.mode = engine::DraftMode::kFixed, .model = model, .text = !model});
    std::vector<Collected> answers;
    for (const float penalty : {2.0f, -2.0f}) {
      Request r = make_request({0, 300, 410, 777, 777, 777}, 8, true);
      r.sampling.temperature = 0;
      r.sampling.frequency_penalty = penalty;
      r.sampling.logit_bias = {{777, 14.0f}};  // what the penalty works on
      answers.push_back(testing::run(*drafting, r)[0]);
      ASSERT_EQ(answers.back().tokens.size(), 8u);
      expect_equal(answers.back(), testing::run(*plain, r)[0]);
    }
    EXPECT_NE(answers[0].tokens, answers[1].tokens);
    EXPECT_GT(drafting->stats().drafts.verify_rows, 0);
  }
}

// 17: a prompt of one token, drafts that repeat it, and an end that is wanted before it may come.
TEST(Bugs, RepeatedTokenAndTheLeastLength) {
  const auto plain = engine_with({}),
             drafting = engine_with({.mode = engine::DraftMode::kFixed, .model = false, .text = true});
  constexpr int32_t kEnd = 1;
  for (const int length : {64, 1, 2}) {
    for (const double temperature : {0.0, 0.8}) {
      Request r = make_request(std::vector<int32_t>(static_cast<size_t>(length), 777), 12, true);
      r.ignore_end = false;
      r.min_tokens = 5;
      r.sampling.temperature = temperature;
      r.sampling.logit_bias = {{kEnd, 100.0f}, {777, 40.0f}};
      const Collected got = testing::run(*drafting, r)[0];
      expect_equal(got, testing::run(*plain, r)[0]);
      EXPECT_EQ(got.reason, engine::FinishReason::kStopToken);
      ASSERT_EQ(got.tokens.size(), 6u) << "the end comes as soon as it may";
      EXPECT_EQ(got.tokens, (std::vector<int32_t>{777, 777, 777, 777, 777, kEnd}));
    }
  }
  EXPECT_GT(drafting->stats().drafts.text_accepted, 0);
  Request empty = make_request({}, 5, true);
  EXPECT_EQ(drafting->submit(empty).status().code(), Code::kInvalidArgument);
}

// 18: the same prompt of 7,000 tokens three times with 32 others between.
TEST_F(LongContext, PrefixHitWithoutStaleWindows) {
  const auto engine = long_engine(512, 4);
  const std::vector<int32_t> prompt = testing::random_prompt(7000, 1);
  const Collected cold = testing::run(*engine, make_request(prompt, 24, false))[0];
  for (int round = 0; round < 3; ++round) {
    const Collected got = testing::run(*engine, make_request(prompt, 24, true))[0];
    expect_equal(got, cold);
    EXPECT_EQ(got.usage.cached_tokens, round == 0 ? 0 : 6912);
    std::vector<std::unique_ptr<engine::Stream>> others;
    for (int i = 0; i < 32; ++i) {
      others.push_back(
          engine->submit(make_request(testing::random_prompt(40 + 9 * i, 100u * round + i), 8, true)).value());
    }
    for (auto& o : others) testing::collect(*o, 1);
  }
}

// 20,000 tokens in other chunks, beside others, and behind a hit.
TEST_F(LongContext, EqualsOtherChunksAndCachedBeginnings) {
  const std::vector<int32_t> prompt = testing::random_prompt(20000, 2);
  const Collected cold = testing::run(*long_engine(512, 1), make_request(prompt, 24, false))[0];
  const auto engine = long_engine(200, 4);
  std::vector<std::unique_ptr<engine::Stream>> others;
  for (int i = 0; i < 6; ++i)
    others.push_back(engine->submit(make_request(testing::random_prompt(300 * i + 1, 7u + i), 60, true)).value());
  const std::vector<int32_t> first(prompt.begin(), prompt.begin() + 19072);
  testing::run(*engine, make_request(first, 4, true));
  const Collected warm = testing::run(*engine, make_request(prompt, 24, true))[0];
  EXPECT_EQ(warm.usage.cached_tokens, 19072);
  expect_equal(warm, cold);
  for (auto& o : others) testing::collect(*o, 1);
}

// Nearly all of the 65,536 positions: an answer behind the prompt, and the same again from the cache.
TEST_F(LongContext, NearlyTheWholeContext) {
  const auto engine = long_engine(512, 2);
  const std::vector<int32_t> prompt = testing::random_prompt(65000, 3);
  const Collected cold = testing::run(*engine, make_request(prompt, 24, true))[0];
  ASSERT_EQ(cold.reason, engine::FinishReason::kMaxTokens);
  EXPECT_EQ(cold.usage.cached_tokens, 0);
  const Collected warm = testing::run(*engine, make_request(prompt, 24, true))[0];
  EXPECT_EQ(warm.usage.cached_tokens, 65000 / 128 * 128);
  expect_equal(warm, cold);
}

// 20: a store that was filled by another backend, or for other weights, gives no hit.
TEST(Bugs, StoreOfAnotherKindIsNotRead) {
  const auto tier = std::make_shared<kv::FakeTier>(kv::TierFaults{}, 1);
  const std::vector<int32_t> prompt = testing::random_prompt(700, 3);
  const auto run_on = [&](bool plain, const std::string& model, std::shared_ptr<kv::Tier> with) {
    testing::EngineSetup s;
    s.model = model;
    s.plain = plain;
    s.sequences = 2;
    s.options.tier = std::move(with);
    s.options.tier_wait_s = 5;
    const auto engine = testing::make_engine(s);
    Collected got = testing::run(*engine, make_request(prompt, 6, true))[0];
    return std::pair(got, engine->stats().tier);
  };
  EXPECT_EQ(run_on(false, "tiny-random", tier).second.hits, 0);
  EXPECT_GT(run_on(false, "tiny-random", tier).second.hits, 0);  // its own
  const auto [plain, plain_stats] = run_on(true, "tiny-random", tier);
  EXPECT_EQ(plain_stats.hits, 0);
  EXPECT_GT(plain_stats.missing, 0);
  expect_equal(plain, run_on(true, "tiny-random", nullptr).first);
  if (testing::kSanitized) return;
  EXPECT_EQ(run_on(false, "tiny-trained", tier).second.hits, 0);
}

// 22: the reader of turn 2 leaves after its first event; turn 3 follows at once.
TEST(Bugs, DisconnectInTheMiddleOfAChat) {
  testing::EngineSetup setup;
  setup.sequences = 2;
  const auto engine = testing::make_engine(setup);
  std::vector<int32_t> text = testing::random_prompt(200, 4);
  const Collected first = testing::run(*engine, make_request(text, 30, true))[0];
  text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  text.insert(text.end(), {5, 6, 7});
  {
    auto second = engine->submit(make_request(text, 300, true)).value();
    engine::Event e;
    ASSERT_TRUE(second->next(&e));
  }
  text.insert(text.end(), {8, 9});
  const Collected third = testing::run(*engine, make_request(text, 30, true))[0];
  EXPECT_EQ(third.reason, engine::FinishReason::kMaxTokens);
  expect_equal(third, testing::run(*engine, make_request(text, 30, false))[0]);
  ASSERT_TRUE(engine->drain(20).ok());
  EXPECT_TRUE(engine->check_accounting().ok()) << engine->check_accounting().message();
}

}  // namespace
}  // namespace deepinfer
