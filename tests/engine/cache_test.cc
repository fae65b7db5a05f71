// A cached prefix gives the same tokens and the same logits as a cold prompt, whatever the length of its new part.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "tests/engine/support.h"

namespace deepinfer {
namespace {

using engine::Request;
using testing::Collected;
using testing::make_request;

constexpr int kWindowExtra = 12;

class Cached : public ::testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  testing::EngineSetup setup() const {
    testing::EngineSetup s;
    s.model = std::get<0>(GetParam());
    s.snapshots = std::get<1>(GetParam());
    s.sequences = 4;
    s.beside = s.model == "tiny-trained";
    return s;
  }
  void SetUp() override {
    const bool bundled = setup().model == "tiny-trained";
    if (testing::kSanitized && bundled) GTEST_SKIP() << "sanitizer build";
    if (bundled && !setup().snapshots && std::getenv("DEEPINFER_TEST_ALL") == nullptr)
      GTEST_SKIP() << "the random model stands for it; DEEPINFER_TEST_ALL=1 runs it";
  }
};

TEST_P(Cached, NewPartsOfEveryKind) {
  const auto engine = testing::make_engine(setup());
  const int keep = engine->info().window + kWindowExtra;
  std::vector<int> parts = {1, 5, keep - 1, keep, keep + 1, 127, 128, 129, 300};
  if (setup().model == "tiny-trained" && std::getenv("DEEPINFER_TEST_ALL") == nullptr) parts = {1, keep, 129};
  int hits = 0;
  for (const int part : parts) {
    const int base = hits % 2 == 0 ? 384 : 511;
    const std::vector<int32_t> prefix = testing::random_prompt(base, static_cast<uint32_t>(base));
    SCOPED_TRACE(::testing::Message() << base << " tokens and " << part << " new ones");
    std::vector<int32_t> prompt = prefix;
    const std::vector<int32_t> tail = testing::random_prompt(part, static_cast<uint32_t>(10000 + part));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    engine->clear_cache();
    const Collected cold = testing::run(*engine, make_request(prompt, false))[0];
    EXPECT_EQ(cold.usage.cached_tokens, 0);
    testing::run(*engine, make_request(prefix, true));
    const Collected warm = testing::run(*engine, make_request(prompt, true))[0];
    EXPECT_EQ(warm.usage.cached_tokens, base / 128 * 128);
    expect_equal(warm, cold);
    const Collected again = testing::run(*engine, make_request(prompt, true))[0];
    EXPECT_GE(again.usage.cached_tokens, base / 128 * 128);
    expect_equal(again, cold);
    ++hits;
  }
  EXPECT_EQ(hits, static_cast<int>(parts.size()));
  const engine::EngineStats stats = engine->stats();
  if (setup().snapshots) {
    EXPECT_GT(stats.scheduler.snapshots_used, 0);
  }
  if (!setup().snapshots) {
    EXPECT_EQ(stats.scheduler.snapshots_used, 0);
  }
  EXPECT_TRUE(engine->check_accounting().ok());
}

// fixtures/bugs 18: the same long prompt with others between, so that rings and blocks are used by others.
TEST_P(Cached, SamePromptBetweenOthers) {
  const auto engine = testing::make_engine(setup());
  const std::vector<int32_t> prompt = testing::random_prompt(600, 1);
  Request r = make_request(prompt, true);
  r.sampling.temperature = 0;
  r.max_tokens = 24;
  Request cold = r;
  cold.cache = false;
  const Collected want = testing::run(*engine, cold)[0];
  for (int round = 0; round < 3; ++round) {
    const Collected got = testing::run(*engine, r)[0];
    expect_equal(got, want);
    if (round > 0) {
      EXPECT_EQ(got.usage.cached_tokens, 512);
    }
    std::vector<std::unique_ptr<engine::Stream>> others;
    for (int i = 0; i < 6; ++i) {
      others.push_back(
          engine->submit(make_request(testing::random_prompt(60 + 9 * i, static_cast<uint32_t>(100 * round + i)), true))
              .value());
    }
    for (auto& o : others) testing::collect(*o, 1);
  }
}

// A conversation: every turn continues the last answer, and is equal to the whole text as one cold prompt.
TEST_P(Cached, ConversationTurns) {
  const auto engine = testing::make_engine(setup());
  std::vector<int32_t> text = testing::random_prompt(290, 9);
  for (int turn = 0; turn < 3; ++turn) {
    SCOPED_TRACE(turn);
    Request r = make_request(text, true);
    r.max_tokens = 40;
    Request cold = r;
    cold.cache = false;
    const Collected want = testing::run(*engine, cold)[0];
    const Collected got = testing::run(*engine, r)[0];
    expect_equal(got, want);
    if (turn > 0) {
      EXPECT_GT(got.usage.cached_tokens, 0);
    }
    text.insert(text.end(), got.tokens.begin(), got.tokens.end());
    const std::vector<int32_t> next = testing::random_prompt(20 + turn, static_cast<uint32_t>(turn));
    text.insert(text.end(), next.begin(), next.end());
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Cached,
                         ::testing::Combine(::testing::Values("tiny-random", "tiny-trained"), ::testing::Bool()),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::ranges::replace(name, '-', '_');
                           return name + (std::get<1>(info.param) ? "_snapshots" : "_replay");
                         });

}  // namespace
}  // namespace deepinfer
