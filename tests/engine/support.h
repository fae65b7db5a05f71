// What the engine's model tests share: engines, prompts, and the answer of one sequence alone (engine/generator.h) as
// oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_executor.h"
#include "engine/single_sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/model/support.h"

namespace deepinfer::testing {

constexpr int kContext = 1024;

struct EngineSetup {
  std::string model = "tiny-random";
  int64_t context = kContext;
  bool plain = false;  // the plain backend instead of the fast one
  int sequences = 16, blocks = 0, rows = 256, threads = 2;
  bool snapshots = true;
  engine::EngineOptions options;
};

inline std::unique_ptr<engine::Engine> make_engine(const EngineSetup& setup) {
  auto checkpoint = open_checkpoint(setup.model);
  engine::EngineOptions options = setup.options;
  options.end_tokens = {static_cast<int32_t>(checkpoint->config().eos_token_id)};
  std::optional<text::Tokenizer> tokenizer;
  if (setup.model == "tiny-trained") tokenizer = text::Tokenizer::load("models/tiny/tokenizer.json").value();
  auto executor = engine::ModelExecutor::create(checkpoint,
                                                setup.plain ? ops::make_plain_ops(setup.threads)
                                                            : ops::make_cpu_ops(setup.threads),
                                                {.context_max = setup.context,
                                                 .sequences_max = setup.sequences,
                                                 .rows_max = setup.rows,
                                                 .blocks = setup.blocks,
                                                 .drafts_max = options.drafts.mode == engine::DraftMode::kOff
                                                                   ? 0
                                                                   : options.drafts.drafts_max,
                                                 .snapshots = setup.snapshots});
  EXPECT_TRUE(executor.ok()) << executor.status().message();
  auto made = engine::Engine::create(std::move(executor).value(), std::move(tokenizer), options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(made).value();
}

struct Collected {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  std::string text;
  engine::FinishReason reason = engine::FinishReason::kFailed;
  Status error;
  engine::Usage usage;
  int ends = 0;
};

// All answers of a request; after `cancel_after` events, if not negative, it is cancelled.
inline std::vector<Collected> collect(engine::Stream& stream, int n, int cancel_after = -1) {
  std::vector<Collected> out(n);
  int events = 0;
  for (engine::Event e; stream.next(&e);) {
    Collected& c = out[e.sample];
    if (e.token >= 0) c.tokens.push_back(e.token);
    if (e.has_logprob) c.logprobs.push_back(e.logprob.logprob);
    c.text += e.text;
    if (e.finished) {
      c.reason = e.reason;
      c.error = e.error;
      c.usage = e.usage;
      ++c.ends;
    }
    if (++events == cancel_after) stream.cancel();
  }
  return out;
}

inline std::vector<Collected> run(engine::Engine& engine, const engine::Request& request) {
  auto stream = engine.submit(request);
  EXPECT_TRUE(stream.ok()) << stream.status().message();
  return collect(*stream.value(), request.n);
}

inline std::vector<int32_t> random_prompt(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

// One sequence alone, without an engine.
class Alone {
 public:
  explicit Alone(const std::string& model)
      : checkpoint_(open_checkpoint(model)),
        model_(engine::SingleSequence::create(checkpoint_, ops::make_cpu_ops(2), kContext).value()),
        generator_(*model_) {}

  std::vector<int32_t> answer(const engine::Request& r, int sample) {
    std::vector<int32_t> out;
    engine::GenerateRequest g{.prompt = r.prompt,
                              .sampling = r.sampling,
                              .seed = *r.seed,
                              .sample = static_cast<uint32_t>(sample),
                              .max_tokens = r.max_tokens,
                              .prefill = r.full_prefill ? engine::Prefill::kFull : engine::Prefill::kTail};
    const auto result = generator_.generate(
        g,
        [&](int32_t t) {
          out.push_back(t);
          return t != checkpoint_->config().eos_token_id;
        },
        nullptr);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return out;
  }

 private:
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<engine::SequenceModel> model_;
  engine::Generator generator_;
};

}  // namespace deepinfer::testing
