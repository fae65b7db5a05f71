#include "engine/api_request.h"

#include <algorithm>

#include "recipe/json.h"

namespace deepinfer::engine {
namespace {

using recipe::ConstraintKind;

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
    if (tool.syntax != recipe::CustomSyntax::kText) {
      out += tool.syntax == recipe::CustomSyntax::kLark ? ",\"input\":{\"syntax\":\"lark\""
                                                        : ",\"input\":{\"syntax\":\"regex\"";
      out += ",\"definition\":";
      recipe::append_json_string(out, tool.definition);
      out += '}';
    }
    out += tool.strict.value_or(false) ? ",\"strict\":true}" : "}";
  }
  out += required ? "],\"required\":true" : "]";
  if (r.parsing.initial == recipe::InitialStage::kToolCalls) out += ",\"block_opened\":true";
  if (!r.inference.parallel_tool_calls) out += ",\"parallel\":false";
  return out + "}";
}

std::optional<grammar::Constraint> tool_constraint(const recipe::Request& r, bool required) {
  const bool strict = std::ranges::any_of(r.conversation.tools, [](const recipe::Tool& t) {
    return t.strict.value_or(false) || t.syntax != recipe::CustomSyntax::kText;
  });
  // Without any of these the model is free, as it is on DeepSeek's service.
  if (!required && !strict && r.inference.parallel_tool_calls && r.allowed_tools.empty()) return std::nullopt;
  return grammar::Constraint{.kind = grammar::ConstraintKind::kTools, .source = tool_set(r, required)};
}

std::optional<grammar::Constraint> make_constraint(const recipe::Request& r) {
  const recipe::OutputConstraint& wanted = r.inference.constraint;
  switch (wanted.kind) {
    case ConstraintKind::kNone:
      return std::nullopt;
    case ConstraintKind::kToolCall:
      return tool_constraint(r, false);
    case ConstraintKind::kToolCallRequired:
      return tool_constraint(r, true);
    case ConstraintKind::kJson:
      if (wanted.schema.empty()) return grammar::Constraint{.kind = grammar::ConstraintKind::kJsonObject};
      return grammar::Constraint{.kind = grammar::ConstraintKind::kJsonSchema, .source = wanted.schema};
    case ConstraintKind::kRegex:
      return grammar::Constraint{.kind = grammar::ConstraintKind::kRegex, .source = wanted.schema};
  }
  return std::nullopt;
}

void read_sampler(const recipe::SamplerOptions& s, Request& e) {
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

}  // namespace

void read_api_request(const recipe::Request& r, const recipe::SpecialIds& specials, Request* to,
                      std::optional<grammar::Constraint>* constraint) {
  Request& e = *to;
  e.sampling.temperature = r.inference.temperature;
  e.sampling.top_p = r.inference.top_p;
  read_sampler(r.inference.sampler, e);
  if (r.inference.seed) e.seed = static_cast<uint64_t>(*r.inference.seed);
  e.n = r.inference.n;
  e.logprobs = r.inference.logprobs;
  e.top_logprobs = r.inference.top_logprobs.value_or(0);
  e.text = false;
  e.traffic = r.conversation.has_tools() ? kv::Traffic::kAgent : kv::Traffic::kChat;
  *constraint = make_constraint(r);
  const bool reasons = r.parsing.initial == recipe::InitialStage::kReasoning ||
                       r.parsing.initial == recipe::InitialStage::kReasoningStart;
  if (!*constraint || !reasons) return;
  (*constraint)->after_reasoning = true;
  e.grammar_after = {specials[recipe::SpecialToken::kEndThink]};
  e.before_grammar_banned = {specials[recipe::SpecialToken::kDsml]};
}

Result<std::vector<int32_t>> prompt_token_ids(const recipe::Request& request, size_t prompt, int64_t vocab_size) {
  if (!request.completion) return std::vector<int32_t>();
  const std::vector<int32_t>& ids = request.completion->prompts[prompt].ids;
  const auto wrong = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= vocab_size; });
  if (wrong == ids.end()) return ids;
  return make_error(Code::kInvalidArgument, "prompt{}[{}] is {}; token ids of this model are 0 to {}.",
                    recipe::prompt_count(request) > 1 ? fmt::format("[{}]", prompt) : "", wrong - ids.begin(), *wrong,
                    vocab_size - 1);
}

}  // namespace deepinfer::engine
