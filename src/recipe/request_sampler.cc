// Sampling parameters beyond the protocols, as other servers name them.
#include <charconv>
#include <cmath>

#include "recipe/request_reader.h"

namespace deepinfer::recipe {
namespace {

constexpr double kBiasMax = 100;
constexpr size_t kStopTokensMax = 256;

// A token id in its one spelling.
std::optional<int32_t> parse_token(std::string_view text) {
  int32_t token = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token);
  if (error != std::errc() || end != text.data() + text.size() || text != std::to_string(token)) return std::nullopt;
  return token;
}

}  // namespace

bool RequestReader::read_sampler(const Json& body) {
  SamplerOptions& s = out_.inference.sampler;
  if (!read_penalty(body, "frequency_penalty", s.frequency_penalty) ||
      !read_penalty(body, "presence_penalty", s.presence_penalty)) {
    return false;
  }
  std::optional<int64_t> top_k, min_tokens;
  std::optional<double> min_p, repetition;
  if (!read(body, root_, "top_k", top_k) || !read(body, root_, "min_tokens", min_tokens) ||
      !read(body, root_, "min_p", min_p) || !read(body, root_, "repetition_penalty", repetition) ||
      !read(body, root_, "ignore_eos", s.ignore_eos)) {
    return false;
  }
  if (top_k && *top_k == 0) top_k = -1;  // as other servers mean it
  if (top_k && (*top_k < -1 || *top_k > INT32_MAX))
    return fail(root_ / "top_k", "Invalid top_k value, it is -1 (off) or at least 1");
  if (min_tokens && (*min_tokens < 0 || *min_tokens > options_.limits.max_tokens_max)) {
    return fail(root_ / "min_tokens", fmt::format("Invalid min_tokens value, the valid range of min_tokens is [0, {}]",
                                                  options_.limits.max_tokens_max));
  }
  s.top_k = top_k.value_or(-1);
  s.min_tokens = min_tokens.value_or(0);
  s.min_p = min_p.value_or(0);
  s.repetition_penalty = repetition.value_or(1);
  if (const Json* bias = body.find("logit_bias"); is_set(bias)) {
    const Path at = root_ / "logit_bias";
    if (!expect_object(*bias, at)) return false;
    for (const JsonMember& m : bias->as_object()) {
      const auto token = parse_token(m.key);
      if (!token || *token < 0)
        return fail(at, fmt::format("Invalid logit_bias key '{}', keys are token ids", clip(m.key, 40)));
      if (!m.value.is_number() || !(std::abs(m.value.as_double()) <= kBiasMax)) {
        return fail(at / m.key, "Invalid logit_bias value, the valid range of a bias is [-100, 100]");
      }
      s.logit_bias.emplace_back(*token, static_cast<float>(m.value.as_double()));
    }
  }
  const Json* stops = body.find("stop_token_ids");
  if (!is_set(stops)) return true;
  const Path at = root_ / "stop_token_ids";
  if (!expect_array(*stops, at) || !too_many(at, stops->as_array().size(), kStopTokensMax, "stop_token_ids"))
    return false;
  for (const Json& item : stops->as_array()) {
    const auto token = item.is_integer() ? item.to_int64() : std::nullopt;
    if (!token || *token < 0 || *token > INT32_MAX) return bad(at, "expected a list of token ids");
    s.stop_token_ids.push_back(static_cast<int32_t>(*token));
  }
  return true;
}

}  // namespace deepinfer::recipe
