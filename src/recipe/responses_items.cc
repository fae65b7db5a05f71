// OpenAI Responses: stored items and input items become messages (spec/protocol.md 10.3, 10.6, 10.7).
#include "recipe/constants.h"
#include "recipe/converters.h"
#include "recipe/responses_reader.h"
#include "recipe/sealed.h"

namespace deepinfer::recipe {
namespace {

// The result text: functions with fixed keys, those of a namespace flattened.
std::string found_tools_text(const JsonArray& tools) {
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
    if (type->as_string() != "namespace" || inner == nullptr || !inner->is_array() || tool.find("name") == nullptr)
      continue;
    for (const Json& t : inner->as_array()) function(t, &tool);
  }
  return out + "]";
}

}  // namespace

bool ResponsesReader::read_previous(const Json& body) {
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
    return fail(at, unknown ? fmt::format("Previous response with id '{}' not found.", clip(*id, 200))
                            : items.status().message());
  }
  out_.previous_response_id = *id;
  previous_ = std::move(items).value();
  return true;
}

bool ResponsesReader::read_input(Json& body) {
  std::optional<std::string> instructions;
  if (!read(body, root_, "instructions", instructions)) return false;
  Json* input = body.find("input");
  if (!is_set(input) && instructions.value_or("").empty() && previous_.empty())
    return fail(root_ / "input", "Either input or instructions must be provided");
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
    out_.conversation.messages.push_back(
        {.role = Role::kUser, .content = {.text = std::move(input->as_string())}, .source = 0});
    return true;
  }
  if (!input->is_array())
    return bad(at, fmt::format("expected a string or a list of items, got {}", input->kind_name()));
  JsonArray& items = input->as_array();
  if (items.empty()) return fail(at, "Input items array must not be empty");
  if (!too_many(at, items.size(), options_.limits.messages_max, "messages_max")) return false;
  if (out_.store) out_.input_items = items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!read_item(items[i], at[i], static_cast<int32_t>(i))) return false;
  }
  return check_answered(at);
}

