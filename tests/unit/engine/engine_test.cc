#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include "tests/unit/engine/fake_executor.h"

namespace deepinfer::engine {
namespace {

constexpr int32_t kEnd = 1;

struct Got {
  std::vector<Event> events;
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kFailed;
  Status error;
  Usage usage;
};

Got read(Stream& stream, int sample = 0) {
  Got g;
  for (Event e; stream.next(&e);) {
    if (e.sample != sample) continue;
    if (e.token >= 0) g.tokens.push_back(e.token);
    if (e.finished) {
      g.reason = e.reason;
      g.error = e.error;
      g.usage = e.usage;
    }
    g.events.push_back(e);
  }
  return g;
}

bool leaves_cores = false;  // of every device below: steps beside each other, or one after the other

class EngineSteps : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { leaves_cores = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(AloneAndOverlapping, EngineSteps, testing::Bool());

struct Fixture {
  FakeExecutor* device = nullptr;  // the engine's
  std::unique_ptr<Engine> engine;

  explicit Fixture(EngineOptions options = {}, int sequences = 8) {
    auto executor = std::make_unique<FakeExecutor>(sequences);
    device = executor.get();
    device->sizes().leaves_cores = leaves_cores;
    options.end_tokens = {kEnd};
    options.prefix_cache = false;  // the fake has no KV
    options.spill = false;
    auto made = Engine::create(std::move(executor), std::nullopt, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    engine = std::move(made).value();
  }
  Got run(const Request& r, int sample = 0) {
    auto stream = engine->submit(r);
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    return read(*stream.value(), sample);
  }
};

Request greedy(std::vector<int32_t> prompt, int max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.temperature = 0;
  r.max_tokens = max_tokens;
  r.ignore_end = true;
  return r;
}

TEST_P(EngineSteps, EndsAtMaxTokensContextAndStopTokens) {
  Fixture f;
  const Got all = f.run(greedy({3, 4, 5}, 20));
  EXPECT_EQ(all.reason, FinishReason::kMaxTokens);
  ASSERT_EQ(all.tokens.size(), 20u);
  EXPECT_EQ(all.usage.output_tokens, 20);
  EXPECT_EQ(all.usage.prompt_tokens, 3);
  EXPECT_GT(all.usage.first_token_s, 0);

  Request r = greedy({3, 4, 5}, 20);
  r.stop_tokens = {all.tokens[7]};
  const auto first = static_cast<size_t>(std::ranges::find(all.tokens, all.tokens[7]) - all.tokens.begin());
  const Got stopped = f.run(r);
  EXPECT_EQ(stopped.reason, FinishReason::kStopToken);
  EXPECT_EQ(stopped.tokens,
            std::vector<int32_t>(all.tokens.begin(), all.tokens.begin() + static_cast<long>(first) + 1));
  EXPECT_TRUE(stopped.events[first].ends_answer);

  const Got full = f.run(greedy(std::vector<int32_t>(500, 7), 0));
  EXPECT_EQ(full.reason, FinishReason::kContextFull);
  EXPECT_EQ(full.tokens.size(), 12u);
}

TEST_P(EngineSteps, SeedsAndSamples) {
  Fixture f;
  Request r = greedy({3, 4, 5}, 16);
  r.sampling.temperature = 1.5;
  r.seed = 11;
  const std::vector<int32_t> one = f.run(r).tokens;
  EXPECT_EQ(f.run(r).tokens, one);
  r.n = 3;
  EXPECT_EQ(f.run(r, 0).tokens, one);
  const std::vector<int32_t> second = f.run(r, 1).tokens;
  EXPECT_NE(second, one);
  EXPECT_EQ(f.run(r, 1).tokens, second);
  r.n = 1;
  r.seed = 12;
  EXPECT_NE(f.run(r).tokens, one);
  r.seed.reset();  // without a seed every request has its own
  const std::vector<int32_t> a = f.run(r).tokens;
  EXPECT_NE(f.run(r).tokens, a);
  Fixture g;  // and the same engine seed gives the same ones again
  for (int i = 0; i < 6; ++i) g.run(greedy({9}, 1));
  EXPECT_EQ(g.run(r).tokens, a);
}

TEST_P(EngineSteps, MinTokensAllowedForcedAndBias) {
  Fixture f;
  f.device->on_row = [](int64_t, int, int32_t, std::span<float> x) { x[kEnd] = 100; };
  Request r = greedy({3}, 10);
  r.ignore_end = false;
  EXPECT_EQ(f.run(r).tokens, std::vector<int32_t>{kEnd});
  r.min_tokens = 5;
  const Got g = f.run(r);
  EXPECT_EQ(g.tokens.size(), 6u);
  EXPECT_EQ(std::ranges::count(g.tokens, kEnd), 1);
  EXPECT_EQ(g.tokens.back(), kEnd);

  r = greedy({3}, 30);
  r.allowed_tokens = {7, 33, 40};
  for (int32_t t : f.run(r).tokens) EXPECT_TRUE(t == 7 || t == 33 || t == 40);
  r.sampling.logit_bias = {{33, 100.0f}};
  EXPECT_EQ(f.run(r).tokens, std::vector<int32_t>(30, 33));
  r.forced_tokens = {5, -1, 6};
  const std::vector<int32_t> forced = f.run(r).tokens;
  EXPECT_EQ(std::vector<int32_t>(forced.begin(), forced.begin() + 4), (std::vector<int32_t>{5, 33, 6, 33}));
  r.allowed_tokens = {kEnd};
  r.forced_tokens.clear();
  r.ignore_end = false;
  r.min_tokens = 2;
  const Got none = f.run(r);
  EXPECT_EQ(none.reason, FinishReason::kFailed);
  EXPECT_NE(none.error.message().find("allowed_tokens"), std::string::npos);
  EXPECT_TRUE(none.tokens.empty());
  EXPECT_EQ(f.run(greedy({3}, 4)).reason, FinishReason::kMaxTokens);
}

TEST_P(EngineSteps, Logprobs) {
  Fixture f;
  std::vector<std::vector<float>> rows;
  f.device->on_row = [&](int64_t, int, int32_t, std::span<float> x) { rows.emplace_back(x.begin(), x.end()); };
  Request r = greedy({3, 9, 4}, 3);
  r.logprobs = true;
  r.top_logprobs = 4;
  r.sampling.temperature = 0.3;  // they are the model's own, whatever the sampling
  r.sampling.presence_penalty = 2;
  const auto check = [](const std::vector<float>& row, const TokenLogprob& got) {
    double sum = 0;
    for (float x : row) sum += std::exp(static_cast<double>(x));
    EXPECT_NEAR(got.logprob, row[static_cast<size_t>(got.token)] - std::log(sum), 1e-6);
  };
  const Got g = f.run(r);
  ASSERT_EQ(rows.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(g.events[i].has_logprob);
    check(rows[i], g.events[i].logprob);
    ASSERT_EQ(g.events[i].top.size(), 4u);
    EXPECT_EQ(g.events[i].top[0].token, std::ranges::max_element(rows[i]) - rows[i].begin());
    for (size_t k = 0; k < 4; ++k) {
      check(rows[i], g.events[i].top[k]);
      if (k > 0) {
        EXPECT_GE(g.events[i].top[k - 1].logprob, g.events[i].top[k].logprob);
      }
    }
  }
  rows.clear();
  r.prompt = std::vector<int32_t>(100);
  for (int i = 0; i < 100; ++i) r.prompt[static_cast<size_t>(i)] = (i * 7) % 64;
  r.prompt_logprobs = true;
  auto stream = f.engine->submit(r).value();
  read(*stream);
  ASSERT_EQ(stream->prompt_logprobs().size(), 100u);
  for (size_t i = 1; i < 100; ++i) {
    EXPECT_EQ(stream->prompt_logprobs()[i].token.token, r.prompt[i]);
    check(rows[i - 1], stream->prompt_logprobs()[i].token);
    EXPECT_EQ(stream->prompt_logprobs()[i].top.size(), 4u);
  }
}

// A step fails whenever the culprit is in it: only the culprit ends, the others get the tokens that they get alone.
TEST_P(EngineSteps, AFailedStepEndsTheCulpritOnly) {
  for (const bool late : {false, true}) {
    Fixture quiet, f;
    std::vector<std::vector<int32_t>> want;
    for (int i = 0; i < 5; ++i) want.push_back(quiet.run(greedy({10 + i, 3}, 12)).tokens);
    const auto fails = [](const model::StepPlan& plan) {
      for (const model::StepSequence& s : plan.sequences) {
        if (s.id == 3 && s.first_position >= 6) return Status(Code::kInternal, "row check failed");
      }
      return Status();
    };
    (late ? f.device->on_logits : f.device->on_forward) = fails;
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 5; ++i) streams.push_back(f.engine->submit(greedy({10 + i, 3}, 12)).value());
    for (int i = 0; i < 5; ++i) {
      const Got g = read(*streams[static_cast<size_t>(i)]);
      if (i == 2) {
        EXPECT_EQ(g.reason, FinishReason::kFailed);
        EXPECT_EQ(g.error.message(), "row check failed");
        EXPECT_LT(g.tokens.size(), 12u);
      } else {
        EXPECT_EQ(g.reason, FinishReason::kMaxTokens) << g.error.message();
        EXPECT_EQ(g.tokens, want[static_cast<size_t>(i)]);
      }
    }
    EXPECT_GT(f.engine->stats().failed_steps, 0);
    EXPECT_TRUE(f.engine->drain(10).ok());
    EXPECT_TRUE(f.engine->check_accounting().ok());
  }
}

// A device that answers no more (a GPU that is lost): every request gets its sentence, none waits, later ones neither.
TEST_P(EngineSteps, ALostDeviceFailsEveryRequestWithItsSentence) {
  for (const bool late : {false, true}) {
    Fixture f;
    std::atomic<int> steps = 0;
    const auto lost = [&](const model::StepPlan&) {
      return ++steps > 5 ? Status(Code::kUnavailable, "The GPU is taken for lost.") : Status();
    };
    (late ? f.device->on_logits : f.device->on_forward) = lost;
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 12; ++i) streams.push_back(f.engine->submit(greedy({10 + i, 3}, 40)).value());
    for (const auto& stream : streams) {
      const Got g = read(*stream);
      EXPECT_EQ(g.reason, FinishReason::kFailed);
      EXPECT_EQ(g.error.code(), Code::kUnavailable);
      EXPECT_EQ(g.error.message(), "The GPU is taken for lost.");
    }
    const Got after = f.run(greedy({7}, 4));
    EXPECT_EQ(after.reason, FinishReason::kFailed);
    EXPECT_EQ(after.error.message(), "The GPU is taken for lost.");
    EXPECT_TRUE(f.engine->drain(10).ok());
    EXPECT_TRUE(f.engine->check_accounting().ok());
  }
}

TEST_P(EngineSteps, DamagedLogitsEndOneAnswer) {
  Fixture f;
  f.device->on_row = [](int64_t id, int position, int32_t, std::span<float> x) {
    if (id == 1 && position == 5) std::ranges::fill(x, std::numeric_limits<float>::quiet_NaN());
  };
  auto bad = f.engine->submit(greedy({3, 4}, 10)).value();
  auto good = f.engine->submit(greedy({3, 4}, 10)).value();
  const Got b = read(*bad);
  EXPECT_EQ(b.reason, FinishReason::kFailed);
  EXPECT_EQ(b.error.code(), Code::kDataLoss);
  EXPECT_EQ(b.tokens.size(), 4u);
  EXPECT_EQ(read(*good).tokens.size(), 10u);
}

// fixtures/bugs 22: readers that vanish in the middle.
TEST_P(EngineSteps, CancelAndDroppedStreams) {
  Fixture f;
  for (int i = 0; i < 30; ++i) {
    Request r = greedy({i, 2, 3}, 400);
    r.n = 1 + i % 3;
    auto stream = f.engine->submit(r).value();
    Event e;
    for (int k = 0; k < i % 4; ++k) stream->next(&e);
    if (i % 2 == 0) {
      stream->cancel();
      const Got g = read(*stream);
      EXPECT_EQ(g.reason, FinishReason::kCancelled);
    }
  }
  EXPECT_EQ(f.run(greedy({5}, 5)).tokens.size(), 5u);
  ASSERT_TRUE(f.engine->drain(20).ok());
  EXPECT_TRUE(f.engine->check_accounting().ok());
  EXPECT_EQ(f.engine->submit(greedy({5}, 5)).status().code(), Code::kUnavailable);
}

TEST_P(EngineSteps, ASlowReaderPausesOnlyItself) {
  EngineOptions options;
  options.queue_events = 8;
  Fixture f(options);
  auto slow = f.engine->submit(greedy({3, 4}, 200)).value();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(f.run(greedy({5, i}, 100)).tokens.size(), 100u);
  const int64_t before = f.engine->stats().output_tokens;
  EXPECT_LE(before, 2000 + 8);
  const Got g = read(*slow);
  EXPECT_EQ(g.tokens.size(), 200u);
  EXPECT_EQ(g.reason, FinishReason::kMaxTokens);
  Fixture quick;
  EXPECT_EQ(g.tokens, quick.run(greedy({3, 4}, 200)).tokens);
}

TEST_P(EngineSteps, TimeoutsAndTheEndOfTheEngine) {
  Fixture f;
  f.device->on_forward = [](const model::StepPlan&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return Status();
  };
  Request r = greedy({3, 4}, 400);
  r.timeout_s = 0.05;
  const Got g = f.run(r);
  EXPECT_EQ(g.reason, FinishReason::kTimeout);
  EXPECT_LT(g.tokens.size(), 400u);
  r.timeout_s = 0;
  r.n = 2;
  auto left = f.engine->submit(r).value();
  f.engine.reset();
  EXPECT_EQ(read(*left).reason, FinishReason::kCancelled);
}

TEST_P(EngineSteps, TimeMayBeOverBeforeARequestRuns) {
  EngineOptions options;
  options.queue_events = 8;
  Fixture f(options, 1);
  Request late = greedy({3, 4}, 10);
  late.timeout_s = 1e-9;
  EXPECT_EQ(f.run(late).reason, FinishReason::kTimeout);  // nothing else runs
  auto unread = f.engine->submit(greedy({3, 4}, 200)).value();
  late.timeout_s = 0.02;
  const Got g = f.run(late);  // behind one that has the only place, and whose reader does not read
  EXPECT_EQ(g.reason, FinishReason::kTimeout);
  EXPECT_TRUE(g.tokens.empty());
  EXPECT_EQ(read(*unread).tokens.size(), 200u);
}

TEST_P(EngineSteps, RefusesMoreThanMayWait) {
  EngineOptions options;
  options.waiting_max = 2;
  Fixture f(options, 1);
  std::atomic<bool> held{true};  // none ends before the fourth comes
  f.device->on_forward = [&](const model::StepPlan&) {
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status();
  };
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(f.engine->submit(greedy({3}, 50)).value());
  EXPECT_EQ(f.engine->submit(greedy({3}, 50)).status().code(), Code::kResourceExhausted);
  held = false;
  for (auto& s : streams) EXPECT_EQ(read(*s).tokens.size(), 50u);
  EXPECT_TRUE(f.engine->submit(greedy({3}, 5)).ok());
}

TEST_P(EngineSteps, NotifiesItsReader) {
  Fixture f;
  std::atomic<int> calls{0};
  auto stream = f.engine->submit(greedy({3}, 5)).value();
  stream->on_events([&] { ++calls; });
  while (!stream->done()) {
    const int seen = calls;
    Event e;
    while (stream->try_next(&e)) {
    }
    if (!stream->done() && calls == seen) std::this_thread::yield();
  }
  EXPECT_GT(calls, 0);
}

// A reader that leaves with its last event is not called any more, although the engine is about to.
TEST_P(EngineSteps, DoesNotNotifyAReaderThatHasLeft) {
  Fixture f;
  for (int i = 0; i < 100; ++i) {
    auto alive = std::make_unique<std::atomic<bool>>(true);
    auto stream = f.engine->submit(greedy({3}, 1 + i % 3)).value();
    stream->on_events([flag = alive.get()] { EXPECT_TRUE(*flag); });
    Event e;
    while (!stream->done()) stream->try_next(&e);
    stream.reset();
    *alive = false;
    std::this_thread::yield();
    f.engine->stats();  // the step has ended
  }
}

// fixtures/bugs 12 and every other parameter out of range: refused by name, and the engine goes on.
TEST_P(EngineSteps, ProcessedLogprobsAreOfWhatIsDrawnFrom) {
  Fixture f;
  Request r = greedy({3, 4, 5}, 6);
  r.sampling = {.temperature = 0.7, .top_p = 0.9, .top_k = 9};
  r.seed = 5;
  r.logprobs = r.processed_logprobs = true;
  r.top_logprobs = 20;
  r.forced_tokens = {-1, -1, -1, 7};
  std::vector<std::vector<float>> rows;
  r.on_logits = [&](int32_t sample, int32_t position, std::span<const float> logits) {
    EXPECT_EQ(sample, 0);
    EXPECT_EQ(position, static_cast<int32_t>(3 + rows.size()));
    rows.emplace_back(logits.begin(), logits.end());
  };
  const Got got = f.run(r);
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Event& e = got.events[i];
    // By the definition: softmax at the temperature, the shortest prefix beyond top_p, at most top_k, renormalised.
    std::vector<std::pair<double, int32_t>> all;
    double sum = 0;
    for (int32_t t = 0; t < 64; ++t) {
      all.emplace_back(-std::exp(static_cast<double>(rows[i][static_cast<size_t>(t)]) / 0.7), t);
      sum -= all.back().first;
    }
    std::ranges::sort(all);
    size_t kept = 0;
    double mass = 0;
    while (kept < 9 && mass <= 0.9 * sum) mass -= all[kept++].first;
    ASSERT_EQ(e.top.size(), kept);
    double of = kLogprobFloor;
    for (size_t k = 0; k < kept; ++k) {
      EXPECT_EQ(e.top[k].token, all[k].second);
      EXPECT_NEAR(e.top[k].logprob, std::log(-all[k].first / mass), 1e-5);
      if (all[k].second == e.token) of = e.top[k].logprob;
    }
    EXPECT_EQ(e.logprob.logprob, of);
    EXPECT_EQ(e.token == 7, i == 3);
  }
  r.on_logits = nullptr;
  r.sampling.temperature = 0;
  r.forced_tokens.clear();
  for (const Event& e : f.run(r).events) {
    if (e.token < 0) continue;
    EXPECT_EQ(e.logprob.logprob, 0);
    EXPECT_EQ(e.top.size(), 1u);
  }
  r.logprobs = false;
  EXPECT_FALSE(f.engine->submit(r).ok());
}

TEST_P(EngineSteps, BannedTokensAndTopKOfTheEngine) {
  Fixture open;
  Request r = greedy({3, 4, 5}, 12);
  const std::vector<int32_t> all = open.run(r).tokens;
  Fixture banned({.banned_tokens = {all[0], all[1], all[2]}});
  for (int32_t t : banned.run(r).tokens) EXPECT_EQ(std::count(all.begin(), all.begin() + 3, t), 0);
  r.allowed_tokens = {all[0], 9};
  for (int32_t t : banned.run(r).tokens) EXPECT_EQ(t, 9);
  r.allowed_tokens.clear();
  Fixture narrow({.top_k_max = 1});
  r.sampling.temperature = 5;
  r.sampling.top_k = 40;
  EXPECT_EQ(narrow.run(r).tokens, all);
  EXPECT_FALSE(Engine::create(std::make_unique<FakeExecutor>(), std::nullopt, {.banned_tokens = {64}}).ok());
}

TEST_P(EngineSteps, AnObserverSeesEveryStepOnce) {
  struct Steps : StepObserver {
    void on_step(const StepRecord& r) override {
      std::vector<double> times = {r.at.begin, r.at.planned, r.at.started, r.at.ready, r.at.sampled, r.at.streamed};
      EXPECT_TRUE(std::ranges::is_sorted(times));
      ASSERT_EQ(r.plan.samples.size(), r.result.samples.size());
      rows += r.plan.step.tokens.size();
      for (size_t i = 0; i < r.plan.samples.size(); ++i) {
        const auto row = r.logits.subspan(static_cast<size_t>(r.plan.samples[i].logits_row) * 64, 64);
        const auto best = static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
        EXPECT_EQ(r.result.samples[i].tokens, std::vector<int32_t>{best});
        tokens[r.plan.samples[i].id].push_back(best);
      }
    }
    void on_commit(double begin, double end) override {
      EXPECT_LE(ended, begin);
      EXPECT_LE(begin, end);
      ended = end;
    }
    std::map<int64_t, std::vector<int32_t>> tokens;
    size_t rows = 0;
    double ended = 0;
  };
  auto steps = std::make_shared<Steps>();
  std::vector<int32_t> first, second;
  {
    Fixture f({.observer = steps});
    first = f.run(greedy({3, 4, 5}, 9)).tokens;
    second = f.run(greedy({6}, 4)).tokens;
  }
  ASSERT_EQ(steps->tokens.size(), 2u);
  EXPECT_EQ(steps->tokens.begin()->second, first);
  EXPECT_EQ(steps->tokens.rbegin()->second, second);
  EXPECT_EQ(steps->rows, 3u + 8 + 1 + 3);
}

TEST_P(EngineSteps, NamesParametersThatAreOutOfRange) {
  Fixture f;
  const auto refused = [&](std::string_view name, auto change) {
    Request r = greedy({3, 4}, 5);
    change(r);
    const auto stream = f.engine->submit(r);
    EXPECT_FALSE(stream.ok()) << name;
    EXPECT_TRUE(stream.status().code() == Code::kInvalidArgument || stream.status().code() == Code::kUnsupported);
    EXPECT_NE(stream.status().message().find(name), std::string::npos) << stream.status().message();
    EXPECT_EQ(f.run(greedy({3, 4}, 2)).tokens.size(), 2u);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto nanf = static_cast<float>(nan);
  refused("logit_bias", [](Request& r) { r.sampling.logit_bias = {{9999999, -100}}; });
  refused("logit_bias", [](Request& r) { r.sampling.logit_bias = {{-1, 5}}; });
  refused("logit_bias", [](Request& r) { r.sampling.logit_bias = {{7, 1e9f}}; });
  refused("logit_bias", [=](Request& r) { r.sampling.logit_bias = {{7, nanf}}; });
  refused("temperature", [](Request& r) { r.sampling.temperature = -0.1; });
  refused("temperature", [=](Request& r) { r.sampling.temperature = nan; });
  refused("top_p", [](Request& r) { r.sampling.top_p = 0; });
  refused("top_p", [=](Request& r) { r.sampling.top_p = nan; });
  refused("top_k", [](Request& r) { r.sampling.top_k = 0; });
  refused("min_p", [](Request& r) { r.sampling.min_p = 1.5; });
  refused("repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0; });
  refused("frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = 1000; });
  refused("presence_penalty", [=](Request& r) { r.sampling.presence_penalty = nanf; });
  refused("prompt", [](Request& r) { r.prompt.clear(); });
  refused("prompt[1]", [](Request& r) { r.prompt[1] = 64; });
  refused("512", [](Request& r) { r.prompt.resize(512, 3); });
  refused("n is 0", [](Request& r) { r.n = 0; });
  refused("n is 9", [](Request& r) { r.n = 9; });
  refused("max_tokens", [](Request& r) { r.max_tokens = -1; });
  refused("min_tokens", [](Request& r) { r.min_tokens = 6; });
  refused("stop_tokens", [](Request& r) { r.stop_tokens = {64}; });
  refused("stop needs", [](Request& r) { r.stop = {"x"}; });
  refused("top_logprobs", [](Request& r) { r.top_logprobs = 3; });
  refused("top_logprobs", [](Request& r) { r.logprobs = true, r.top_logprobs = 1001; });
  refused("allowed_tokens", [](Request& r) { r.allowed_tokens = {-1}; });
  refused("forced_tokens", [](Request& r) { r.forced_tokens = {1, -2}; });
  refused("priority", [](Request& r) { r.priority = 9; });
  refused("timeout_s", [](Request& r) { r.timeout_s = -1; });
  Request r = greedy({3}, 2);
  r.tenant = 5;
  const Got g = f.run(r);
  EXPECT_EQ(g.reason, FinishReason::kFailed);
  EXPECT_NE(g.error.message().find("tenant"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::engine
