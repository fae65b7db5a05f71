#include "engine/request.h"

#include <cmath>
#include <span>
#include <string_view>

namespace deepinfer::engine {
namespace {

constexpr double kTemperatureMax = 100;
constexpr float kPenaltyMax = 100;
constexpr float kBiasMax = 100;
constexpr double kTimeoutMax = 30 * 86400.0;

template <class T>
Status range(std::string_view name, T value, T low, T high) {
  if (value >= low && value <= high) return Status();
  return make_error(Code::kInvalidArgument, "{} is {}; it must be between {} and {}.", name, value, low, high);
}

Status check_ids(std::string_view name, std::span<const int32_t> ids, int32_t low, int32_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= low && ids[i] < vocab) continue;
    return make_error(Code::kInvalidArgument, "{}[{}] is {}; token ids of this model are 0 to {}.", name, i, ids[i],
                      vocab - 1);
  }
  return Status();
}

Status check_sampling(const ops::SamplingParams& s, const RequestLimits& limits) {
  DI_RETURN_IF_ERROR(range("temperature", s.temperature, 0.0, kTemperatureMax));
  if (!(s.top_p > 0 && s.top_p <= 1)) {
    return make_error(Code::kInvalidArgument, "top_p is {}; it must be above 0 and at most 1.", s.top_p);
  }
  if (s.top_k != -1 && s.top_k < 1) {
    return make_error(Code::kInvalidArgument, "top_k is {}; it must be -1 (off) or at least 1.", s.top_k);
  }
  DI_RETURN_IF_ERROR(range("min_p", s.min_p, 0.0, 1.0));
  if (!(s.repetition_penalty > 0 && s.repetition_penalty <= kPenaltyMax)) {
    return make_error(Code::kInvalidArgument, "repetition_penalty is {}; it must be above 0 and at most {}.",
                      s.repetition_penalty, kPenaltyMax);
  }
  DI_RETURN_IF_ERROR(range("frequency_penalty", s.frequency_penalty, -kPenaltyMax, kPenaltyMax));
  DI_RETURN_IF_ERROR(range("presence_penalty", s.presence_penalty, -kPenaltyMax, kPenaltyMax));
  if (s.logit_bias.size() > static_cast<size_t>(limits.vocab_size)) {
    return make_error(Code::kInvalidArgument, "logit_bias has {} entries; this model has {} tokens.",
                      s.logit_bias.size(), limits.vocab_size);
  }
  for (const ops::LogitBias& b : s.logit_bias) {
    if (b.token < 0 || b.token >= limits.vocab_size) {
      return make_error(Code::kInvalidArgument, "logit_bias names token {}; token ids of this model are 0 to {}.",
                        b.token, limits.vocab_size - 1);
    }
    if (!(b.bias >= -kBiasMax && b.bias <= kBiasMax)) {
      return make_error(Code::kInvalidArgument, "logit_bias of token {} is {}; it must be between {} and {}.", b.token,
                        b.bias, -kBiasMax, kBiasMax);
    }
  }
  return Status();
}

Status check_stops(const Request& r, const RequestLimits& limits) {
  if (r.stop_tokens.size() > static_cast<size_t>(limits.stop_tokens_max)) {
    return make_error(Code::kInvalidArgument, "stop_tokens has {} ids; at most {} are possible.", r.stop_tokens.size(),
                      limits.stop_tokens_max);
  }
  DI_RETURN_IF_ERROR(check_ids("stop_tokens", r.stop_tokens, 0, limits.vocab_size));
  if (r.stop.empty()) return Status();
  if (!limits.has_text) return Status(Code::kUnsupported, "stop needs a tokenizer, and this engine has none.");
  if (!r.text) return Status(Code::kInvalidArgument, "stop is only possible with text.");
  if (r.stop.size() > static_cast<size_t>(limits.stop_max)) {
    return make_error(Code::kInvalidArgument, "stop has {} texts; at most {} are possible.", r.stop.size(),
                      limits.stop_max);
  }
  for (size_t i = 0; i < r.stop.size(); ++i) {
    if (!r.stop[i].empty() && r.stop[i].size() <= limits.stop_bytes_max) continue;
    return make_error(Code::kInvalidArgument, "stop[{}] has {} bytes; a stop text has 1 to {}.", i, r.stop[i].size(),
                      limits.stop_bytes_max);
  }
  return Status();
}

