#include "engine/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace deepinfer::engine {
namespace {

// Its most likely next token is (last + 1) mod vocab, and it writes down what it was asked.
class CountingModel : public SequenceModel {
 public:
  struct Call {
    std::vector<int32_t> tokens;
    int64_t position, decoder_begin;
    bool logits;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls;
  int64_t context = 64, rows = 4;
  float peak = 5;
  int fail_at = -1;

  int64_t vocab_size() const override { return 16; }
  int64_t context_max() const override { return context; }
  int64_t rows_max() const override { return rows; }
  int64_t keep() const override { return 5; }
  Status forward(std::span<const int32_t> tokens, int64_t position, int64_t decoder_begin,
                 std::span<float> logits) override {
    if (static_cast<int>(calls.size()) == fail_at) return Status(Code::kInternal, "broken");
    calls.push_back({{tokens.begin(), tokens.end()}, position, decoder_begin, !logits.empty()});
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<int>(i) == (tokens.back() + 1) % 16 ? peak : 0;
    return Status();
  }
};

struct Outcome {
  std::vector<int32_t> tokens;
  Result<GenerateResult> result;
};

Outcome run(CountingModel& model, const GenerateRequest& request, const std::atomic<bool>* stop = nullptr,
            size_t sink_limit = 1000) {
  Outcome out{{}, GenerateResult()};
  Generator generator(model);
  out.result = generator.generate(
      request,
      [&](int32_t t) {
        out.tokens.push_back(t);
        return out.tokens.size() < sink_limit;
      },
      stop);
  return out;
}

GenerateRequest greedy(std::span<const int32_t> prompt, int64_t max_tokens) {
  GenerateRequest r;
  r.prompt = prompt;
  r.sampling.temperature = 0;
  r.max_tokens = max_tokens;
  return r;
}

const std::vector<int32_t> kPrompt = {3, 1, 4, 1, 5, 9, 2, 6, 5};

TEST(Generator, PrefillsInPartsAndDecodes) {
  CountingModel model;
  const Outcome r = run(model, greedy(kPrompt, 3));
  ASSERT_TRUE(r.result.ok());
  EXPECT_EQ(r.tokens, (std::vector<int32_t>{6, 7, 8}));
  EXPECT_EQ(r.result.value().end, EndReason::kMaxTokens);
  EXPECT_EQ(r.result.value().prompt_tokens, 9);
  EXPECT_EQ(r.result.value().output_tokens, 3);
  const std::vector<CountingModel::Call> want = {{{3, 1, 4, 1}, 0, 4, false},
                                                 {{5, 9, 2, 6}, 4, 4, false},
                                                 {{5}, 8, 4, true},
                                                 {{6}, 9, 4, true},
                                                 {{7}, 10, 4, true}};
  EXPECT_TRUE(model.calls == want);
}

TEST(Generator, FullPrefillBeginsTheDecoderAtZero) {
  CountingModel model;
  GenerateRequest request = greedy(kPrompt, 2);
  request.prefill = Prefill::kFull;
  run(model, request);
  for (const auto& call : model.calls) EXPECT_EQ(call.decoder_begin, 0);
}

TEST(Generator, EndsAtStopTokenContextSinkAndCancel) {
  CountingModel model;
  GenerateRequest request = greedy(kPrompt, 0);
  request.stop_tokens = {9};
  Outcome r = run(model, request);
  EXPECT_EQ(r.tokens, (std::vector<int32_t>{6, 7, 8}));
  EXPECT_EQ(r.result.value().end, EndReason::kStopToken);
  EXPECT_EQ(r.result.value().output_tokens, 4);

  model.context = 12;
  r = run(model, greedy(kPrompt, 0));
  EXPECT_EQ(r.tokens.size(), 3u);
  EXPECT_EQ(r.result.value().end, EndReason::kContextFull);
  EXPECT_EQ(model.calls.back().position, 10);

  r = run(model, greedy(kPrompt, 0), nullptr, 2);
  EXPECT_EQ(r.tokens.size(), 2u);
  EXPECT_EQ(r.result.value().end, EndReason::kSink);

  const std::atomic<bool> stop{true};
  r = run(model, greedy(kPrompt, 0), &stop);
  EXPECT_TRUE(r.tokens.empty());
  EXPECT_EQ(r.result.value().end, EndReason::kCancelled);
}

TEST(Generator, RefusesPromptsThatCannotRun) {
  CountingModel model;
  model.context = 9;
  EXPECT_EQ(run(model, greedy({}, 1)).result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(run(model, greedy(kPrompt, 1)).result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(run(model, greedy(std::vector<int32_t>{1, 16}, 1)).result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(run(model, greedy(std::vector<int32_t>{-1}, 1)).result.status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(model.calls.empty());
}

TEST(Generator, PassesErrorsOn) {
  CountingModel model;
  model.fail_at = 4;
  EXPECT_EQ(run(model, greedy(kPrompt, 9)).result.status().message(), "broken");
  CountingModel nothing;
  nothing.peak = INFINITY;
  EXPECT_EQ(run(nothing, greedy(kPrompt, 9)).result.status().code(), Code::kInternal);
}

TEST(Generator, SeedDecidesAndChunksDoNot) {
  CountingModel a, b, c;
  a.peak = b.peak = c.peak = 1;
  b.rows = 9;
  GenerateRequest request = greedy(kPrompt, 20);
  request.sampling.temperature = 1;
  request.seed = 5;
  const std::vector<int32_t> first = run(a, request).tokens;
  EXPECT_EQ(run(b, request).tokens, first);
  request.seed = 6;
  EXPECT_NE(run(c, request).tokens, first);
}

TEST(Generator, PenaltiesSeeTheOutput) {
  CountingModel model;
  GenerateRequest request = greedy(kPrompt, 20);
  request.sampling.presence_penalty = 100;
  std::vector<int32_t> tokens = run(model, request).tokens;
  std::sort(tokens.begin(), tokens.begin() + 16);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(tokens[i], i);
}

}  // namespace
}  // namespace deepinfer::engine
