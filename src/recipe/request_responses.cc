// OpenAI Responses (spec/protocol.md 10).
#include <algorithm>
#include <map>
#include <set>

#include "recipe/constants.h"
#include "recipe/converters.h"
#include "recipe/request_reader.h"
#include "recipe/sealed.h"

namespace deepinfer::recipe {
namespace {

bool is_web_search(std::string_view type) { return type == "web_search" || type == "web_search_2025_08_26"; }

// Members of the request that the response object repeats (spec 10.4).
constexpr std::string_view kEchoed[] = {
    "background", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "previous_response_id",
    "prompt_cache_key", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"};

class ResponsesReader : public RequestReader {
 public:
  using RequestReader::RequestReader;

 private:
  bool convert(Json& body) override {
    return read_model(body) && echo(body) && read_options(body) && read_reasoning(body) && set_thinking() && read_text(body) &&
           read_tools(body) && read_choice(body) && read_previous(body) && read_input(body) && finish_tools() &&
           finish_reasoning("reasoning_text", "input") && check_whole();
  }

  bool echo(const Json& body) {
    for (std::string_view key : kEchoed) {
      if (const Json* value = body.find(key)) out_.echo.set(key, *value);
    }
    return true;
  }

  bool read_options(const Json& body) {
    if (!read_sampling(body) || !read_max_tokens(body, "max_output_tokens") || !read_top_logprobs(body) ||
        !read_user(body, root_, "user") || !read(body, root_, "parallel_tool_calls", out_.inference.parallel_tool_calls)) {
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

  bool read_reasoning(const Json& body) {
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

  bool read_text(const Json& body) {
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

  // ---- tools ----

  bool read_tools(Json& body) {
    Json* value = body.find("tools");
    if (!is_set(value)) return true;
    const Path at = root_ / "tools";
    if (!expect_array(*value, at) || !read_tool_list(value->as_array(), at, out_.conversation.tools, false)) return false;
    number_namespaced(out_.conversation.tools);
    return true;
  }

  // Function, namespace and custom tools; every other kind is dropped.
  bool read_tool_list(JsonArray& list, const Path& at, std::vector<Tool>& out, bool found) {
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

  bool read_tool_search(Json& item, const Path& at, std::vector<Tool>& out) {
    std::optional<std::string> execution;
    if (!read(item, at, "execution", execution)) return false;
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

  bool read_namespace(Json& item, const Path& at, std::vector<Tool>& out) {
    std::string name, description;
    if (!read(item, at, "name", name, true) || !check_tool_name(name, at / "name") || !read(item, at, "description", description)) {
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
        return fail(tool_at, fmt::format("Currently custom tools are not allowed inside a namespace. Found custom tool '{}' in {}.",
                                         custom_name, tool_at.to_string()));
      }
      if (type != "function") return unknown_value(tool_at / "type", type, "function");
      Tool tool;
      if (!read_function(inner, tool_at, "parameters", tool)) return false;
      tool.defer_loading = false;
      if (!names.insert(tool.name).second) return fail(tools_at, "Tool names within a namespace must be unique.");
      // V4 writes no description of the namespace.
      if (!description.empty() && out_.version == Version::kV41) tool.description = description + "\n" + tool.description.value_or("");
      tool.name_space = name;
      tool.local_name = tool.name;
      tool.name = name + std::string(separator()) + tool.name;
      out.push_back(std::move(tool));
    }
    return true;
  }

  std::string_view separator() const { return out_.version == Version::kV41 ? "::" : "__"; }

  // Two namespaces may have one name, and V4's joined names can equal a function's: a number tells them apart.
  void number_namespaced(std::vector<Tool>& tools) {
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
  bool read_choice(const Json& body) {
    const Json* value = body.find("tool_choice");
    if (!is_set(value)) return true;
    const Path at = root_ / "tool_choice";
    if (value->is_string()) {
      const std::string& word = value->as_string();
      if (word != "none" && word != "auto" && word != "required") return unknown_value(at, word, "none, auto, required or a tool");
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

  bool finish_tools() {
    const Path at = root_ / "tools", choice_at = root_ / "tool_choice";
    if (!check_unique_tools(at) || !apply_tool_choice(choice_, named_, choice_at)) return false;
    if (out_.conversation.tools.empty()) out_.allowed_tools.clear();
    for (const std::string& name : out_.allowed_tools) {
      if (out_.find_tool(name) == nullptr) {
        return fail(choice_at, fmt::format("Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' parameter.",
                                           clip(name, 200)));
      }
    }
    return true;
  }

  // ---- input ----

  bool read_previous(const Json& body) {
    std::optional<std::string> id;
    bool store = true;
    // With storage off both fields are ignored whatever they hold.
    if (!options_.load_previous) return true;
    if (!read(body, root_, "previous_response_id", id) || !read(body, root_, "store", store)) return false;
    out_.store = store;
    if (!id) return true;
    Result<std::vector<Json>> items = options_.load_previous(*id);
    const Path at = root_ / "previous_response_id";
    if (!items.ok()) {
      const bool unknown = items.status().code() == Code::kNotFound;
      error_.code = unknown ? "previous_response_not_found" : "invalid_request_error";
      return fail(at, unknown ? fmt::format("Previous response with id '{}' not found.", clip(*id, 200)) : items.status().message());
    }
    out_.previous_response_id = *id;
    previous_ = std::move(items).value();
    return true;
  }

  bool read_input(Json& body) {
    std::optional<std::string> instructions;
    if (!read(body, root_, "instructions", instructions)) return false;
    Json* input = body.find("input");
    if (!is_set(input) && instructions.value_or("").empty() && previous_.empty()) return fail(root_ / "input", "Either input or instructions must be provided");
    if (instructions && !instructions->empty()) {
      out_.conversation.messages.push_back({.role = Role::kSystem, .content = {.text = std::move(*instructions)}});
    }
    const Path previous_at = root_ / "previous_response_id";
    for (size_t i = 0; i < previous_.size(); ++i) {
      if (!read_item(previous_[i], previous_at[i], -1)) return false;
    }
    const Path at = root_ / "input";
    if (!is_set(input)) return check_answered(at);
    if (input->is_string()) {
      if (out_.store) {
        Json item = Json::object();
        item.set("type", "message");
        item.set("role", "user");
        item.set("content", *input);
        out_.input_items.push_back(std::move(item));
      }
      if (!check_answered(at)) return false;
      out_.conversation.messages.push_back({.role = Role::kUser, .content = {.text = std::move(input->as_string())}, .source = 0});
      return true;
    }
    if (!input->is_array()) return bad(at, fmt::format("expected a string or a list of items, got {}", input->kind_name()));
    JsonArray& items = input->as_array();
    if (items.empty()) return fail(at, "Input items array must not be empty");
    if (!too_many(at, items.size(), options_.limits.messages_max, "messages_max")) return false;
    if (out_.store) out_.input_items = items;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!read_item(items[i], at[i], static_cast<int32_t>(i))) return false;
    }
    return check_answered(at);
  }

  bool read_item(Json& item, const Path& at, int32_t source) {
    if (!expect_object(item, at)) return false;
    source_ = source;
    std::string type;
    if (!read(item, at, "type", type)) return false;
    if (type.empty()) {
      if (!is_set(item.find("role"))) return bad(at, "an item needs a type or a role");
      type = "message";
    }
    const bool search = out_.version == Version::kV41;
    if (type == "message") return read_message(item, at);
    if (type == "reasoning") return read_reasoning_item(item, at);
    if (type == "function_call") return read_call(item, at);
    if (type == "custom_tool_call") return read_custom_call(item, at);
    if (type == "function_call_output" || type == "custom_tool_call_output") return read_output(item, at);
    if (type == "tool_search_call" && search) return read_search_call(item, at);
    if (type == "tool_search_output" && search) return read_search_output(item, at);
    return true;  // kinds that this service does not know are ignored
  }

  bool check_answered(const Path& at) {
    for (const ToolCall& call : calls_) {
      if (!outputs_.contains(call.id)) return fail(at, fmt::format("No tool output found for tool call {}.", call.id));
    }
    return true;
  }

  Message& add(Role role) {
    out_.conversation.messages.push_back({.role = role, .source = source_});
    return out_.conversation.messages.back();
  }

  // The assistant turn that the next assistant item continues, or null.
  Message* trailing_assistant() {
    if (out_.conversation.messages.empty()) return nullptr;
    Message& last = out_.conversation.messages.back();
    return last.role == Role::kAssistant && last.tool_calls.empty() ? &last : nullptr;
  }

  bool read_message(Json& item, const Path& at) {
    if (!check_answered(at)) return false;
    std::string role;
    if (!read(item, at, "role", role, true)) return false;
    Content content;
    const bool assistant = role == "assistant";
    Json* value = item.find("content");
    if (value == nullptr) return missing(at, "content");
    if (!read_content(*value, at / "content", assistant ? Parts::kAssistant : Parts::kMessage, content)) return false;
    if (assistant) {
      Message* m = trailing_assistant();
      if (m == nullptr) m = &add(Role::kAssistant);
      if (!m->content.text.empty() && !content.text.empty()) m->content.text += "\n\n";
      m->content.text += content.text;
      return true;
    }
    if (role == "user" || (role == "developer" && out_.version == Version::kV4)) {
      add(Role::kUser).content = std::move(content);
    } else if (role == "system" || role == "developer") {
      add(Role::kSystem).content = std::move(content);
    } else {
      return unknown_value(at / "role", role, "user, assistant, system or developer");
    }
    return true;
  }

  enum class Parts { kMessage, kAssistant, kOutput };

  bool read_content(Json& value, const Path& at, Parts parts, Content& out) {
    if (value.is_string()) {
      out.text = std::move(value.as_string());
      return true;
    }
    if (!value.is_array()) return bad(at, fmt::format("expected a string or a list of parts, got {}", value.kind_name()));
    for (size_t i = 0; i < value.as_array().size(); ++i) {
      if (i > 0) out.text += "\n\n";
      if (!read_part(value.as_array()[i], at[i], parts, out)) return false;
    }
    return true;
  }

  bool read_part(Json& part, const Path& at, Parts parts, Content& out) {
    std::string type, text;
    if (!read_type(part, at, type)) return false;
    if (type == "input_text" || (type == "output_text" && parts != Parts::kOutput)) {
      if (!read(part, at, "text", text, true)) return false;
      out.text += text;
      return true;
    }
    if (type == "input_file") {
      out.text += kUnsupportedDocument;
      return true;
    }
    if (type != "input_image") {
      return unknown_value(at / "type", type, parts == Parts::kOutput ? "input_text, input_image or input_file"
                                                                      : "input_text, output_text, input_image or input_file");
    }
    if (parts == Parts::kAssistant) return fail(at, fmt::format("{}: Image in assistant message is unsupported", at.to_string()));
    std::optional<std::string> url, file_id, detail;
    if (!read(part, at, "image_url", url) || !read(part, at, "file_id", file_id) || !read(part, at, "detail", detail)) return false;
    const std::string where = at.to_string();
    if (url && file_id) return fail(at, where + ": input_image cannot have both image_url and file_id");
    if (file_id) return fail(at, where + ": file_id is not supported. Pass the image as a base64 data url instead.");
    if (!url) return fail(at, where + ": input_image must have image_url or file_id");
    return add_image_url(out, std::move(*url), detail, at, "image_url");
  }

  bool read_reasoning_item(Json& item, const Path& at) {
    if (!check_answered(at)) return false;
    std::optional<std::string> text;
    if (!read_reasoning_text(item, at, text)) return false;
    if (!text || text->empty()) return true;
    Message* m = trailing_assistant();
    const bool joins = m != nullptr && m->content.text.empty();
    if (!joins) m = &add(Role::kAssistant);
    m->reasoning = m->reasoning ? *m->reasoning + "\n" + *text : std::move(*text);
    return true;
  }

  bool read_reasoning_text(Json& item, const Path& at, std::optional<std::string>& text) {
    if (!read_texts(item, at, "content", text)) return false;
    if (text) return true;
    std::optional<std::string> sealed;
    if (!read(item, at, "encrypted_content", sealed)) return false;
    if (!sealed || sealed->empty()) return read_texts(item, at, "summary", text);
    const Path sealed_at = at / "encrypted_content";
    Result<std::string> opened = options_.sealer != nullptr
                                     ? options_.sealer->open(*sealed)
                                     : Result<std::string>(Status(Code::kInvalidArgument, "this server has no key for encrypted content"));
    if (!opened.ok()) {
      error_.code = "invalid_encrypted_content";
      return fail(sealed_at, fmt::format("The encrypted content of {} could not be verified: {}.", at.to_string(), opened.status().message()));
    }
    text = std::move(opened).value();
    return true;
  }

  // Texts of a list of parts, joined by a newline.
  bool read_texts(Json& item, const Path& at, std::string_view key, std::optional<std::string>& out) {
    Json* list = item.find(key);
    if (!is_set(list)) return true;
    const Path list_at = at / key;
    if (!expect_array(*list, list_at)) return false;
    for (size_t i = 0; i < list->as_array().size(); ++i) {
      const Path part_at = list_at[i];
      std::string text;
      if (!expect_object(list->as_array()[i], part_at) || !read(list->as_array()[i], part_at, "text", text, true)) return false;
      out = out ? *out + "\n" + text : std::move(text);
    }
    return true;
  }

  // ---- calls and their outputs ----

  bool open_call(Json& item, const Path& at, ToolCall& call) {
    if (!read(item, at, "call_id", call.id, true)) return false;
    const Path id_at = at / "call_id";
    if (call.id.empty()) {
      return fail(id_at, fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty string instead.",
                                     id_at.to_string()));
    }
    if (!all_calls_.insert(call.id).second) return fail(id_at, fmt::format("Duplicate 'call_id': {}.", call.id));
    return true;
  }

  bool read_call_name(Json& item, const Path& at, ToolCall& call) {
    std::optional<std::string> name_space;
    if (!read(item, at, "name", call.name, true) || !read(item, at, "namespace", name_space)) return false;
    if (name_space && !name_space->empty()) call.name = *name_space + std::string(separator()) + call.name;
    return true;
  }

  bool read_call(Json& item, const Path& at) {
    ToolCall call;
    if (!open_call(item, at, call) || !read_call_name(item, at, call) || !read(item, at, "arguments", call.arguments, true)) return false;
    calls_.push_back(std::move(call));
    return true;
  }

  bool read_custom_call(Json& item, const Path& at) {
    ToolCall call;
    std::string input;
    if (!open_call(item, at, call) || !read_call_name(item, at, call) || !read(item, at, "input", input, true)) return false;
    call.arguments = custom_arguments(input);
    calls_.push_back(std::move(call));
    return true;
  }

  bool read_search_call(Json& item, const Path& at) {
    ToolCall call;
    if (!open_call(item, at, call)) return false;
    const Json* arguments = item.find("arguments");
    if (arguments == nullptr) return missing(at, "arguments");
    if (!expect_object(*arguments, at / "arguments")) return false;
    call.name = "tool_search";
    append_compact_json(call.arguments, *arguments);
    calls_.push_back(std::move(call));
    return true;
  }

  bool read_output(Json& item, const Path& at) {
    std::string id;
    if (!read(item, at, "call_id", id, true)) return false;
    Json* output = item.find("output");
    if (!is_set(output)) return missing(at, "output");
    Content content;
    return read_content(*output, at / "output", Parts::kOutput, content) && answer(std::move(id), std::move(content), {}, at);
  }

  bool read_search_output(Json& item, const Path& at) {
    std::string id;
    if (!read(item, at, "call_id", id, true)) return false;
    Json* tools = item.find("tools");
    if (!is_set(tools)) return missing(at, "tools");
    const Path tools_at = at / "tools";
    if (!expect_array(*tools, tools_at)) return false;
    Content content{.text = found_tools_text(tools->as_array())};
    std::vector<Tool> found;
    if (!read_tool_list(tools->as_array(), tools_at, found, true)) return false;
    if (!too_many(at, out_.conversation.tools.size() + found.size(), options_.limits.tools_max, "tools_max")) return false;
    number_namespaced(found);
    for (Tool& tool : found) {
      tool.defer_loading = true;
      if (!count_announced(tool, tools_at)) return false;
    }
    return answer(std::move(id), std::move(content), std::move(found), at);
  }

  // The result text: functions with fixed keys, those of a namespace flattened.
  static std::string found_tools_text(const JsonArray& tools) {
    std::string out = "[";
    const auto member = [&](const Json& tool, std::string_view key) {
      static const Json kNull;
      const Json* value = tool.find(key);
      out += ",\"" + std::string(key) + "\":";
      append_compact_json(out, value != nullptr ? *value : kNull);
    };
    const auto function = [&](const Json& tool, const Json* name_space) {
      if (out.size() > 1) out += ',';
      out += "{\"type\":\"function\"";
      for (std::string_view key : {"name", "description", "parameters", "strict"}) member(tool, key);
      if (name_space != nullptr) {
        out += ",\"namespace\":{\"name\":";
        append_compact_json(out, *name_space->find("name"));
        member(*name_space, "description");
        out += '}';
      }
      out += '}';
    };
    for (const Json& tool : tools) {
      const Json *type = tool.find("type"), *inner = tool.find("tools");
      if (type == nullptr || !type->is_string()) continue;  // refused when the tools are read
      if (type->as_string() == "function") function(tool, nullptr);
      if (type->as_string() != "namespace" || inner == nullptr || !inner->is_array() || tool.find("name") == nullptr) continue;
      for (const Json& t : inner->as_array()) function(t, &tool);
    }
    return out + "]";
  }

  struct Output {
    Content content;
    std::vector<Tool> found;
    int32_t source = -1;
  };

  bool answer(std::string id, Content content, std::vector<Tool> found, const Path& at) {
    const Path id_at = at / "call_id";
    if (answered_.contains(id)) return fail(id_at, fmt::format("Duplicate tool output for call_id: {}.", id));
    if (!all_calls_.contains(id)) return fail(id_at, fmt::format("No tool call found for tool output with call_id {}.", id));
    answered_.insert(id);
    if (!found.empty()) searches_.push_back(id);
    outputs_[std::move(id)] = {std::move(content), std::move(found), source_};
    return outputs_.size() < calls_.size() || close_calls();
  }

  // All calls of a group are answered: they become one assistant turn and its results.
  bool close_calls() {
    Message* m = trailing_assistant();
    if (m == nullptr) m = &add(Role::kAssistant);
    m->tool_calls = std::move(calls_);
    calls_.clear();
    std::vector<std::string> order;
    for (const ToolCall& call : m->tool_calls) order.push_back(call.id);
    for (const std::string& id : order) {
      Output& output = outputs_[id];
      source_ = output.source;
      Message& result = add(Role::kTool);
      result.tool_call_id = id;
      result.content = std::move(output.content);
    }
    for (const std::string& id : searches_) announce(std::move(outputs_[id].found));
    searches_.clear();
    outputs_.clear();
    return true;
  }

  void announce(std::vector<Tool> found) {
    std::vector<Tool>& tools = out_.conversation.tools;
    tools.insert(tools.end(), found.begin(), found.end());
    if (choice_ != ToolChoice::kNone) add(Role::kSystem).tools = std::move(found);
  }

  bool check_whole() {
    if (out_.conversation.response_format == ResponseFormat::kJsonObject && !mentions_json()) {
      return fail(root_ / "input",
                  "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.");
    }
    return true;
  }

  std::set<std::string> flat_names_;
  ToolChoice choice_ = ToolChoice::kAuto;
  std::string named_;
  std::vector<Json> previous_;
  int32_t source_ = -1;
  std::vector<ToolCall> calls_;           // of the open group
  std::map<std::string, Output> outputs_; // of the open group
  std::vector<std::string> searches_;     // tool searches of the open group, in the order of their outputs
  std::set<std::string> all_calls_, answered_;
};

}  // namespace

std::optional<ApiError> convert_responses(Json body, const RequestOptions& options, Request& out) {
  return ResponsesReader(options, out).run(std::move(body));
}

}  // namespace deepinfer::recipe
