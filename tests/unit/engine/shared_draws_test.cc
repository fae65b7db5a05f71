// Steps whose draws take long: a second thread makes a part of them. Nothing of that can be seen in any answer.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "tests/unit/engine/fake_executor.h"

namespace deepinfer::engine {
namespace {

constexpr int kAnswers = 16, kVocab = 1024, kTokens = 16, kLackingAt = 12;
constexpr int32_t kLacking = 7;

struct Answered {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  FinishReason reason = FinishReason::kMaxTokens;
  Code error = Code::kOk;
  bool operator==(const Answered&) const = default;
};

// All kinds of draws; number 5 has no token left at position kLackingAt, which must end it alone.
Request make_request(int i) {
  Request r;
  r.prompt = {3 + i, 4, 5};
  r.seed = static_cast<uint64_t>(i);
  r.max_tokens = kTokens;
  r.ignore_end = true;
  r.sampling.temperature = i == 3 ? 0 : 0.8;
  if (i % 2 == 0) r.sampling.top_p = 0.9;
  if (i % 3 == 0) r.sampling.frequency_penalty = 0.2f;
  if (i % 5 == 0) r.sampling.top_k = 20;
  if (i == 4) r.sampling.min_p = 0.01;
  if (i == 5) r.allowed_tokens = {kLacking};
  if (i == 6) r.sampling.logit_bias = {{9, 4.0f}};
  if (i == 7) r.forced_tokens = {1, -1, 2};
  if (i == 8) r.min_tokens = 10;
  r.logprobs = i % 2 == 1;
  r.processed_logprobs = i % 4 == 1;
  return r;
}

// kAlone: of a device that needs all cores. kWatched: with steps long enough that the waiting thread watches for their
// end.
enum class Steps : uint8_t { kAlone, kShort, kWatched };

std::unique_ptr<Engine> make_engine(Steps steps) {
  auto device = std::make_unique<FakeExecutor>(kAnswers, kVocab);
  device->on_row = [](int64_t, int position, int32_t, std::span<float> logits) {
    if (position == kLackingAt) logits[kLacking] = -std::numeric_limits<float>::infinity();
  };
  device->sizes().leaves_cores = steps != Steps::kAlone;
  if (steps == Steps::kWatched) {
    device->on_forward = [](const model::StepPlan&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return Status();
    };
  }
  EngineOptions options;
  options.prefix_cache = options.spill = false;  // the fake has no KV
  options.queue_events = kTokens + 8;
  return Engine::create(std::move(device), std::nullopt, options).value();
}

Answered read(Stream& stream) {
  Answered a;
  for (Event e; stream.next(&e);) {
    if (e.token >= 0) a.tokens.push_back(e.token);
    if (e.has_logprob) a.logprobs.push_back(e.logprob.logprob);
    if (e.finished) {
      a.reason = e.reason;
      a.error = e.error.code();
    }
  }
  return a;
}

class SharedDraws : public testing::TestWithParam<Steps> {};

TEST_P(SharedDraws, EqualThoseOfOneThread) {
  const auto engine = make_engine(GetParam());
  std::vector<Answered> alone;
  for (int i = 0; i < kAnswers; ++i) alone.push_back(read(*engine->submit(make_request(i)).value()));
  EXPECT_EQ(engine->stats().shared_draws, 0);  // one draw is not worth it
  EXPECT_EQ(alone[5].reason, FinishReason::kFailed);
  EXPECT_EQ(alone[5].tokens.size(), static_cast<size_t>(kLackingAt) - 2);

  // Whether the other thread comes in time is the machine's choice; at last it does, if there is one.
  constexpr int kRoundsMin = 6, kRoundsMax = 2000;
  const bool shares = GetParam() != Steps::kAlone || available_cores() > 1;
  for (int round = 0; round < kRoundsMin || (shares && engine->stats().shared_draws == 0); ++round) {
    ASSERT_LT(round, kRoundsMax);
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < kAnswers; ++i) streams.push_back(engine->submit(make_request(i)).value());
    for (int i = 0; i < kAnswers; ++i)
      ASSERT_EQ(read(*streams[static_cast<size_t>(i)]), alone[static_cast<size_t>(i)]) << i;
  }
  EXPECT_TRUE(engine->check_accounting().ok());
}

INSTANTIATE_TEST_SUITE_P(AllSteps, SharedDraws, testing::Values(Steps::kAlone, Steps::kShort, Steps::kWatched));

}  // namespace
}  // namespace deepinfer::engine
