#include "recipe/api_stream.h"

#include "recipe/events_chat.h"
#include "recipe/events_completions.h"
#include "recipe/events_messages.h"
#include "recipe/events_responses.h"
#include "recipe/json_writer.h"

namespace deepinfer::recipe {

Result<std::unique_ptr<ApiStream>> ApiStream::create(ApiStreamOptions options, const OutputVocabulary* vocabulary) {
  DI_RETURN_IF_ERROR(options.parser.check());
  const bool one_choice = options.protocol == Protocol::kResponses || options.protocol == Protocol::kMessages;
  if (options.n < 1 || (one_choice && options.n != 1)) {
    return make_error(Code::kInvalidArgument, "{} choices are asked for; this API gives {}.", options.n,
                      one_choice ? "exactly one" : "at least one");
  }
  if (options.prompts < 1 || (options.protocol != Protocol::kCompletions && options.prompts != 1)) {
    return make_error(Code::kInvalidArgument, "{} prompts are to be answered; only Completions can have several.",
                      options.prompts);
  }
  options.parser.markers = options.token_ids;
  switch (options.protocol) {
    case Protocol::kResponses: return make_responses_stream(std::move(options), vocabulary);
    case Protocol::kMessages: return make_messages_stream(std::move(options), vocabulary);
    case Protocol::kCompletions:
      options.parser.plain = true;
      options.parser.initial = InitialStage::kContent;
      return make_completions_stream(std::move(options), vocabulary);
    case Protocol::kChat: break;
  }
  return make_chat_stream(std::move(options), vocabulary);
}

ApiStreamOptions make_stream_options(const Request& request, const Sealer* sealer) {
  ApiStreamOptions o;
  o.protocol = request.protocol;
  static_cast<ParsingOptions&>(o.parser) = request.parsing;
  o.stream = request.stream;
  o.thinking = request.conversation.thinking;
  o.logprobs = request.inference.logprobs;
  o.n = request.inference.n;
  o.prompts = static_cast<int>(prompt_count(request));
  o.include_usage = request.include_usage;
  for (const Tool& tool : request.conversation.tools) {
    if (tool.custom) o.custom_tools.insert(tool.name);
  }
  if (request.protocol == Protocol::kResponses) o.echo = responses_echo(request);
  if (request.include_encrypted_reasoning) o.sealer = sealer;
  return o;
}

namespace {

// A copy of `value` with null for each of `keys` that it lacks.
Json with_nulls(const Json& value, std::initializer_list<std::string_view> keys) {
  Json full = value;
  for (const std::string_view key : keys) {
    if (full.find(key) == nullptr) full.set(key, Json());
  }
  return full;
}

bool has_type(const Json& value, std::string_view type) {
  const Json* t = value.find("type");
  return t != nullptr && t->is_string() && t->as_string() == type;
}

Json echoed_tool(const Json& tool) {
  if (has_type(tool, "function")) return with_nulls(tool, {"description", "parameters", "strict"});
  if (!has_type(tool, "namespace")) return tool;
  Json full = tool;
  if (Json* inner = full.find("tools"); inner != nullptr && inner->is_array()) {
    for (Json& t : inner->as_array()) t = echoed_tool(t);
  }
  return full;
}

Json echoed_text(const Json* sent) {
  Json text = sent != nullptr && sent->is_object() ? *sent : Json::object();
  Json format = Json::object();
  format.set("type", "text");
  if (const Json* f = text.find("format"); f != nullptr && f->is_object()) {
    format = has_type(*f, "json_schema") ? with_nulls(*f, {"description", "strict"}) : *f;
  }
  text.set("format", std::move(format));
  return with_nulls(text, {"verbosity"});
}

}  // namespace

std::string responses_echo(const Request& request) {
  std::string out;
  const auto value_or = [&](std::string_view key, std::string_view otherwise) {
    const Json* sent = request.echo.find(key);
    return sent == nullptr || sent->is_null() ? std::string(otherwise) : to_compact_json(*sent);
  };
  const auto add = [&](std::string_view key, std::string_view json) { append_raw_member(out, key, json); };
  Json reasoning = Json::object();
  if (const Json* sent = request.echo.find("reasoning"); sent != nullptr && sent->is_object()) reasoning = *sent;
  Json tools = Json::array();
  if (const Json* sent = request.echo.find("tools"); sent != nullptr && sent->is_array()) {
    for (const Json& tool : sent->as_array()) tools.as_array().push_back(echoed_tool(tool));
  }
  std::string previous = "null";
  if (!request.previous_response_id.empty()) {
    previous.clear();
    append_json_string(previous, request.previous_response_id);
  }
  add("background", "false");
  add("content_filters", "null");
  add("frequency_penalty", "0.0");
  add("instructions", value_or("instructions", "null"));
  add("max_output_tokens", value_or("max_output_tokens", "null"));
  add("max_tool_calls", "null");
  add("metadata", value_or("metadata", "{}"));
  add("moderation", "null");
  add("parallel_tool_calls", request.inference.parallel_tool_calls ? "true" : "false");
  add("presence_penalty", "0.0");
  add("previous_response_id", previous);
  add("prompt_cache_key", value_or("prompt_cache_key", "null"));
  add("prompt_cache_retention", "null");
  add("reasoning", to_compact_json(with_nulls(reasoning, {"effort", "summary"})));
  add("safety_identifier", value_or("safety_identifier", "null"));
  add("service_tier", "\"default\"");
  add("store", request.store ? "true" : "false");
  add("temperature", value_or("temperature", "1.0"));
  add("text", to_compact_json(echoed_text(request.echo.find("text"))));
  add("tool_choice", value_or("tool_choice", "\"auto\""));
  add("tools", to_compact_json(tools));
  add("top_logprobs", value_or("top_logprobs", "0"));
  add("top_p", value_or("top_p", "1.0"));
  add("truncation", "\"disabled\"");
  add("user", value_or("user", "null"));
  return out.substr(1);
}

}  // namespace deepinfer::recipe
