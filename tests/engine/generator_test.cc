// Chat turns on the engine's generator equal those of one sequence alone, and only cost what is new.
#include "engine/engine_generator.h"

#include "tests/engine/support.h"

namespace deepinfer {
namespace {

using engine::EndReason;
using engine::GenerateRequest;
using engine::GenerateResult;

struct Turn {
  GenerateResult figures;
  std::vector<int32_t> tokens;
};

// Ends after `tokens` tokens by the sink's wish.
template <class G>
Turn run(G& generator, const std::vector<int32_t>& prompt, int tokens, engine::Prefill prefill) {
  GenerateRequest request{.prompt = prompt, .seed = 3, .max_tokens = 60, .prefill = prefill};
  request.sampling.temperature = 0.9;
  request.sampling.top_p = 0.95;
  Turn turn;
  const auto result = generator.generate(
      request,
      [&](int32_t t) {
        turn.tokens.push_back(t);
        return static_cast<int>(turn.tokens.size()) < tokens;
      },
      nullptr);
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (result.ok()) turn.figures = result.value();
  return turn;
}

TEST(EngineGenerator, TurnsEqualOneSequenceAlone) {
  const auto checkpoint = testing::open_checkpoint("tiny-random");
  const auto generator =
      engine::EngineGenerator::create(checkpoint, ops::make_cpu_ops(2), testing::kContext).value();
  const auto model = engine::SingleSequence::create(checkpoint, ops::make_cpu_ops(2), testing::kContext).value();
  engine::Generator alone(*model);
  std::vector<int32_t> text = testing::random_prompt(300, 5);
  for (int turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(turn);
    const engine::Prefill prefill = turn == 2 ? engine::Prefill::kFull : engine::Prefill::kTail;
    const Turn got = run(*generator, text, 20 + turn, prefill), want = run(alone, text, 20 + turn, prefill);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.figures.end, EndReason::kSink);
    EXPECT_EQ(got.figures.output_tokens, want.figures.output_tokens);
    if (turn == 1 || turn == 3) {
      EXPECT_GE(got.figures.cached_tokens, 256);
    }
    text.insert(text.end(), got.tokens.begin(), got.tokens.end());
    text.insert(text.end(), {17, 18, 19, static_cast<int32_t>(20 + turn)});
  }
}

TEST(EngineGenerator, EndsAsAskedAndRefusesWhatDoesNotFit) {
  const auto generator =
      engine::EngineGenerator::create(testing::open_checkpoint("tiny-random"), ops::make_cpu_ops(2), 256).value();
  const std::vector<int32_t> prompt = testing::random_prompt(200, 5);
  EXPECT_EQ(run(*generator, prompt, 1000, engine::Prefill::kTail).figures.end, EndReason::kContextFull);
  EXPECT_EQ(run(*generator, testing::random_prompt(20, 1), 1000, engine::Prefill::kTail).figures.end,
            EndReason::kMaxTokens);
  const Turn first = run(*generator, prompt, 5, engine::Prefill::kTail);
  GenerateRequest request{.prompt = prompt, .seed = 3, .stop_tokens = {first.tokens[2]}};
  request.sampling.temperature = 0.9;
  request.sampling.top_p = 0.95;
  std::vector<int32_t> got;
  const auto sink = [&](int32_t t) {
    got.push_back(t);
    return true;
  };
  EXPECT_EQ(generator->generate(request, sink, nullptr).value().end, EndReason::kStopToken);
  EXPECT_EQ(got, std::vector<int32_t>(first.tokens.begin(), first.tokens.begin() + 2));
  std::atomic<bool> stop{true};
  EXPECT_EQ(generator->generate(request, sink, &stop).value().end, EndReason::kCancelled);
  request.prompt = {};
  EXPECT_EQ(generator->generate(request, sink, nullptr).status().code(), Code::kInvalidArgument);
  const std::vector<int32_t> longer(256, 5);
  request.prompt = longer;
  EXPECT_NE(generator->generate(request, sink, nullptr).status().message().find("--context"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer
