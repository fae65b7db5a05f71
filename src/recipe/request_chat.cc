// Chat Completions (spec/protocol.md 9).
#include <algorithm>
#include <map>
#include <set>

#include "recipe/constants.h"
#include "recipe/converters.h"
#include "recipe/request_reader.h"

namespace deepinfer::recipe {
namespace {

class ChatReader : public RequestReader {
 public:
  using RequestReader::RequestReader;

 private:
  bool convert(Json& body) override {
    return read_model(body) && read_options(body) && read_effort(body, root_, "reasoning_effort") &&
           read_thinking(body) && set_thinking() && read_format(body) && read_tools(body) && read_messages(body) &&
           read_tool_choice(body) && finish_reasoning("reasoning_content", "messages") && check_whole();
  }

  bool read_options(const Json& body) {
    if (!read_sampling(body) || !read_max_tokens(body, "max_completion_tokens") ||
        !read_max_tokens(body, "max_tokens") || !read_stops(body, "stop") || !read_user(body, root_, "user") ||
        !read_user(body, root_, "user_id") || !read_sampler(body)) {
      return false;
    }
    if (!read_n(body) || !read_seed(body)) return false;
    if (!read(body, root_, "logprobs", out_.inference.logprobs) || !read_top_logprobs(body)) return false;
    if (out_.inference.top_logprobs && !out_.inference.logprobs) {
      return fail(root_ / "top_logprobs",
                  "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.");
    }
    return read(body, root_, "parallel_tool_calls", out_.inference.parallel_tool_calls) && read_stream_options(body);
  }

  bool read_format(const Json& body) {
    const Json* value = body.find("response_format");
    if (!is_set(value)) return true;
    const Path at = root_ / "response_format";
    std::string type;
    if (!read_type(*value, at, type)) return false;
    if (type == "text") return true;
    if (type == "json_object") {
      out_.conversation.response_format = ResponseFormat::kJsonObject;
      return true;
    }
    if (type == "json_schema") {
      const Json* schema = value->find("json_schema");
      return is_set(schema) ? read_schema_format(*schema, at / "json_schema") : missing(at, "json_schema");
    }
    if (type == "regex") {
      out_.conversation.response_format = ResponseFormat::kRegex;
      return read(*value, at, "regex", out_.conversation.response_regex, true);
    }
    return unknown_value(at / "type", type, "text, json_object, json_schema or regex");
  }

  bool read_tools(Json& body) {
    Json* value = body.find("tools");
    if (!is_set(value)) return true;
    const Path at = root_ / "tools";
    if (!expect_array(*value, at) || !too_many(at, value->as_array().size(), options_.limits.tools_max, "tools_max"))
      return false;
    for (size_t i = 0; i < value->as_array().size(); ++i) {
      const Path tool_at = at[i];
      Json& item = value->as_array()[i];
      std::string type;
      if (!read_type(item, tool_at, type)) return false;
      if (type != "function" && type != "custom") return unknown_value(tool_at / "type", type, "function or custom");
      Json* definition = item.find(type);
      if (!is_set(definition)) return missing(tool_at, type);
      Tool tool;
      const bool fine = type == "function" ? read_function(*definition, tool_at / "function", "parameters", tool)
                                           : read_custom(*definition, tool_at / "custom", true, tool);
      if (!fine) return false;
      tool.defer_loading = false;  // Chat has no way to announce a deferred tool
      out_.conversation.tools.push_back(std::move(tool));
    }
    return check_unique_tools(at);
  }

