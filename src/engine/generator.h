// One sequence, one token after the other: prefill, then sample and decode until something ends it. The plainest way
// from a prompt to an answer; the engine's tests compare with it.
//
//   Generator generator(model);
//   GenerateRequest request{.prompt = ids, .sampling = params, .seed = 7, .max_tokens = 100, .stop_tokens = {eos}};
//   Result<GenerateResult> r = generator.generate(request, [&](int32_t token) { print(token); return true; }, &stop);
//
// Prefill is full (every row through every layer) or tail (the decoder half only for the last `keep` prompt tokens,
// spec/model.md 15.3). Sampling is that of ops/sampling.h at positions prompt, prompt + 1, ..; the token that ends the
// sequence is reported to nobody but counted. Errors: kInvalidArgument for an empty prompt, one beyond the context or
// ids outside the vocabulary.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "ops/cpu/sampler.h"
#include "ops/sampling.h"

namespace deepinfer::engine {

// A model that holds one sequence.
class SequenceModel {
 public:
  virtual ~SequenceModel() = default;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t context_max() const = 0;  // positions
  virtual int64_t rows_max() const = 0;     // tokens of one forward
  virtual int64_t keep() const = 0;         // prompt tokens that the decoder half needs: window + 12
  // Runs `tokens` at position, position + 1, ..; position 0 starts a new sequence. decoder_begin stays the same for a
  // sequence. If `logits` is not empty ([vocab]) it receives those of the last token.
  virtual Status forward(std::span<const int32_t> tokens, int64_t position, int64_t decoder_begin,
                         std::span<float> logits) = 0;
};

enum class Prefill : uint8_t { kFull, kTail };

struct GenerateRequest {
  std::span<const int32_t> prompt;
  ops::SamplingParams sampling;
  uint64_t seed = 0;
  uint32_t sample = 0;
  int64_t max_tokens = 0;            // 0: until the context is full
  std::vector<int32_t> stop_tokens;  // usually the end-of-sentence id
  Prefill prefill = Prefill::kTail;
};

enum class EndReason : uint8_t {
  kStopToken,
  kMaxTokens,
  kContextFull,
  kSink,  // the sink asked for it (a stop string, a reader that is gone)
  kCancelled,
};

struct GenerateResult {
  EndReason end = EndReason::kStopToken;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // sampled ones, the one that ended the sequence included
  int64_t cached_tokens = 0;  // of the prompt, with a cache (engine/engine_generator.h)
  double prefill_s = 0;       // start to first sampled token
  double decode_s = 0;        // first sampled token to the last
};

// kInvalidArgument for a prompt that is empty, too long for the context or has ids outside the vocabulary.
Status check_prompt(std::span<const int32_t> prompt, int64_t context_max, int64_t vocab_size);

class Generator {
 public:
  // False from the sink ends the sequence.
  using Sink = std::function<bool(int32_t token)>;
  // Called after each part of the prompt; may be null.
  using OnPrefill = std::function<void(int64_t done, int64_t total)>;

  explicit Generator(SequenceModel& model);

  Result<GenerateResult> generate(const GenerateRequest& request, const Sink& sink, const std::atomic<bool>* stop,
                                  const OnPrefill& on_prefill = nullptr);

 private:
  SequenceModel& model_;
  ops::Sampler sampler_;
  ops::TokenHistory history_;
  std::vector<float> logits_;
};

}  // namespace deepinfer::engine
