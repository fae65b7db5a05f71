#include "recipe/request_fields.h"

#include <fmt/format.h>

#include "recipe/request.h"

namespace deepinfer::recipe {
namespace {

using enum FieldUse;
constexpr Protocol C = Protocol::kChat, R = Protocol::kResponses, M = Protocol::kMessages, F = Protocol::kCompletions;

constexpr RequestField kFields[] = {
    {C, "model", kHonoured, "compared exactly with the served names"},
    {C, "messages", kHonoured, "roles system, developer (read as user), user, assistant, tool, latest_reminder"},
    {C, "messages[].content", kHonoured, "a string or parts; parts are joined by a blank line"},
    {C, "messages[].content[].image_url", kHonoured,
     "http, https or data URL; detail low, high, original, auto; not in assistant messages; the service fetches and "
     "checks images, then "
     "refuses the request: no model here can see"},
    {C, "messages[].content[].file", kHonoured, "image as file_data (flat or nested); as image_url"},
    {C, "messages[].content[].file.file_id", kRefused, "there is no file store"},
    {C, "messages[].reasoning_content", kHonoured, "shown to the model as the protocol's history rule says"},
    {C, "messages[].tool_calls", kHonoured, "function and custom calls; every call must be answered"},
    {C, "messages[].tool_call_id", kHonoured, ""},
    {C, "messages[].prefix", kHonoured, "last assistant message only: its text is continued"},
    {C, "messages[].name", kChecked, ""},
    {C, "messages[].refusal", kIgnored, ""},
    {C, "messages[].audio", kIgnored, ""},
    {C, "messages[].function_call", kIgnored, "replaced by tool_calls"},
    {C, "thinking", kHonoured, "enabled, adaptive (as enabled), disabled; wins over reasoning_effort"},
    {C, "thinking.budget_tokens", kChecked, ""},
    {C, "reasoning_effort", kHonoured, "none, minimal, low, medium, high, xhigh, ultra, max, or an integer 1..100"},
    {C, "max_tokens", kHonoured, ""},
    {C, "max_completion_tokens", kHonoured, "used where max_tokens is absent"},
    {C, "temperature", kHonoured, "0 is greedy"},
    {C, "top_p", kHonoured, ""},
    {C, "frequency_penalty", kHonoured, "-2 to 2; no effect under sampling_policy deepseek"},
    {C, "presence_penalty", kHonoured, "-2 to 2; no effect under sampling_policy deepseek"},
    {C, "seed", kHonoured, ""},
    {C, "stop", kHonoured, "a string or up to 16"},
    {C, "n", kHonoured, "1 to 8"},
    {C, "stream", kHonoured, ""},
    {C, "stream_options", kHonoured, "only together with stream"},
    {C, "response_format", kHonoured, "text, json_object, json_schema, regex"},
    {C, "tools", kHonoured, "function and custom tools; strict is enforced"},
    {C, "tool_choice", kHonoured,
     "none, auto, required, a tool, allowed_tools; a forced choice needs thinking off unless the server allows it"},
    {C, "parallel_tool_calls", kHonoured, ""},
    {C, "logprobs", kHonoured, ""},
    {C, "top_logprobs", kHonoured, "needs logprobs"},
    {C, "user", kHonoured, "separates caches"},
    {C, "user_id", kHonoured, "separates caches; wins over user"},
    {C, "logit_bias", kHonoured, "token ids of this model, -100 to 100"},
    {C, "top_k", kHonoured, "extension: the likeliest tokens only; -1: all"},
    {C, "min_p", kHonoured, "extension: tokens of at least this share of the likeliest one's probability"},
    {C, "repetition_penalty", kHonoured, "extension"},
    {C, "min_tokens", kHonoured, "extension: no end and no stop before"},
    {C, "stop_token_ids", kHonoured, "extension: tokens that end the answer"},
    {C, "ignore_eos", kHonoured, "extension: end tokens do not end the answer"},
    {C, "store", kIgnored, ""},
    {C, "metadata", kIgnored, ""},
    {C, "service_tier", kIgnored, ""},
    {C, "functions", kIgnored, "replaced by tools"},
    {C, "function_call", kIgnored, "replaced by tool_choice"},
    {C, "modalities", kIgnored, "answers are text"},
    {C, "audio", kIgnored, ""},
    {C, "prediction", kIgnored, ""},
    {C, "verbosity", kIgnored, ""},
    {C, "web_search_options", kIgnored, ""},
    {C, "prompt_cache_key", kIgnored, ""},
    {C, "safety_identifier", kIgnored, ""},

    {R, "model", kHonoured, "compared exactly with the served names"},
    {R, "input", kHonoured, "a string or items"},
    {R, "input[].content", kHonoured,
     "input_text, output_text, input_image (as Chat's image_url); input_file becomes [Unsupported Document]"},
    {R, "input[].content[].file_id", kRefused, "there is no file store"},
    {R, "input[].encrypted_content", kHonoured, "reasoning sealed by this service; used where the item has no text"},
    {R, "input[].summary", kHonoured, "used where a reasoning item has neither text nor encrypted content"},
    {R, "input[].namespace", kHonoured, ""},
    {R, "input[].id", kIgnored, ""},
    {R, "input[].status", kIgnored, ""},
    {R, "input[].phase", kIgnored, ""},
    {R, "instructions", kHonoured, "the first system message"},
    {R, "max_output_tokens", kHonoured, ""},
    {R, "reasoning", kHonoured, "effort as in Chat Completions"},
    {R, "reasoning.summary", kChecked, "reasoning is returned itself, not summarised"},
    {R, "reasoning.generate_summary", kChecked, ""},
    {R, "temperature", kHonoured, ""},
    {R, "top_p", kHonoured, ""},
    {R, "stream", kHonoured, ""},
    {R, "text", kHonoured, "format text, json_object, json_schema"},
    {R, "text.verbosity", kChecked, ""},
    {R, "tools", kHonoured,
     "function, namespace, custom, tool_search (client); web_search by policy; other kinds are dropped"},
    {R, "tools[].format", kHonoured,
     "custom tools: text or grammar (lark, regex); apply_patch has a built-in definition"},
    {R, "tool_choice", kHonoured, "none, auto, required, a tool, allowed_tools, web_search (as auto)"},
    {R, "parallel_tool_calls", kHonoured, ""},
    {R, "top_logprobs", kHonoured, "turns logprobs on"},
    {R, "include", kHonoured, "reasoning.encrypted_content and message.output_text.logprobs; other values are ignored"},
    {R, "previous_response_id", kHonoured, "with storage on, else ignored"},
    {R, "store", kHonoured, "with storage on, else ignored"},
    {R, "user", kHonoured, "separates caches"},
    {R, "metadata", kIgnored, "repeated in the response"},
    {R, "truncation", kIgnored, "a prompt that is too long is refused"},
    {R, "background", kIgnored, ""},
    {R, "conversation", kIgnored, ""},
    {R, "max_tool_calls", kIgnored, ""},
    {R, "prompt", kIgnored, ""},
    {R, "prompt_cache_key", kIgnored, ""},
    {R, "prompt_cache_retention", kIgnored, ""},
    {R, "safety_identifier", kIgnored, ""},
    {R, "service_tier", kIgnored, ""},
    {R, "stream_options", kIgnored, ""},
    {R, "thinking", kIgnored, "use reasoning.effort"},
    {R, "stop", kIgnored, ""},
    {R, "seed", kIgnored, ""},

    {M, "model", kHonoured, "served names; claude-* is mapped to a served model"},
    {M, "messages", kHonoured, "roles user, assistant, system"},
    {M, "messages[].content", kHonoured,
     "a string or blocks: text, image (as Chat's image_url), document, search_result, tool_use, tool_result, "
     "tool_reference, thinking"},
    {M, "messages[].content[].source.file_id", kRefused, "there is no file store"},
    {M, "messages[].content[].data", kHonoured, "redacted_thinking: read if this service sealed it, else left out"},
    {M, "messages[].content[].signature", kIgnored, ""},
    {M, "messages[].content[].is_error", kIgnored, ""},
    {M, "messages[].content[].cache_control", kIgnored, "prefixes are cached without being asked"},
    {M, "messages[].content[].citations", kIgnored, ""},
    {M, "system", kHonoured, "a string or text blocks"},
    {M, "max_tokens", kHonoured, "may be absent; above the bound it is lowered"},
    {M, "temperature", kHonoured, "0 to 2"},
    {M, "top_p", kHonoured, ""},
    {M, "top_k", kIgnored, ""},
    {M, "stop_sequences", kHonoured, "up to 16"},
    {M, "stream", kHonoured, ""},
    {M, "tools", kHonoured,
     "custom tools with strict and defer_loading; web_search by policy; other server tools are refused"},
    {M, "tool_choice", kHonoured,
     "auto, any, tool, none; disable_parallel_tool_use; any is auto while thinking unless the server allows forcing"},
    {M, "thinking", kHonoured, "enabled, adaptive (as enabled), disabled"},
    {M, "thinking.budget_tokens", kChecked, ""},
    {M, "output_config", kHonoured, "effort and format json_schema"},
    {M, "metadata", kHonoured, "user_id separates caches"},
    {M, "container", kIgnored, ""},
    {M, "mcp_servers", kIgnored, ""},
    {M, "service_tier", kIgnored, ""},
    {M, "context_management", kIgnored, ""},
    {M, "betas", kIgnored, ""},

    {F, "model", kHonoured, "compared exactly with the served names"},
    {F, "prompt", kHonoured, "a text, a list of token ids, or a list of several of them"},
    {F, "suffix", kHonoured, "fill in the middle"},
    {F, "echo", kHonoured, "not with suffix or logprobs; at most 32 MiB in all choices"},
    {F, "logprobs", kHonoured, "0 to 20"},
    {F, "max_tokens", kHonoured, ""},
    {F, "temperature", kHonoured, ""},
    {F, "top_p", kHonoured, ""},
    {F, "stop", kHonoured, "a string or up to 16"},
    {F, "seed", kHonoured, ""},
    {F, "stream", kHonoured, ""},
    {F, "stream_options", kHonoured, "only together with stream"},
    {F, "user", kHonoured, "separates caches"},
    {F, "frequency_penalty", kHonoured, "-2 to 2; no effect under sampling_policy deepseek"},
    {F, "presence_penalty", kHonoured, "-2 to 2; no effect under sampling_policy deepseek"},
    {F, "best_of", kIgnored, ""},
    {F, "logit_bias", kHonoured, "token ids of this model, -100 to 100"},
    {F, "top_k", kHonoured, "extension: the likeliest tokens only; -1: all"},
    {F, "min_p", kHonoured, "extension: tokens of at least this share of the likeliest one's probability"},
    {F, "repetition_penalty", kHonoured, "extension"},
    {F, "min_tokens", kHonoured, "extension: no end and no stop before"},
    {F, "stop_token_ids", kHonoured, "extension: tokens that end the answer"},
    {F, "ignore_eos", kHonoured, "extension: end tokens do not end the answer"},
    {F, "n", kHonoured, "1 to 8, of each prompt"},
};

std::string_view use_name(FieldUse use) {
  switch (use) {
    case kHonoured: return "honoured";
    case kChecked: return "checked, no effect";
    case kIgnored: return "ignored";
    case kRefused: return "refused";
  }
  return "";
}

std::string_view title(Protocol protocol) {
  switch (protocol) {
    case C: return "Chat Completions";
    case R: return "Responses";
    case M: return "Messages";
    case F: return "Completions (FIM)";
  }
  return "";
}

}  // namespace

std::span<const RequestField> request_fields() { return kFields; }

std::string api_compatibility_markdown() {
  std::string out =
      "# API compatibility\n\n"
      "What becomes of each field of a request. This page is printed from the table in `src/recipe/request_fields.cc` "
      "by\n"
      "`build/release/tools/api_compatibility > docs/api-compatibility.md`; a test keeps the two equal. Fields that "
      "are not listed\n"
      "are ignored. A wrong value of a field that is not ignored is refused with status 400 and the JSON path of the "
      "fault.\n";
  const RequestField* previous = nullptr;
  for (const RequestField& field : kFields) {
    if (previous == nullptr || previous->protocol != field.protocol) {
      out += fmt::format("\n## {}\n\n| field | what happens | notes |\n|---|---|---|\n", title(field.protocol));
    }
    previous = &field;
    out += fmt::format("| `{}` | {} | {} |\n", field.path, use_name(field.use), field.note);
  }
  const RequestLimits limits;
  out += "\n## Limits\n\nDefaults; a refusal names the limit.\n\n| limit | default | of |\n|---|---|---|\n";
  const auto row = [&](std::string_view name, int64_t value, std::string_view what) {
    out += fmt::format("| `{}` | {} | {} |\n", name, value, what);
  };
  row("body_bytes_max", static_cast<int64_t>(limits.body_bytes_max), "request body, bytes (413)");
  row("json_depth_max", limits.json_depth_max, "nested arrays and objects in the body");
  row("json_values_max", static_cast<int64_t>(limits.json_values_max), "JSON values in the body");
  row("messages_max", static_cast<int64_t>(limits.messages_max), "messages or input items");
  row("tools_max", static_cast<int64_t>(limits.tools_max), "tools, functions of namespaces included");
  row("schema_bytes_max", static_cast<int64_t>(limits.schema_bytes_max), "one JSON Schema or grammar, bytes");
  row("announced_tools_bytes_max", static_cast<int64_t>(limits.announced_tools_bytes_max),
      "tools announced by references and searches, all together, bytes");
  row("images_max", static_cast<int64_t>(limits.images_max), "images of a request");
  row("image_bytes_max", static_cast<int64_t>(limits.image_bytes_max), "one inline image, decoded bytes");
  row("inline_image_bytes_max", static_cast<int64_t>(limits.inline_image_bytes_max),
      "all inline images, decoded bytes");
  row("image_url_bytes_max", static_cast<int64_t>(limits.image_url_bytes_max), "one image URL, bytes");
  row("stop_sequences_max", static_cast<int64_t>(limits.stop_sequences_max), "stop sequences");
  row("stop_sequence_bytes_max", static_cast<int64_t>(limits.stop_sequence_bytes_max), "one stop sequence, bytes");
  row("user_id_bytes_max", static_cast<int64_t>(limits.user_id_bytes_max), "user, user_id, metadata.user_id, bytes");
  row("max_tokens_max", limits.max_tokens_max, "max_tokens, max_output_tokens");
  row("n_max", limits.n_max, "choices of one request, or of one prompt of it");
  row("prompts_max", static_cast<int64_t>(limits.prompts_max), "prompts of one Completions request");
  return out;
}

}  // namespace deepinfer::recipe