  bool read_tool_choice(const Json& body) {
    const Json* value = body.find("tool_choice");
    const Path at = root_ / "tool_choice";
    if (!is_set(value)) return apply_tool_choice(ToolChoice::kAuto, {}, at);
    if (value->is_string()) {
      const std::string& word = value->as_string();
      if (word == "none") return apply_tool_choice(ToolChoice::kNone, {}, at);
      if (word == "auto") return apply_tool_choice(ToolChoice::kAuto, {}, at);
      if (word == "required") return apply_tool_choice(ToolChoice::kRequired, {}, at);
      return unknown_value(at, word, "none, auto, required or a tool");
    }
    std::string type;
    if (!read_type(*value, at, type)) return false;
    if (type == "allowed_tools") return read_allowed_tools(*value, at);
    if (type != "function" && type != "custom")
      return unknown_value(at / "type", type, "function, custom or allowed_tools");
    std::string name;
    return read_choice_name(*value, at, type, name) && apply_tool_choice(ToolChoice::kRequired, name, at);
  }

  bool read_choice_name(const Json& value, const Path& at, const std::string& type, std::string& name) {
    const Json* chosen = value.find(type);
    if (!is_set(chosen)) return missing(at, type);
    const Path chosen_at = at / type;
    if (!expect_object(*chosen, chosen_at) || !read(*chosen, chosen_at, "name", name, true)) return false;
    return !name.empty() || bad(chosen_at / "name", "a tool name must not be empty");
  }

  bool read_allowed_tools(const Json& value, const Path& at) {
    const Json* allowed = value.find("allowed_tools");
    if (!is_set(allowed)) return missing(at, "allowed_tools");
    const Path allowed_at = at / "allowed_tools";
    std::string mode;
    if (!expect_object(*allowed, allowed_at) || !read(*allowed, allowed_at, "mode", mode, true)) return false;
    if (mode != "auto" && mode != "required") return unknown_value(allowed_at / "mode", mode, "auto or required");
    const Json* tools = allowed->find("tools");
    if (!is_set(tools)) return missing(allowed_at, "tools");
    const Path tools_at = allowed_at / "tools";
    if (!expect_array(*tools, tools_at)) return false;
    for (size_t i = 0; i < tools->as_array().size(); ++i) {
      const Path tool_at = tools_at[i];
      std::string type, name;
      if (!read_type(tools->as_array()[i], tool_at, type)) return false;
      if (type != "function" && type != "custom") return unknown_value(tool_at / "type", type, "function or custom");
      if (!read_choice_name(tools->as_array()[i], tool_at, type, name)) return false;
      if (out_.find_tool(name) == nullptr) {
        return fail(
            tool_at,
            fmt::format("Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' parameter.",
                        clip(name, 200)));
      }
      out_.allowed_tools.push_back(std::move(name));
    }
    return apply_tool_choice(mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto, {}, at);
  }

  // ---- messages ----

  bool read_messages(Json& body) {
    Json* value = body.find("messages");
    if (!is_set(value)) return missing(root_, "messages");
    const Path at = root_ / "messages";
    if (!expect_array(*value, at)) return false;
    JsonArray& list = value->as_array();
    if (list.empty()) return fail(at, "Empty input messages");
    if (!too_many(at, list.size(), options_.limits.messages_max, "messages_max")) return false;
    out_.conversation.messages.reserve(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      if (!read_message(list[i], at[i], i, i + 1 == list.size())) return false;
    }
    return check_answered(at);
  }

  bool read_message(Json& value, const Path& at, size_t index, bool last) {
    std::string role;
    std::optional<std::string> name;
    if (!expect_object(value, at) || !read(value, at, "role", role, true) || !read(value, at, "name", name))
      return false;
    if (role != "tool" && !check_answered(at)) return false;
    Message m;
    m.source = static_cast<int32_t>(index);
    if (role == "system") {
      if (!read_content(value, at, m.content)) return false;
      m.role = Role::kSystem;
      // An empty system message says nothing; the other APIs keep it, this one does not.
      if (m.content.text.empty() && m.content.images.empty()) return true;
    } else if (role == "user" || role == "developer") {
      if (!read_content(value, at, m.content)) return false;
    } else if (role == "latest_reminder") {
      if (!read(value, at, "content", m.content.text, true)) return false;
      m.role = Role::kLatestReminder;
    } else if (role == "assistant") {
      if (!read_assistant(value, at, index, last, m)) return false;
    } else if (role == "tool") {
      m.role = Role::kTool;
      if (!read_content(value, at, m.content) || !read(value, at, "tool_call_id", m.tool_call_id, true) ||
          !answer(m.tool_call_id, at, index)) {
        return false;
      }
    } else {
      return unknown_value(at / "role", role, "system, developer, user, assistant, tool or latest_reminder");
    }
    out_.conversation.messages.push_back(std::move(m));
    return true;
  }

