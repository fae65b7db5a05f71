// Many requests at once equal each of them alone, bit for bit; afterwards every block is back.
#include <map>
#include <thread>
#include <tuple>

#include "tests/engine/support.h"

namespace deepinfer {
namespace {

using engine::FinishReason;
using engine::Request;
using testing::Collected;

struct Case {
  Request request;
  int cancel_after = -1;
  bool slow_reader = false;
};

// Greedy and sampled, one and several answers, long and short, with shared beginnings, cancelled ones.
std::vector<Case> mixed_cases(int count) {
  std::vector<Case> cases;
  const std::vector<int32_t> shared = testing::random_prompt(300, 77);
  constexpr int kLengths[] = {1, 2, 5, 17, 64, 76, 77, 128, 129, 200, 300, 411};
  for (int i = 0; i < count; ++i) {
    Case c;
    Request& r = c.request;
    r.prompt = testing::random_prompt(kLengths[i % 12], static_cast<uint32_t>(i));
    if (i % 3 == 1) r.prompt.insert(r.prompt.begin(), shared.begin(), shared.begin() + (i % 2 ? 300 : 256));
    r.seed = static_cast<uint64_t>(i) * 1000003;
    r.max_tokens = 1 + (i * 7) % 30;
    if (i % 2 == 0) r.sampling.temperature = 0;
    if (i % 4 == 1) {
      r.sampling.top_p = 0.9;
      r.sampling.temperature = 0.8;
    }
    if (i % 8 == 3) r.sampling.top_k = 20;
    if (i % 5 == 0) {
      r.sampling.frequency_penalty = 0.5f;
      r.sampling.repetition_penalty = 1.2f;
    }
    if (i % 7 == 0) r.sampling.logit_bias = {{42, 3.0f}, {43, -100.0f}};
    if (i % 6 == 5) r.n = 2 + i % 3;
    if (i % 11 == 4) r.full_prefill = true;
    if (i % 13 == 6) c.cancel_after = 3;
    if (i % 9 == 2) c.slow_reader = true;
    r.logprobs = i % 4 != 2;
    cases.push_back(std::move(c));
  }
  return cases;
}

// The oracle's answers, once for all variants.
const testing::AloneAnswer& answer_alone(const std::string& model, const Case& c, int number, int sample) {
  static std::map<std::string, std::unique_ptr<testing::Alone>> models;
  static std::map<std::tuple<std::string, int, int>, testing::AloneAnswer> known;
  std::unique_ptr<testing::Alone>& alone = models[model];
  if (!alone) alone = std::make_unique<testing::Alone>(model);
  testing::AloneAnswer& answer = known[{model, number, sample}];
  if (answer.tokens.empty()) answer = alone->answer(c.request, sample);
  return answer;
}

void check_case(const std::string& model, const Case& c, const std::vector<Collected>& got, int number) {
  for (int s = 0; s < c.request.n; ++s) {
    SCOPED_TRACE(::testing::Message() << "request " << number << ", answer " << s);
    testing::AloneAnswer want = answer_alone(model, c, number, s);
    EXPECT_EQ(got[s].ends, 1);
    if (got[s].reason == FinishReason::kCancelled) {
      ASSERT_GE(c.cancel_after, 0);
      ASSERT_LE(got[s].tokens.size(), want.tokens.size());
      want.tokens.resize(got[s].tokens.size());
      want.logprobs.resize(got[s].tokens.size());
    } else {
      EXPECT_TRUE(got[s].reason == FinishReason::kMaxTokens || got[s].reason == FinishReason::kStopToken)
          << engine::finish_reason_name(got[s].reason) << " " << got[s].error.message();
    }
    EXPECT_EQ(got[s].tokens, want.tokens);
    if (c.request.logprobs) {
      EXPECT_EQ(got[s].logprobs, want.logprobs);  // exactly
    }
    EXPECT_EQ(got[s].usage.output_tokens, static_cast<int>(got[s].tokens.size()));
  }
}

struct Variant {
  const char* name;
  testing::EngineSetup setup;
  int count;
};

class Mixed : public ::testing::TestWithParam<int> {};

std::vector<Variant> variants() {
  std::vector<Variant> v(5);
  v[0].name = "roomy";
  v[0].count = 64;
  v[1].name = "few_blocks_spill";
  v[1].setup.blocks = 14;
  v[1].setup.beside = true;
  v[1].count = 40;
  v[2].name = "few_blocks_recompute";
  v[2].setup.blocks = 14;
  v[2].setup.options.spill = false;
  v[2].count = 40;
  v[3].name = "small_steps_one_thread";
  v[3].setup.rows = 24;
  v[3].setup.threads = 1;
  v[3].setup.blocks = 20;
  v[3].count = 24;
  v[4].name = "bundled";
  v[4].setup.model = "tiny-trained";
  v[4].setup.blocks = 16;
  v[4].count = 14;
  // The bundled model's drafts come true often, those of random weights hardly ever.
  const auto add_drafts = [&v](const char* name, const engine::DraftOptions& drafts, const char* model, int count) {
    Variant d;
    d.name = name;
    d.setup.model = model;
    d.setup.blocks = 16;
    d.setup.options.drafts = drafts;
    d.setup.beside = drafts.drafts_max == 1;
    d.count = count;
    v.push_back(d);
  };
  using engine::DraftMode;
  add_drafts("drafts_fixed_1", {.mode = DraftMode::kFixed, .drafts_max = 1}, "tiny-random", 24);
  add_drafts("drafts_fixed_5_random", {.mode = DraftMode::kFixed}, "tiny-random", 40);
  add_drafts("drafts_fixed_5", {.mode = DraftMode::kFixed, .text = false}, "tiny-trained", 14);
  add_drafts("drafts_by_confidence", {.mode = DraftMode::kConfidence}, "tiny-trained", 14);
  add_drafts("drafts_from_text", {.mode = DraftMode::kFixed, .model = false}, "tiny-trained", 14);
  Variant unsteady;
  unsteady.name = "fewer_blocks_unsteady";
  unsteady.setup.blocks = 9;
  unsteady.setup.unsteady = true;
  unsteady.count = 40;
  v.push_back(unsteady);
  for (Variant& variant : v) variant.setup.options.queue_events = 8;
  return v;
}

TEST_P(Mixed, EqualsAlone) {
  const Variant v = variants()[GetParam()];
  if (testing::kSanitized && v.setup.model != "tiny-random") GTEST_SKIP() << "sanitizer build";
  const int count = testing::kSanitized ? 20 : v.count;
  const std::vector<Case> cases = mixed_cases(count);
  const auto engine = testing::make_engine(v.setup);
  std::vector<std::vector<Collected>> got(cases.size());
  {
    std::vector<std::thread> readers;
    for (size_t i = 0; i < cases.size(); ++i) {
      auto stream = engine->submit(cases[i].request);
      ASSERT_TRUE(stream.ok()) << stream.status().message();
      readers.emplace_back([&, i, s = std::move(stream).value()] {
        if (cases[i].slow_reader) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        got[i] = testing::collect(*s, cases[i].request.n, cases[i].cancel_after);
      });
    }
    for (std::thread& t : readers) t.join();
  }
  for (size_t i = 0; i < cases.size(); ++i) check_case(v.setup.model, cases[i], got[i], static_cast<int>(i));
  ASSERT_TRUE(engine->drain(60).ok());
  const Status status = engine->check_accounting();
  EXPECT_TRUE(status.ok()) << status.message();
  const engine::EngineStats stats = engine->stats();
  if (v.setup.blocks > 0 && v.setup.blocks < 16) {
    EXPECT_GT(stats.scheduler.spilled + stats.scheduler.recomputed, 0);
  }
  if (!v.setup.options.spill) {
    EXPECT_EQ(stats.scheduler.spilled, 0);
  }
  EXPECT_GT(stats.scheduler.forks, 0);
  EXPECT_EQ(stats.failed_steps, 0);
  if (v.setup.options.drafts.mode == engine::DraftMode::kFixed) {
    EXPECT_GT(stats.drafts.verify_rows, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Mixed, ::testing::Range(0, 11),
                         [](const auto& info) { return std::string(variants()[info.param].name); });

}  // namespace
}  // namespace deepinfer
