// OpenAI Responses: options and tools (spec/protocol.md 10.2, 10.8).
#include <algorithm>

#include "recipe/converters.h"
#include "recipe/responses_reader.h"

namespace deepinfer::recipe {
namespace {

bool is_web_search(std::string_view type) { return type == "web_search" || type == "web_search_2025_08_26"; }

// Members of the request that the response object repeats (spec 10.4).
constexpr std::string_view kEchoed[] = {"background",
                                        "instructions",
                                        "max_output_tokens",
                                        "max_tool_calls",
                                        "metadata",
                                        "parallel_tool_calls",
                                        "previous_response_id",
                                        "prompt_cache_key",
                                        "prompt_cache_retention",
                                        "reasoning",
                                        "safety_identifier",
                                        "service_tier",
                                        "store",
                                        "temperature",
                                        "text",
                                        "tool_choice",
                                        "tools",
                                        "top_logprobs",
                                        "top_p",
                                        "truncation",
                                        "user"};

}  // namespace

bool ResponsesReader::convert(Json& body) {
  return read_model(body) && echo(body) && read_options(body) && read_reasoning(body) && set_thinking() &&
         read_text(body) && read_tools(body) && read_choice(body) && read_previous(body) && read_input(body) &&
         finish_tools() && finish_reasoning("reasoning_text", "input") && check_whole();
}

bool ResponsesReader::echo(const Json& body) {
  for (std::string_view key : kEchoed) {
    if (const Json* value = body.find(key)) out_.echo.set(key, *value);
  }
  return true;
}

bool ResponsesReader::read_options(const Json& body) {
  if (!read_sampling(body) || !read_max_tokens(body, "max_output_tokens") || !read_top_logprobs(body) ||
      !read_user(body, root_, "user") ||
      !read(body, root_, "parallel_tool_calls", out_.inference.parallel_tool_calls)) {
    return false;
  }
  out_.inference.logprobs = out_.inference.top_logprobs.has_value();
  const Json* include = body.find("include");
  if (!is_set(include) || !include->is_array()) return true;
  for (const Json& item : include->as_array()) {
    if (!item.is_string()) continue;
    out_.include_encrypted_reasoning |= item.as_string() == "reasoning.encrypted_content";
    out_.inference.logprobs |= item.as_string() == "message.output_text.logprobs";
  }
  return true;
}

bool ResponsesReader::read_reasoning(const Json& body) {
  const Json* value = body.find("reasoning");
  if (!is_set(value)) return true;
  const Path at = root_ / "reasoning";
  if (!expect_object(*value, at) || !read_effort(*value, at, "effort")) return false;
  for (std::string_view key : {"summary", "generate_summary"}) {
    std::optional<std::string> summary;
    if (!read(*value, at, key, summary)) return false;
    if (summary && *summary != "auto" && *summary != "concise" && *summary != "detailed") {
      return unknown_value(at / key, *summary, "auto, concise or detailed");
    }
  }
  return true;
}

bool ResponsesReader::read_text(const Json& body) {
  const Json* value = body.find("text");
  if (!is_set(value)) return true;
  const Path at = root_ / "text";
  std::optional<std::string> verbosity;
  if (!expect_object(*value, at) || !read(*value, at, "verbosity", verbosity)) return false;
  if (verbosity && *verbosity != "low" && *verbosity != "medium" && *verbosity != "high") {
    return unknown_value(at / "verbosity", *verbosity, "low, medium or high");
  }
  const Json* format = value->find("format");
  if (!is_set(format)) return true;
  const Path format_at = at / "format";
  std::string type, name;
  if (!read_type(*format, format_at, type)) return false;
  if (type == "text") return true;
  if (type == "json_object") {
    out_.conversation.response_format = ResponseFormat::kJsonObject;
    return true;
  }
  if (type != "json_schema") return unknown_value(format_at / "type", type, "text, json_object or json_schema");
  return read(*format, format_at, "name", name, true) && read_schema_format(*format, format_at);
}

bool ResponsesReader::read_tools(Json& body) {
  Json* value = body.find("tools");
  if (!is_set(value)) return true;
  const Path at = root_ / "tools";
  if (!expect_array(*value, at) || !read_tool_list(value->as_array(), at, out_.conversation.tools, false)) return false;
  number_namespaced(out_.conversation.tools);
  return true;
}

// Function, namespace and custom tools; every other kind is dropped.
bool ResponsesReader::read_tool_list(JsonArray& list, const Path& at, std::vector<Tool>& out, bool found) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Path tool_at = at[i];
    std::string type;
    if (!read_type(list[i], tool_at, type)) return false;
    Tool tool;
    if (type == "function") {
      if (!read_function(list[i], tool_at, "parameters", tool)) return false;
      tool.defer_loading = false;
      out.push_back(std::move(tool));
    } else if (type == "namespace") {
      if (!read_namespace(list[i], tool_at, out)) return false;
    } else if (type == "custom") {
      if (!read_custom(list[i], tool_at, false, tool)) return false;
      out.push_back(std::move(tool));
    } else if (type == "tool_search" && !found && out_.version == Version::kV41) {
      if (!read_tool_search(list[i], tool_at, out)) return false;
    } else if (is_web_search(type) && options_.responses_web_search == WebSearch::kReject) {
      return fail(tool_at, "Server tools are not supported");
    }
    if (!too_many(at, out.size(), options_.limits.tools_max, "tools_max")) return false;
  }
  return true;
}