  // content that must be there: a string or a list of parts.
  bool read_content(Json& message, const Path& at, Content& out) {
    Json* content = message.find("content");
    if (content == nullptr) return missing(at, "content");
    const Path content_at = at / "content";
    if (content->is_string()) {
      out.text = std::move(content->as_string());
      return true;
    }
    if (!content->is_array())
      return bad(content_at, fmt::format("expected a string or a list, got {}", content->kind_name()));
    for (size_t i = 0; i < content->as_array().size(); ++i) {
      if (i > 0) out.text += "\n\n";
      if (!read_part(content->as_array()[i], content_at[i], out)) return false;
    }
    return true;
  }

  bool read_part(Json& part, const Path& at, Content& out) {
    std::string type;
    if (!read_type(part, at, type)) return false;
    if (type == "text") {
      std::string text;
      if (!read(part, at, "text", text, true)) return false;
      out.text += text;
      return true;
    }
    if (type == "image_url") {
      Json* image = part.find("image_url");
      if (!is_set(image)) return missing(at, "image_url");
      const Path image_at = at / "image_url";
      std::string url;
      std::optional<std::string> detail;
      return expect_object(*image, image_at) && read(*image, image_at, "url", url, true) &&
             read(*image, image_at, "detail", detail) &&
             add_image_url(out, std::move(url), detail, at, "image_url.url");
    }
    if (type == "file") {
      Json* nested = part.find("file");
      if (!is_set(nested)) return read_file_part(part, at, out);
      const Path file_at = at / "file";
      return expect_object(*nested, file_at) && read_file_part(*nested, file_at, out);
    }
    return unknown_value(at / "type", type, "text, image_url or file");
  }

  bool read_file_part(const Json& file, const Path& at, Content& out) {
    std::optional<std::string> id, data, name;
    if (!read(file, at, "file_id", id) || !read(file, at, "file_data", data) || !read(file, at, "filename", name))
      return false;
    if (id)
      return fail(at, fmt::format("{}: file_id is not supported. Pass the image as a base64 data url instead.",
                                  at.to_string()));
    if (!data) return fail(at, fmt::format("{}: file must have a file_id or file_data", at.to_string()));
    if (!data->starts_with("data:"))
      return fail(at, fmt::format("{}: file_data is not a valid base64 data url", at.to_string()));
    return add_image_url(out, std::move(*data), std::nullopt, at, "file_data");
  }

  bool read_assistant(Json& value, const Path& at, size_t index, bool last, Message& m) {
    m.role = Role::kAssistant;
    Json* calls = value.find("tool_calls");
    const bool has_calls = is_set(calls);
    Json* content = value.find("content");
    if (!is_set(content) && !has_calls) return fail(at, "Invalid assistant message: content or tool_calls must be set");
    if (is_set(content) && !read_assistant_content(*content, at / "content", m.content.text)) return false;
    std::optional<std::string> reasoning;
    if (!read(value, at, "reasoning_content", reasoning) || !read(value, at, "prefix", m.prefix)) return false;
    if (m.prefix && !last) {
      return fail(at / "prefix",
                  "Invalid completion message: prefix set true with message which is not final message or message role "
                  "is not assistant");
    }
    if (has_calls && !read_calls(*calls, at / "tool_calls", index, m)) return false;
    m.reasoning = std::move(reasoning);
    return true;
  }

