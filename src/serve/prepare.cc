#include "serve/prepare.h"

#include <algorithm>

#include "recipe/render.h"
#include "serve/service.h"

namespace deepinfer::serve {
namespace {

using recipe::ApiError;
using recipe::ConstraintKind;

ApiError internal_error(const Status& status) {
  return {.status = 500, .message = status.message(), .type = "internal_error", .code = "internal_error"};
}

// The tool list of the recipe's constraint in the form that the grammar room reads.
std::string tool_set(const recipe::Request& r, bool required) {
  std::string out = "{\"tools\":[";
  for (const recipe::Tool& tool : r.conversation.tools) {
    if (!r.allowed_tools.empty() && std::ranges::find(r.allowed_tools, tool.name) == r.allowed_tools.end()) continue;
    if (out.back() != '[') out += ',';
    out += "{\"name\":";
    recipe::append_json_string(out, tool.name);
    out += ",\"parameters\":";
    recipe::append_compact_json(out, tool.parameters);
    out += tool.strict.value_or(false) ? ",\"strict\":true}" : "}";
  }
  out += required ? "],\"required\":true" : "]";
  if (r.parsing.initial == recipe::InitialStage::kToolCalls) out += ",\"block_opened\":true";
  if (!r.inference.parallel_tool_calls) out += ",\"parallel\":false";
  return out + "}";
}

std::optional<grammar::Constraint> tool_constraint(const recipe::Request& r, bool required) {
  const bool strict = std::ranges::any_of(r.conversation.tools, [](const recipe::Tool& t) { return t.strict.value_or(false); });
  // Without any of these the model is free, as it is on DeepSeek's service.
  if (!required && !strict && r.inference.parallel_tool_calls && r.allowed_tools.empty()) return std::nullopt;
  return grammar::Constraint{.kind = grammar::ConstraintKind::kTools, .source = tool_set(r, required)};
}

std::optional<grammar::Constraint> make_constraint(const recipe::Request& r) {
  const recipe::OutputConstraint& wanted = r.inference.constraint;
  switch (wanted.kind) {
    case ConstraintKind::kNone: return std::nullopt;
    case ConstraintKind::kToolCall: return tool_constraint(r, false);
    case ConstraintKind::kToolCallRequired: return tool_constraint(r, true);
    case ConstraintKind::kJson:
      if (wanted.schema.empty()) return grammar::Constraint{.kind = grammar::ConstraintKind::kJsonObject};
      return grammar::Constraint{.kind = grammar::ConstraintKind::kJsonSchema, .source = wanted.schema};
    case ConstraintKind::kRegex: return grammar::Constraint{.kind = grammar::ConstraintKind::kRegex, .source = wanted.schema};
  }
  return std::nullopt;
}

// Responses may continue stored ones, of their owner only.
std::optional<ApiError> parse(const Service& service, recipe::Protocol protocol, std::string_view body, std::string_view owner,
                              recipe::Request& out) {
  if (protocol != recipe::Protocol::kResponses || !service.config.store_responses) {
    return recipe::parse_request(protocol, body, service.request_options, out);
  }
  recipe::RequestOptions options = service.request_options;
  options.load_previous = [&service, owner](std::string_view id) { return service.responses.chain(id, owner); };
  return recipe::parse_request(protocol, body, options, out);
}

void read_sampler(const recipe::SamplerOptions& s, engine::Request& e) {
  e.sampling.top_k = static_cast<int32_t>(s.top_k);
  e.sampling.min_p = s.min_p;
  e.sampling.repetition_penalty = static_cast<float>(s.repetition_penalty);
  e.sampling.frequency_penalty = static_cast<float>(s.frequency_penalty);
  e.sampling.presence_penalty = static_cast<float>(s.presence_penalty);
  for (const auto& [token, bias] : s.logit_bias) e.sampling.logit_bias.push_back({token, bias});
  e.min_tokens = static_cast<int32_t>(s.min_tokens);
  e.stop_tokens = s.stop_token_ids;
  e.ignore_end = s.ignore_eos;
}

void read_engine_options(const Service& service, Prepared& p) {
  const recipe::Request& r = p.request;
  engine::Request& e = p.engine;
  e.sampling.temperature = r.inference.temperature;
  e.sampling.top_p = r.inference.top_p;
  read_sampler(r.inference.sampler, e);
  if (r.inference.seed) e.seed = static_cast<uint64_t>(*r.inference.seed);
  e.n = r.inference.n;
  e.logprobs = r.inference.logprobs;
  e.top_logprobs = r.inference.top_logprobs.value_or(0);
  e.text = false;  // the answer's builder makes text and looks for stop texts
  e.timeout_s = service.config.limits.request_timeout_s;
  p.constraint = make_constraint(r);
  const bool reasons = r.parsing.initial == recipe::InitialStage::kReasoning ||
                       r.parsing.initial == recipe::InitialStage::kReasoningStart;
  if (!p.constraint || !reasons) return;
  p.constraint->after_reasoning = true;
  e.grammar_after = {service.specials[recipe::SpecialToken::kEndThink]};
  e.before_grammar_banned = {service.specials[recipe::SpecialToken::kDsml]};
}

}  // namespace

std::optional<ApiError> prepare_prompt(const Service& service, std::string_view owner, Prepared& p) {
  p.scope = owner;
  if (!p.request.user_id.empty()) p.scope.append("\n").append(p.request.user_id);
  const recipe::Prompt prompt = recipe::render_request(p.request);
  if (!prompt.images.empty()) {
    const recipe::ImageRef& at = prompt.images.front();
    return ApiError{.message = "This model takes no images: its checkpoint has no vision tower.",
                    .param = p.request.conversation.messages[at.message].content.images[at.image].path};
  }
  Result<recipe::EncodedPrompt> encoded = service.encoder.encode(prompt, p.scope);
  if (!encoded.ok()) return internal_error(encoded.status());
  p.engine.prompt = std::move(encoded.value().ids);
  return std::nullopt;
}

std::optional<ApiError> prepare(const Service& service, recipe::Protocol protocol, std::string_view body,
                                std::string_view owner, Prepared& p) {
  if (auto error = parse(service, protocol, body, owner, p.request)) return error;
  if (auto error = prepare_prompt(service, owner, p)) return error;
  int64_t max_tokens = 0;
  const auto prompt_tokens = static_cast<int64_t>(p.engine.prompt.size());
  if (auto error = recipe::resolve_max_tokens(p.request, prompt_tokens, service.backend->limits().context_max, max_tokens)) {
    return error;
  }
  p.engine.max_tokens = static_cast<int32_t>(max_tokens);
  read_engine_options(service, p);
  p.answer = recipe::make_stream_options(p.request, service.sealer ? &*service.sealer : nullptr);
  p.answer.model = p.request.model;
  p.answer.created = service.now();
  p.answer.now = [&service] { return service.now(); };
  if (p.request.completion && p.request.completion->echo) p.answer.completion_prefix = p.request.completion->prompt;
  return std::nullopt;
}

}  // namespace deepinfer::serve