bool ResponsesReader::read_tool_search(Json& item, const Path& at, std::vector<Tool>& out) {
  std::optional<std::string> execution;
  if (!read(item, at, "execution", execution)) return false;
  if (execution && *execution != "client" && *execution != "server")
    return unknown_value(at / "execution", *execution, "client or server");
  if (!execution || *execution != "client") return true;
  Tool tool;
  tool.name = "tool_search";
  if (!read(item, at, "description", tool.description)) return false;
  const Json* parameters = item.find("parameters");
  if (is_set(parameters)) tool.parameters = *parameters;
  if (!finish_parameters(tool, is_set(parameters), at / "parameters")) return false;
  out.push_back(std::move(tool));
  return true;
}

bool ResponsesReader::read_namespace(Json& item, const Path& at, std::vector<Tool>& out) {
  std::string name, description;
  if (!read(item, at, "name", name, true) || !check_tool_name(name, at / "name") ||
      !read(item, at, "description", description)) {
    return false;
  }
  Json* tools = item.find("tools");
  if (!is_set(tools)) return missing(at, "tools");
  const Path tools_at = at / "tools";
  if (!expect_array(*tools, tools_at)) return false;
  std::set<std::string> names;
  for (size_t j = 0; j < tools->as_array().size(); ++j) {
    const Path tool_at = tools_at[j];
    Json& inner = tools->as_array()[j];
    std::string type;
    if (!read_type(inner, tool_at, type)) return false;
    if (type == "custom") {
      std::string custom_name;
      if (!read(inner, tool_at, "name", custom_name, true)) return false;
      return fail(
          tool_at,
          fmt::format("Currently custom tools are not allowed inside a namespace. Found custom tool '{}' in {}.",
                      custom_name, tool_at.to_string()));
    }
    if (type != "function") return unknown_value(tool_at / "type", type, "function");
    Tool tool;
    if (!read_function(inner, tool_at, "parameters", tool)) return false;
    tool.defer_loading = false;
    if (!names.insert(tool.name).second) return fail(tools_at, "Tool names within a namespace must be unique.");
    // V4 writes no description of the namespace.
    if (!description.empty() && out_.version == Version::kV41)
      tool.description = description + "\n" + tool.description.value_or("");
    tool.name_space = name;
    tool.local_name = tool.name;
    tool.name = name + separator() + tool.name;
    out.push_back(std::move(tool));
  }
  return true;
}

// Two namespaces may have one name, and V4's joined names can equal a function's: a number tells them apart.
void ResponsesReader::number_namespaced(std::vector<Tool>& tools) {
  for (const Tool& tool : tools) {
    if (tool.name_space.empty()) flat_names_.insert(tool.name);
  }
  for (Tool& tool : tools) {
    if (tool.name_space.empty()) continue;
    const std::string name = tool.name;
    for (int i = 1; !flat_names_.insert(tool.name).second; ++i) tool.name = name + "_" + std::to_string(i);
  }
}

// Only notes the choice; it is applied once the tools that the input announces are known.
bool ResponsesReader::read_choice(const Json& body) {
  const Json* value = body.find("tool_choice");
  if (!is_set(value)) return true;
  const Path at = root_ / "tool_choice";
  if (value->is_string()) {
    const std::string& word = value->as_string();
    if (word != "none" && word != "auto" && word != "required")
      return unknown_value(at, word, "none, auto, required or a tool");
    choice_ = word == "none" ? ToolChoice::kNone : word == "auto" ? ToolChoice::kAuto : ToolChoice::kRequired;
    return true;
  }
  std::string type;
  if (!read_type(*value, at, type)) return false;
  if (is_web_search(type)) {
    return options_.responses_web_search == WebSearch::kDrop || fail(at, "Server tools are not supported");
  }
  if (type == "function" || type == "custom") {
    if (!read(*value, at, "name", named_, true)) return false;
    return !named_.empty() || bad(at / "name", "a tool name must not be empty");
  }
  if (type != "allowed_tools") return unknown_value(at / "type", type, "function, custom, web_search or allowed_tools");
  std::string mode;
  if (!read(*value, at, "mode", mode, true)) return false;
  if (mode != "auto" && mode != "required") return unknown_value(at / "mode", mode, "auto or required");
  choice_ = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
  const Json* tools = value->find("tools");
  if (!is_set(tools)) return missing(at, "tools");
  const Path tools_at = at / "tools";
  if (!expect_array(*tools, tools_at)) return false;
  for (size_t i = 0; i < tools->as_array().size(); ++i) {
    const Path tool_at = tools_at[i];
    std::string kind, name;
    if (!read_type(tools->as_array()[i], tool_at, kind)) return false;
    if (kind != "function" && kind != "custom") continue;
    if (!read(tools->as_array()[i], tool_at, "name", name, true)) return false;
    out_.allowed_tools.push_back(std::move(name));
  }
  return true;
}

bool ResponsesReader::finish_tools() {
  const Path at = root_ / "tools", choice_at = root_ / "tool_choice";
  if (!check_unique_tools(at) || !apply_tool_choice(choice_, named_, choice_at)) return false;
  if (out_.conversation.tools.empty()) out_.allowed_tools.clear();
  for (const std::string& name : out_.allowed_tools) {
    if (out_.find_tool(name) == nullptr) {
      return fail(
          choice_at,
          fmt::format("Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' parameter.",
                      clip(name, 200)));
    }
  }
  return true;
}

bool ResponsesReader::check_whole() {
  if (out_.conversation.response_format == ResponseFormat::kJsonObject && !mentions_json()) {
    return fail(root_ / "input",
                "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
                "'json_object'.");
  }
  return true;
}

std::optional<ApiError> convert_responses(Json body, const RequestOptions& options, Request& out) {
  return ResponsesReader(options, out).run(std::move(body));
}

}  // namespace deepinfer::recipe