  bool read_assistant_content(Json& content, const Path& at, std::string& out) {
    if (content.is_string()) {
      out = std::move(content.as_string());
      return true;
    }
    if (!content.is_array()) return bad(at, fmt::format("expected a string or a list, got {}", content.kind_name()));
    for (size_t i = 0; i < content.as_array().size(); ++i) {
      const Path part_at = at[i];
      std::string type, text;
      if (!read_type(content.as_array()[i], part_at, type)) return false;
      if (type == "image_url" || type == "file") return fail(part_at, "Image in assistant message is not supported");
      if (type != "text") return unknown_value(part_at / "type", type, "text");
      if (!read(content.as_array()[i], part_at, "text", text, true)) return false;
      if (i > 0) out += "\n\n";
      out += text;
    }
    return true;
  }

  bool read_calls(Json& value, const Path& at, size_t index, Message& m) {
    if (!expect_array(value, at)) return false;
    if (value.as_array().empty()) {
      return fail(
          at, fmt::format(
                  "Invalid '{}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
                  at.to_string()));
    }
    for (size_t i = 0; i < value.as_array().size(); ++i) {
      const Path call_at = at[i];
      Json& item = value.as_array()[i];
      ToolCall call;
      std::string type;
      if (!read_type(item, call_at, type) || !read(item, call_at, "id", call.id, true)) return false;
      if (type != "function" && type != "custom") return unknown_value(call_at / "type", type, "function or custom");
      Json* body = item.find(type);
      if (!is_set(body)) return missing(call_at, type);
      const Path body_at = call_at / type;
      if (!expect_object(*body, body_at) || !read(*body, body_at, "name", call.name, true)) return false;
      if (type == "function") {
        if (!read(*body, body_at, "arguments", call.arguments, true)) return false;
      } else {
        std::string input;
        if (!read(*body, body_at, "input", input, true)) return false;
        call.arguments = custom_arguments(input);
      }
      if (!open_calls_.insert(call.id).second) {
        return fail(call_at / "id",
                    fmt::format("Duplicate value for 'tool_call_id' of {} in message[{}]", call.id, index));
      }
      m.tool_calls.push_back(std::move(call));
    }
    answered_.clear();
    return true;
  }

  // Tool messages must follow the calls until each is answered once.
  bool answer(const std::string& id, const Path& at, size_t index) {
    if (open_calls_.empty()) {
      return fail(at, "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
    }
    const Path id_at = at / "tool_call_id";
    if (answered_.contains(id))
      return fail(id_at, fmt::format("Duplicate value for 'tool_call_id' of {} in message[{}]", id, index));
    if (!open_calls_.contains(id)) {
      return fail(
          id_at,
          fmt::format("An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                      "'tool_call_id', The following tool_call_ids did not have response messages: {}",
                      id));
    }
    open_calls_.erase(id);
    answered_.insert(id);
    return true;
  }

  bool check_answered(const Path& at) {
    if (open_calls_.empty()) return true;
    return fail(
        at,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "(insufficient tool messages following tool_calls message)");
  }

  // Rules over the whole request.
  bool check_whole() {
    const Conversation& c = out_.conversation;
    const bool json_object = c.response_format == ResponseFormat::kJsonObject;
    if (!c.messages.empty() && c.messages.back().prefix) {
      const Path at = root_ / "messages";
      const size_t index = static_cast<size_t>(c.messages.back().source);
      const bool called =
          std::any_of(c.messages.begin(), c.messages.end(), [](const Message& m) { return !m.tool_calls.empty(); });
      if (c.has_tools() || called) return fail(at[index], "Function call should not be used with prefix");
      if (json_object) return fail(at[index], "response_format json_object should not be used with prefix");
    }
    if (json_object && !mentions_json()) {
      return fail(root_ / "messages",
                  "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.");
    }
    return true;
  }

  std::set<std::string> open_calls_, answered_;
};

}  // namespace

std::optional<ApiError> convert_chat(Json body, const RequestOptions& options, Request& out) {
  return ChatReader(options, out).run(std::move(body));
}

}  // namespace deepinfer::recipe
