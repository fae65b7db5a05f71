#include "app/run/report.h"

#include <gtest/gtest.h>

namespace deepinfer::app {
namespace {

TEST(Totals, CountTheFirstTokenToThePrompt) {
  Totals totals;
  totals.add({.prompt_tokens = 100, .output_tokens = 11, .prefill_s = 0.5, .decode_s = 0.1});
  EXPECT_EQ(totals.to_string(), "100 prompt tokens at 200.0 tokens/s, 11 answer tokens at 100.0 tokens/s");
  totals.add({.prompt_tokens = 100, .output_tokens = 11, .prefill_s = 1.5, .decode_s = 0.1});
  EXPECT_EQ(totals.to_string(), "200 prompt tokens at 100.0 tokens/s, 22 answer tokens at 100.0 tokens/s");
  EXPECT_EQ(Totals().to_string(), "0 prompt tokens, 0 answer tokens");
}

TEST(WhyCut, NamesTheLimitAndTheStage) {
  Answer answer;
  EXPECT_EQ(why_cut(answer), "");
  answer.finish = recipe::FinishReason::kLength;
  EXPECT_EQ(why_cut(answer), "Cut at --max-tokens.");
  answer.in_reasoning = true;
  EXPECT_EQ(why_cut(answer), "Cut at --max-tokens while still thinking.");
  answer.finish = recipe::FinishReason::kContextFull;
  EXPECT_EQ(why_cut(answer), "Cut because the context is full (--context) while still thinking.");
  answer.cancelled = true;
  EXPECT_EQ(why_cut(answer), "Stopped.");
}

TEST(AnswerJson, HoldsTextUsageAndFigures) {
  Answer answer{.reasoning = "r", .content = "c\n", .reasoning_tokens = 2};
  answer.figures = {.prompt_tokens = 10, .output_tokens = 5, .prefill_s = 0.5, .decode_s = 2};
  EXPECT_EQ(
      recipe::to_compact_json(answer_json(answer, {.model = "m", .seed = ~uint64_t{0}, .load_s = 0.25})),
      R"({"model":"m","content":"c\n","reasoning_content":"r","finish_reason":"stop","seed":18446744073709551615,)"
      R"("usage":{"prompt_tokens":10,"completion_tokens":5,"reasoning_tokens":2},)"
      R"("figures":{"load_s":0.25,"first_token_s":0.5,"prompt_tokens_per_s":20.0,"decode_tokens_per_s":2.0}})");
}

}  // namespace
}  // namespace deepinfer::app
