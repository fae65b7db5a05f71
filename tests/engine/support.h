// What the engine's model tests share: engines, prompts, and the answer of one sequence alone (engine/generator.h) as
// oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model_executor.h"
#include "engine/single_sequence.h"
#include "ops/cpu/cpu_ops.h"
#include "tests/engine/beside_executor.h"
#include "tests/model/support.h"

namespace deepinfer::testing {

constexpr int kContext = 1024;

struct EngineSetup {
  std::string model = "tiny-random";
  int64_t context = kContext;
  bool plain = false;  // the plain backend instead of the fast one
  int sequences = 16, blocks = 0, rows = 256, threads = 2;
  bool snapshots = true;
  bool beside = false, unsteady = false;  // BesideExecutor in between
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
  std::unique_ptr<engine::StepExecutor> device = std::move(executor).value();
  if (setup.beside || setup.unsteady)
    device = std::make_unique<BesideExecutor>(std::move(device), setup.unsteady);
  auto made = engine::Engine::create(std::move(device), std::move(tokenizer), options);
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

// Asks for log probabilities, so that any other bit of a logit shows in expect_equal().
inline engine::Request make_request(std::vector<int32_t> prompt, bool cache = true, int max_tokens = 12) {
  engine::Request r;
  r.prompt = std::move(prompt);
  r.seed = 5;
  r.max_tokens = max_tokens;
  r.logprobs = true;
  r.cache = cache;
  return r;
}

inline void expect_equal(const Collected& a, const Collected& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

struct AloneAnswer {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;  // sums over whole rows: any other bit of any logit shows in them
};

// One sequence alone, without an engine.
class Alone {
 public:
  explicit Alone(const std::string& model)
      : checkpoint_(open_checkpoint(model)),
        model_(engine::SingleSequence::create(checkpoint_, ops::make_cpu_ops(2), kContext).value()),
        generator_(model_) {}

  AloneAnswer answer(const engine::Request& r, int sample) {
    AloneAnswer out;
    engine::GenerateRequest g{.prompt = r.prompt,
                              .sampling = r.sampling,
                              .seed = *r.seed,
                              .sample = static_cast<uint32_t>(sample),
                              .max_tokens = r.max_tokens,
                              .prefill = r.full_prefill ? engine::Prefill::kFull : engine::Prefill::kTail};
    const auto result = generator_.generate(
        g,
        [&](int32_t t) {
          out.tokens.push_back(t);
          out.logprobs.push_back(engine::LogSoftmax(model_.newest).of(t));
          return r.ignore_end || t != checkpoint_->config().eos_token_id;
        },
        nullptr);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return out;
  }

 private:
  // Keeps the newest row of logits.
  class Model : public engine::SequenceModel {
   public:
    explicit Model(std::unique_ptr<engine::SequenceModel> model) : model_(std::move(model)) {}
    int64_t vocab_size() const override { return model_->vocab_size(); }
    int64_t context_max() const override { return model_->context_max(); }
    int64_t rows_max() const override { return model_->rows_max(); }
    int64_t keep() const override { return model_->keep(); }
    Status forward(std::span<const int32_t> tokens, int64_t position, int64_t decoder_begin,
                   std::span<float> logits) override {
      DI_RETURN_IF_ERROR(model_->forward(tokens, position, decoder_begin, logits));
      if (!logits.empty()) newest.assign(logits.begin(), logits.end());
      return Status();
    }

    std::vector<float> newest;

   private:
    const std::unique_ptr<engine::SequenceModel> model_;
  };

  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  Model model_;
  engine::Generator generator_;
};

}  // namespace deepinfer::testing