bool ResponsesReader::read_item(Json& item, const Path& at, int32_t source) {
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

bool ResponsesReader::check_answered(const Path& at) {
  for (const ToolCall& call : calls_) {
    if (!outputs_.contains(call.id)) return fail(at, fmt::format("No tool output found for tool call {}.", call.id));
  }
  return true;
}

Message& ResponsesReader::add(Role role) {
  out_.conversation.messages.push_back({.role = role, .source = source_});
  return out_.conversation.messages.back();
}

// The assistant turn that the next assistant item continues, or null.
Message* ResponsesReader::trailing_assistant() {
  if (out_.conversation.messages.empty()) return nullptr;
  Message& last = out_.conversation.messages.back();
  return last.role == Role::kAssistant && last.tool_calls.empty() ? &last : nullptr;
}

bool ResponsesReader::read_message(Json& item, const Path& at) {
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

bool ResponsesReader::read_content(Json& value, const Path& at, Parts parts, Content& out) {
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

bool ResponsesReader::read_part(Json& part, const Path& at, Parts parts, Content& out) {
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
    return unknown_value(at / "type", type,
                         parts == Parts::kOutput ? "input_text, input_image or input_file"
                                                 : "input_text, output_text, input_image or input_file");
  }
  if (parts == Parts::kAssistant)
    return fail(at, fmt::format("{}: Image in assistant message is unsupported", at.to_string()));
  std::optional<std::string> url, file_id, detail;
  if (!read(part, at, "image_url", url) || !read(part, at, "file_id", file_id) || !read(part, at, "detail", detail))
    return false;
  const std::string where = at.to_string();
  if (url && file_id) return fail(at, where + ": input_image cannot have both image_url and file_id");
  if (file_id) return fail(at, where + ": file_id is not supported. Pass the image as a base64 data url instead.");
  if (!url) return fail(at, where + ": input_image must have image_url or file_id");
  return add_image_url(out, std::move(*url), detail, at, "image_url");
}

bool ResponsesReader::read_reasoning_item(Json& item, const Path& at) {
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

bool ResponsesReader::read_reasoning_text(Json& item, const Path& at, std::optional<std::string>& text) {
  if (!read_texts(item, at, "content", text)) return false;
  if (text) return true;
  std::optional<std::string> sealed;
  if (!read(item, at, "encrypted_content", sealed)) return false;
  if (!sealed || sealed->empty()) return read_texts(item, at, "summary", text);
  const Path sealed_at = at / "encrypted_content";
  Result<std::string> opened =
      options_.sealer != nullptr
          ? options_.sealer->open(*sealed)
          : Result<std::string>(Status(Code::kInvalidArgument, "this server has no key for encrypted content"));
  if (!opened.ok()) {
    error_.code = "invalid_encrypted_content";
    return fail(sealed_at, fmt::format("The encrypted content of {} could not be verified: {}.", at.to_string(),
                                       opened.status().message()));
  }
  text = std::move(opened).value();
  return true;
}

// Texts of a list of parts, joined by a newline.
bool ResponsesReader::read_texts(Json& item, const Path& at, std::string_view key, std::optional<std::string>& out) {
  Json* list = item.find(key);
  if (!is_set(list)) return true;
  const Path list_at = at / key;
  if (!expect_array(*list, list_at)) return false;
  for (size_t i = 0; i < list->as_array().size(); ++i) {
    const Path part_at = list_at[i];
    std::string text;
    if (!expect_object(list->as_array()[i], part_at) || !read(list->as_array()[i], part_at, "text", text, true))
      return false;
    out = out ? *out + "\n" + text : std::move(text);
  }
  return true;
}

bool ResponsesReader::read_call_id(const Json& item, const Path& at, std::string& id) {
  if (!read(item, at, "call_id", id, true)) return false;
  const Path id_at = at / "call_id";
  return !id.empty() ||
         fail(id_at,
              fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty "
                          "string instead.",
                          id_at.to_string()));
}

bool ResponsesReader::open_call(Json& item, const Path& at, ToolCall& call) {
  const Path id_at = at / "call_id";
  if (!read_call_id(item, at, call.id)) return false;
  if (!all_calls_.insert(call.id).second) return fail(id_at, fmt::format("Duplicate 'call_id': {}.", call.id));
  return true;
}

bool ResponsesReader::read_call_name(Json& item, const Path& at, ToolCall& call) {
  std::optional<std::string> name_space;
  if (!read(item, at, "name", call.name, true) || !read(item, at, "namespace", name_space)) return false;
  if (name_space && !name_space->empty()) call.name = *name_space + separator() + call.name;
  return true;
}

bool ResponsesReader::read_call(Json& item, const Path& at) {
  ToolCall call;
  if (!open_call(item, at, call) || !read_call_name(item, at, call) ||
      !read(item, at, "arguments", call.arguments, true))
    return false;
  calls_.push_back(std::move(call));
  return true;
}

bool ResponsesReader::read_custom_call(Json& item, const Path& at) {
  ToolCall call;
  std::string input;
  if (!open_call(item, at, call) || !read_call_name(item, at, call) || !read(item, at, "input", input, true))
    return false;
  call.arguments = custom_arguments(input);
  calls_.push_back(std::move(call));
  return true;
}

bool ResponsesReader::read_search_call(Json& item, const Path& at) {
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

bool ResponsesReader::read_output(Json& item, const Path& at) {
  std::string id;
  if (!read_call_id(item, at, id)) return false;
  Json* output = item.find("output");
  if (!is_set(output)) return missing(at, "output");
  Content content;
  return read_content(*output, at / "output", Parts::kOutput, content) &&
         answer(std::move(id), std::move(content), {}, at);
}

bool ResponsesReader::read_search_output(Json& item, const Path& at) {
  std::string id;
  if (!read_call_id(item, at, id)) return false;
  Json* tools = item.find("tools");
  if (!is_set(tools)) return missing(at, "tools");
  const Path tools_at = at / "tools";
  if (!expect_array(*tools, tools_at)) return false;
  Content content{.text = found_tools_text(tools->as_array())};
  std::vector<Tool> found;
  if (!read_tool_list(tools->as_array(), tools_at, found, true)) return false;
  if (!too_many(at, out_.conversation.tools.size() + found.size(), options_.limits.tools_max, "tools_max"))
    return false;
  number_namespaced(found);
  for (Tool& tool : found) {
    tool.defer_loading = true;
    if (!count_announced(tool, tools_at)) return false;
  }
  return answer(std::move(id), std::move(content), std::move(found), at);
}

bool ResponsesReader::answer(std::string id, Content content, std::vector<Tool> found, const Path& at) {
  const Path id_at = at / "call_id";
  if (answered_.contains(id)) return fail(id_at, fmt::format("Duplicate tool output for call_id: {}.", id));
  if (!all_calls_.contains(id))
    return fail(id_at, fmt::format("No tool call found for tool output with call_id {}.", id));
  answered_.insert(id);
  if (!found.empty()) searches_.push_back(id);
  outputs_[std::move(id)] = {std::move(content), std::move(found), source_};
  return outputs_.size() < calls_.size() || close_calls();
}

// All calls of a group are answered: they become one assistant turn and its results.
bool ResponsesReader::close_calls() {
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

void ResponsesReader::announce(std::vector<Tool> found) {
  std::vector<Tool>& tools = out_.conversation.tools;
  tools.insert(tools.end(), found.begin(), found.end());
  if (choice_ != ToolChoice::kNone) add(Role::kSystem).tools = std::move(found);
}

}  // namespace deepinfer::recipe