Status check_trigger(const Request& r, const RequestLimits& limits) {
  if (r.grammar_after.empty()) {
    if (r.grammar_bound == -1) return Status();
    return Status(Code::kInvalidArgument, "grammar_bound is only possible with grammar_after.");
  }
  if (!r.grammar) return Status(Code::kInvalidArgument, "grammar_after is only possible with a grammar.");
  if (r.grammar_after.size() > static_cast<size_t>(limits.grammar_after_max)) {
    return make_error(Code::kInvalidArgument, "grammar_after has {} ids; at most {} are possible.",
                      r.grammar_after.size(), limits.grammar_after_max);
  }
  DI_RETURN_IF_ERROR(check_ids("grammar_after", r.grammar_after, 0, limits.vocab_size));
  return range("grammar_bound", r.grammar_bound, -1, limits.vocab_size - 1);
}

}  // namespace

Status check_request(const Request& r, const RequestLimits& limits) {
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt == 0) return Status(Code::kInvalidArgument, "The prompt is empty; it needs at least one token.");
  if (prompt >= limits.context_max) {
    return make_error(Code::kInvalidArgument,
                      "The prompt has {} tokens; with at least one token of output it must fit into the context of {}.",
                      prompt, limits.context_max);
  }
  DI_RETURN_IF_ERROR(check_ids("prompt", r.prompt, 0, limits.vocab_size));
  DI_RETURN_IF_ERROR(check_sampling(r.sampling, limits));
  DI_RETURN_IF_ERROR(range("n", r.n, 1, limits.samples_max));
  DI_RETURN_IF_ERROR(range("max_tokens", r.max_tokens, 0, INT32_MAX));
  DI_RETURN_IF_ERROR(range("min_tokens", r.min_tokens, 0, r.max_tokens > 0 ? r.max_tokens : limits.context_max));
  DI_RETURN_IF_ERROR(check_stops(r, limits));
  DI_RETURN_IF_ERROR(range("top_logprobs", r.top_logprobs, 0, limits.top_logprobs_max));
  if (r.top_logprobs > 0 && !r.logprobs && !r.prompt_logprobs) {
    return Status(Code::kInvalidArgument, "top_logprobs is only possible with logprobs or prompt_logprobs.");
  }
  if (r.processed_logprobs && !r.logprobs) {
    return Status(Code::kInvalidArgument, "processed_logprobs is only possible with logprobs.");
  }
  if (r.prompt_logprobs && prompt * (r.top_logprobs + 1) > limits.prompt_logprobs_max) {
    return make_error(Code::kInvalidArgument,
                      "prompt_logprobs of {} tokens with top_logprobs {} are {} values; at most {} are possible.",
                      prompt, r.top_logprobs, prompt * (r.top_logprobs + 1), limits.prompt_logprobs_max);
  }
  DI_RETURN_IF_ERROR(check_ids("allowed_tokens", r.allowed_tokens, 0, limits.vocab_size));
  DI_RETURN_IF_ERROR(check_ids("before_grammar_banned", r.before_grammar_banned, 0, limits.vocab_size));
  DI_RETURN_IF_ERROR(check_ids("forced_tokens", r.forced_tokens, -1, limits.vocab_size));
  DI_RETURN_IF_ERROR(check_trigger(r, limits));
  DI_RETURN_IF_ERROR(range("priority", r.priority, -8, 8));
  return range("timeout_s", r.timeout_s, 0.0, kTimeoutMax);
}

}  // namespace deepinfer::engine
