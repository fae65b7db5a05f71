#include "recipe/request.h"

#include <algorithm>

#include "recipe/constants.h"
#include "recipe/converters.h"
#include "recipe/render.h"

namespace deepinfer::recipe {
namespace {

std::string_view messages_error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 402: return "billing_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503:
    case 529: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string error_body(Protocol protocol, const ApiError& error, std::string_view request_id) {
  std::string out;
  if (protocol == Protocol::kMessages) {
    out += "{\"type\":\"error\",\"error\":{\"type\":";
    append_json_string(out, messages_error_type(error.status));
    out += ",\"message\":";
    append_json_string(out, error.message);
    out += "},\"request_id\":";
    if (request_id.empty()) {
      out += "null";
    } else {
      append_json_string(out, request_id);
    }
    return out + "}";
  }
  out += "{\"error\":{\"message\":";
  append_json_string(out, error.message);
  out += ",\"type\":";
  append_json_string(out, error.type);
  out += ",\"param\":";
  if (error.param.empty()) {
    out += "null";
  } else {
    append_json_string(out, error.param);
  }
  out += ",\"code\":";
  append_json_string(out, error.code);
  return out + "}}";
}

const Tool* Request::find_tool(std::string_view name) const {
  const auto found =
      std::find_if(conversation.tools.begin(), conversation.tools.end(), [&](const Tool& t) { return t.name == name; });
  return found == conversation.tools.end() ? nullptr : &*found;
}

std::string custom_arguments(std::string_view input) {
  std::string out = "{\"input\":";
  append_json_string(out, input);
  return out + "}";
}

bool has_empty_thought_id(const std::vector<ToolCall>& calls) {
  return std::any_of(calls.begin(), calls.end(), [](const ToolCall& call) {
    const std::string_view id = call.id;
    if (!id.starts_with("call_")) return false;
    const size_t digits_end = id.find_first_not_of("0123456789", 5);
    return digits_end != std::string_view::npos && digits_end > 5 && id.substr(digits_end).starts_with("_ET_");
  });
}

std::optional<ApiError> parse_request(Protocol protocol, std::string_view body, const RequestOptions& options,
                                      Request& out) {
  out = Request();
  out.protocol = protocol;
  const RequestLimits& limits = options.limits;
  if (body.size() > limits.body_bytes_max) {
    return ApiError{
        .status = 413,
        .message = fmt::format("The request body has {} bytes, more than body_bytes_max = {} of this server.",
                               body.size(), limits.body_bytes_max)};
  }
  Result<Json> json = parse_json(body, {.bytes_max = limits.body_bytes_max, .depth_max = limits.json_depth_max,
                                        .values_max = limits.json_values_max});
  if (!json.ok()) return ApiError{.message = "invalid JSON request: " + json.status().message()};
  switch (protocol) {
    case Protocol::kChat: return convert_chat(std::move(json).value(), options, out);
    case Protocol::kResponses: return convert_responses(std::move(json).value(), options, out);
    case Protocol::kMessages: return convert_messages(std::move(json).value(), options, out);
    case Protocol::kCompletions: return convert_completions(std::move(json).value(), options, out);
  }
  return std::nullopt;
}

size_t prompt_count(const Request& request) { return request.completion ? request.completion->prompts.size() : 1; }

Prompt render_request(const Request& request, size_t prompt) {
  if (request.completion) return render_fim(request.completion->prompts[prompt].text, request.completion->suffix);
  return render(request.conversation, request.version);
}

std::optional<ApiError> resolve_max_tokens(const Request& request, int64_t prompt_tokens, int64_t context_limit,
                                           int64_t& out) {
  const std::optional<int64_t>& asked = request.inference.max_tokens;
  const int64_t completion = asked.value_or(0);
  if (prompt_tokens + completion > context_limit) {
    return ApiError{.message = fmt::format(
                        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
                        "messages, {} in the completion). Please reduce the length of the messages or completion.",
                        context_limit, prompt_tokens + completion, prompt_tokens, completion)};
  }
  const Conversation& c = request.conversation;
  int64_t wanted = kMaxTokensDefaultOff;
  if (c.thinking) {
    const bool max =
        c.effort && (*c.effort == Effort::kMax || (*c.effort == Effort::kNumber && c.effort_number >= 100));
    wanted = max ? kMaxTokensDefaultMaxEffort : kMaxTokensDefaultThinking;
  }
  out = std::max<int64_t>(1, std::min(asked.value_or(wanted), context_limit - prompt_tokens));
  return std::nullopt;
}

}  // namespace deepinfer::recipe
