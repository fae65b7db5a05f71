#include "engine/generator.h"

#include <algorithm>
#include <chrono>

namespace deepinfer::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

Generator::Generator(SequenceModel& model)
    : model_(model),
      sampler_(static_cast<int>(model.vocab_size())),
      history_(static_cast<int>(model.vocab_size())),
      logits_(static_cast<size_t>(model.vocab_size())) {}

Status check_prompt(std::span<const int32_t> prompt, int64_t context_max, int64_t vocab_size) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  if (length == 0) return Status(Code::kInvalidArgument, "The prompt is empty.");
  if (length >= context_max) {
    return make_error(
        Code::kInvalidArgument,
        "The prompt has {} tokens, but the context holds {} and the answer needs one of them. Shorten the "
        "prompt, or allow more with --context.",
        length, context_max);
  }
  for (int32_t t : prompt) {
    if (t < 0 || t >= vocab_size) {
      return make_error(Code::kInvalidArgument, "Token {} of the prompt is outside the vocabulary of {}.", t,
                        vocab_size);
    }
  }
  return Status();
}

Result<GenerateResult> Generator::generate(const GenerateRequest& request, const Sink& sink,
                                           const std::atomic<bool>* stop, const OnPrefill& on_prefill) {
  DI_RETURN_IF_ERROR(check_prompt(request.prompt, model_.context_max(), model_.vocab_size()));
  const auto stopped = [&] { return stop != nullptr && stop->load(std::memory_order_relaxed); };
  const int64_t length = static_cast<int64_t>(request.prompt.size());
  const int64_t decoder_begin = request.prefill == Prefill::kFull ? 0 : std::max<int64_t>(0, length - model_.keep());
  GenerateResult result;
  result.prompt_tokens = length;
  result.end = EndReason::kCancelled;

  Clock::time_point begin = Clock::now();
  for (int64_t at = 0; at < length;) {
    if (stopped()) return result;
    const int64_t rows = std::min(model_.rows_max(), length - at);
    const bool last = at + rows == length;
    DI_RETURN_IF_ERROR(model_.forward(request.prompt.subspan(static_cast<size_t>(at), static_cast<size_t>(rows)), at,
                                      decoder_begin, last ? std::span<float>(logits_) : std::span<float>()));
    at += rows;
    if (on_prefill) on_prefill(at, length);
  }

  const bool penalties = request.sampling.has_penalties();
  if (penalties) {
    history_.clear();
    history_.add_prompt(request.prompt);
  }
  for (int64_t position = length;; ++position) {
    const int32_t token = sampler_.sample({.logits = logits_,
                                           .params = &request.sampling,
                                           .place = {request.seed, static_cast<uint32_t>(position), request.sample},
                                           .history = penalties ? &history_ : nullptr});
    if (token < 0) {
      return Status(Code::kInternal,
                    "The model gave no finite logit. Its weights may be damaged; try --backend reference.");
    }
    if (++result.output_tokens == 1) {
      result.prefill_s = seconds_since(begin);
      begin = Clock::now();
    } else {
      result.decode_s = seconds_since(begin);
    }
    const auto end_with = [&](EndReason reason) {
      result.end = reason;
      return result;
    };
    if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) != request.stop_tokens.end()) {
      return end_with(EndReason::kStopToken);
    }
    if (!sink(token)) return end_with(EndReason::kSink);
    if (request.max_tokens > 0 && result.output_tokens >= request.max_tokens) return end_with(EndReason::kMaxTokens);
    if (position + 1 >= model_.context_max()) return end_with(EndReason::kContextFull);
    if (stopped()) return result;
    if (penalties) history_.add_output(token);
    DI_RETURN_IF_ERROR(model_.forward({&token, 1}, position, decoder_begin, logits_));
  }
}

}  // namespace deepinfer::engine
