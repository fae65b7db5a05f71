// Anthropic Messages (spec/protocol.md 11). Wording counts messages as messages.0; the error's path is messages[0].
#include <algorithm>
#include <set>

#include "recipe/constants.h"
#include "recipe/converters.h"
#include "recipe/request_reader.h"
#include "recipe/sealed.h"

namespace deepinfer::recipe {
namespace {

bool is_web_search(std::string_view type) { return type.starts_with("web_search"); }

bool is_media_type(std::string_view type) {
  return type == "image/jpeg" || type == "image/jpg" || type == "image/png" || type == "image/gif" ||
         type == "image/webp";
}

constexpr std::string_view kBillingLine = "x-anthropic-billing-header:";

class MessagesReader : public RequestReader {
 public:
  using RequestReader::RequestReader;

 private:
  bool convert(Json& body) override {
    return read_model(body) && read_sampling(body) && read_max_tokens(body, "max_tokens", true) &&
           read_stops(body, "stop_sequences") && read_metadata(body) && read_thinking(body) &&
           read_output_config(body) && set_thinking() && read_tools(body) && read_choice(body) && read_system(body) &&
           read_messages(body) && apply_choice() && finish_reasoning("content[].thinking", "messages");
  }

  bool read_metadata(const Json& body) {
    const Json* value = body.find("metadata");
    if (!is_set(value)) return true;
    const Path at = root_ / "metadata";
    return expect_object(*value, at) && read_user(*value, at, "user_id");
  }

  bool read_output_config(const Json& body) {
    const Json* value = body.find("output_config");
    if (!is_set(value)) return true;
    const Path at = root_ / "output_config";
    if (!expect_object(*value, at) || !read_effort(*value, at, "effort")) return false;
    const Json* format = value->find("format");
    if (!is_set(format)) return true;
    const Path format_at = at / "format";
    std::string type;
    if (!read_type(*format, format_at, type)) return false;
    if (type != "json_schema") return unknown_value(format_at / "type", type, "json_schema");
    return read_schema_format(*format, format_at);
  }

  // ---- tools ----

  bool read_tools(Json& body) {
    Json* value = body.find("tools");
    if (!is_set(value)) return true;
    const Path at = root_ / "tools";
    if (!expect_array(*value, at) || !too_many(at, value->as_array().size(), options_.limits.tools_max, "tools_max"))
      return false;
    bool all_deferred = true;
    for (size_t i = 0; i < value->as_array().size(); ++i) {
      const Path tool_at = at[i];
      Json& item = value->as_array()[i];
      std::optional<std::string> type;
      if (!expect_object(item, tool_at) || !read(item, tool_at, "type", type)) return false;
      if (type && *type != "custom") {
        if (is_web_search(*type) && options_.messages_web_search == WebSearch::kDrop) {
          std::string name;
          if (!read(item, tool_at, "name", name)) return false;
          dropped_.insert(std::move(name));
          continue;
        }
        return fail(tool_at / "type", fmt::format("{}: server tools are not supported", tool_at.to_string()));
      }
      if (!is_set(item.find("input_schema"))) return missing(tool_at, "input_schema");
      Tool tool;
      if (!read_function(item, tool_at, "input_schema", tool)) return false;
      if (out_.version == Version::kV4) tool.defer_loading = false;
      all_deferred &= tool.defer_loading;
      out_.conversation.tools.push_back(std::move(tool));
    }
    if (all_deferred && !out_.conversation.tools.empty()) {
      return fail(at, "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
    }
    known_ = out_.conversation.tools;
    return check_unique_tools(at);
  }

  bool read_choice(const Json& body) {
    const Json* value = body.find("tool_choice");
    if (!is_set(value)) return true;
    const Path at = root_ / "tool_choice";
    std::string type;
    bool sequential = false;
    if (!read_type(*value, at, type) || !read(*value, at, "disable_parallel_tool_use", sequential)) return false;
    out_.inference.parallel_tool_calls = !sequential;
    if (type == "tool") {
      if (!read(*value, at, "name", named_, true)) return false;
      if (named_.empty()) return bad(at / "name", "a tool name must not be empty");
      if (dropped_.contains(named_)) named_.clear();
      return true;
    }
    if (type == "none") {
      choice_ = ToolChoice::kNone;
    } else if (type == "any") {
      // Thinking cannot be forced into a call unless the server allows it; the service then treats any as auto.
      const bool force = !out_.conversation.thinking || options_.allow_forced_tool_with_thinking;
      choice_ = force ? ToolChoice::kRequired : ToolChoice::kAuto;
    } else if (type != "auto") {
      return unknown_value(at / "type", type, "auto, any, tool or none");
    }
    return true;
  }

  bool apply_choice() {
    const Path at = root_ / "tool_choice";
    return apply_tool_choice(choice_, named_, at);
  }

  // ---- messages ----

  bool read_system(Json& body) {
    Json* value = body.find("system");
    if (!is_set(value)) return true;
    Message m{.role = Role::kSystem};
    if (!read_texts(*value, root_ / "system", m.content.text)) return false;
    if (options_.drop_billing_line) drop_billing_line(m.content.text);
    out_.conversation.messages.push_back(std::move(m));
    return true;
  }

  void drop_billing_line(std::string& text) {
    if (!text.starts_with(kBillingLine)) return;
    const size_t end = text.find('\n');
    const size_t rest = end == std::string::npos ? text.size() : text.find_first_not_of('\n', end);
    text.erase(0, std::min(rest, text.size()));
    out_.rule = "system_billing_line";
  }

  // A string or text blocks.
  bool read_texts(Json& value, const Path& at, std::string& out) {
    if (value.is_string()) {
      out = std::move(value.as_string());
      return true;
    }
    if (!value.is_array())
      return bad(at, fmt::format("expected a string or a list of blocks, got {}", value.kind_name()));
    for (size_t i = 0; i < value.as_array().size(); ++i) {
      const Path block_at = at[i];
      std::string type, text;
      if (!read_type(value.as_array()[i], block_at, type)) return false;
      if (type != "text") return unknown_value(block_at / "type", type, "text");
      if (!read(value.as_array()[i], block_at, "text", text, true)) return false;
      if (i > 0) out += "\n\n";
      out += text;
    }
    return true;
  }

  bool read_messages(Json& body) {
    Json* value = body.find("messages");
    if (!is_set(value)) return missing(root_, "messages");
    const Path at = root_ / "messages";
    if (!expect_array(*value, at)) return false;
    JsonArray& list = value->as_array();
    if (list.empty()) return fail(at, "messages: at least one message is required");
    if (!too_many(at, list.size(), options_.limits.messages_max, "messages_max")) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      index_ = i;
      if (!read_message(list[i], at[i])) return false;
    }
    if (!open_.empty()) return unanswered(turn_, at[turn_]);
    Message& last = out_.conversation.messages.back();
    if (options_.messages_prefill && last.role == Role::kAssistant && last.tool_calls.empty()) last.prefix = true;
    return true;
  }

  bool unanswered(size_t index, const Path& at) { return unanswered(std::to_string(index), at); }

  bool unanswered(const std::string& where, const Path& at) {
    std::string ids;
    for (const std::string& id : turn_ids_) {
      if (open_.contains(id)) ids += (ids.empty() ? "" : ", ") + id;
    }
    return fail(
        at,
        fmt::format("messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each "
                    "`tool_use` block must have a corresponding `tool_result` block in the next message.",
                    where, ids));
  }

  Message& add(Role role) {
    out_.conversation.messages.push_back({.role = role, .source = static_cast<int32_t>(index_)});
    return out_.conversation.messages.back();
  }

  bool read_message(Json& value, const Path& at) {
    std::string role;
    if (!expect_object(value, at) || !read(value, at, "role", role, true)) return false;
    if (role != "user" && role != "assistant" && role != "system")
      return unknown_value(at / "role", role, "user, assistant or system");
    Json* content = value.find("content");
    if (content == nullptr) return missing(at, "content");
    const Path content_at = at / "content";
    if (role == "system") {
      if (!open_.empty()) return unanswered(index_, at);
      return read_system_message(*content, content_at);
    }
    if (content->is_array() && content->as_array().empty()) {
      return fail(content_at, fmt::format("messages.{}: all messages must have non-empty content", index_));
    }
    if (!content->is_array() && !content->is_string()) {
      return bad(content_at, fmt::format("expected a string or a list of blocks, got {}", content->kind_name()));
    }
    return role == "user" ? read_user_message(*content, at, content_at) : read_assistant(*content, at, content_at);
  }

  bool read_system_message(Json& content, const Path& at) {
    std::string text;
    if (!read_texts(content, at, text)) return false;
    if (out_.version == Version::kV4) {
      if (text.empty()) return true;
      add(Role::kUser).content.text = std::string(kSystemReminderOpen) + text + std::string(kSystemReminderClose);
    } else {
      add(Role::kSystem).content.text = std::move(text);
    }
    return true;
  }

  bool read_user_message(Json& content, const Path& at, const Path& content_at) {
    if (content.is_string()) {
      if (!open_.empty()) return unanswered(index_, at);
      add(Role::kUser).content.text = std::move(content.as_string());
      return true;
    }
    answered_.clear();
    announced_.clear();
    JsonArray& blocks = content.as_array();
    for (size_t j = 0; j < blocks.size(); ++j) {
      const Path block_at = content_at[j];
      std::string type;
      if (!read_type(blocks[j], block_at, type)) return false;
      if (type == "tool_result") {
        if (!read_result(blocks[j], block_at, j)) return false;
        continue;
      }
      if (type == "tool_use") {
        return fail(block_at,
                    fmt::format("messages.{}: `tool_use` blocks can only be in `assistant` messages", index_));
      }
      if (type == "thinking" || type == "redacted_thinking") {
        return fail(block_at,
                    fmt::format("messages.{}.content: thinking blocks may only be in `assistant` messages", index_));
      }
      if (!open_.empty()) return unanswered(index_, at);
      if ((type == "server_tool_use" || is_web_search(type)) && options_.messages_web_search == WebSearch::kDrop) {
        return fail(block_at,
                    fmt::format("messages.{}: `{}` blocks can only be in `assistant` messages", index_, type));
      }
      Content part;
      if (!read_block(blocks[j], block_at, type, part)) return false;
      if (!part.text.empty() || !part.images.empty() || type == "text") add(Role::kUser).content = std::move(part);
    }
    if (!open_.empty()) return unanswered(turn_, content_at);
    if (!announced_.empty() && out_.version == Version::kV41 && choice_ != ToolChoice::kNone) {
      add(Role::kSystem).tools = std::move(announced_);
    }
    return true;
  }

  // text, image, document or search_result.
  bool read_block(Json& block, const Path& at, const std::string& type, Content& out) {
    if (type == "text") {
      std::string text;
      if (!read(block, at, "text", text, true)) return false;
      out.text += text;
      return true;
    }
    if (type == "image") return read_image(block, at, out);
    if (type == "document") return read_document(block, at, out);
    if (type == "search_result") return read_search_result(block, at, out);
    if (type == "server_tool_use" || is_web_search(type)) {
      if (options_.messages_web_search == WebSearch::kDrop) return true;
      return fail(at, "Unsupported content block: server tools are not supported");
    }
    return unknown_value(at / "type", type, "text, image, document, search_result, tool_result, tool_use or thinking");
  }

  bool read_image(Json& block, const Path& at, Content& out) {
    Json* source = block.find("source");
    if (!is_set(source)) return missing(at, "source");
    const Path source_at = at / "source";
    std::string type;
    if (!read_type(*source, source_at, type)) return false;
    if (type == "base64") {
      std::string media_type, data;
      if (!read(*source, source_at, "media_type", media_type, true) || !read(*source, source_at, "data", data, true))
        return false;
      if (!is_media_type(media_type)) {
        return unknown_value(source_at / "media_type", media_type,
                             "image/jpeg, image/jpg, image/png, image/gif or image/webp");
      }
      return add_image_data(out, media_type, data, source_at);
    }
    if (type == "url") {
      std::string url;
      if (!read(*source, source_at, "url", url, true)) return false;
      if (!url.starts_with("http://") && !url.starts_with("https://")) {
        return fail(source_at / "url", fmt::format("{}: invalid url: expected http or https", source_at.to_string()));
      }
      return add_image_url(out, std::move(url), std::nullopt, source_at, "source.url");
    }
    if (type == "file") {
      return fail(source_at, fmt::format("{}: file_id is not supported. Pass the image as a base64 data url instead.",
                                         at.to_string()));
    }
    return unknown_value(source_at / "type", type, "base64, url or file");
  }

  bool read_document(Json& block, const Path& at, Content& out) {
    Json* source = block.find("source");
    if (!is_set(source)) return missing(at, "source");
    const Path source_at = at / "source";
    std::string type;
    std::optional<std::string> media_type;
    if (!read_type(*source, source_at, type) || !read(*source, source_at, "media_type", media_type)) return false;
    if (type == "text") {
      std::string text;
      if (!read(*source, source_at, "data", text, true)) return false;
      out.text += text;
      return true;
    }
    if (type == "content") {
      Json* content = source->find("content");
      if (!is_set(content)) return missing(source_at, "content");
      return read_blocks(*content, source_at / "content", out);
    }
    out.text += fmt::format("[Unsupported document type: {}]", media_type.value_or("unknown"));
    return true;
  }

  // A list of blocks (or a string) inside a result or document, joined by blank lines.
  bool read_blocks(Json& value, const Path& at, Content& out) {
    if (value.is_string()) {
      out.text += value.as_string();
      return true;
    }
    if (!value.is_array())
      return bad(at, fmt::format("expected a string or a list of blocks, got {}", value.kind_name()));
    for (size_t i = 0; i < value.as_array().size(); ++i) {
      const Path block_at = at[i];
      std::string type;
      if (!read_type(value.as_array()[i], block_at, type)) return false;
      if (i > 0) out.text += "\n\n";
      const bool fine = type == "tool_reference" ? read_reference(value.as_array()[i], block_at, i, out)
                                                 : read_block(value.as_array()[i], block_at, type, out);
      if (!fine) return false;
    }
    return true;
  }

  bool read_reference(Json& block, const Path& at, size_t index, Content& out) {
    std::string name;
    if (!read(block, at, "tool_name", name, true)) return false;
    const auto tool = std::find_if(known_.begin(), known_.end(), [&](const Tool& t) { return t.name == name; });
    if (tool == known_.end()) {
      return fail(at / "tool_name",
                  fmt::format("messages.{}.content.{}: tool reference '{}' not found in available tools", index_,
                              result_ < 0 ? index : static_cast<size_t>(result_), clip(name, 200)));
    }
    if (!count_announced(*tool, at)) return false;
    announced_.push_back(*tool);
    out.text += name;
    return true;
  }

  bool read_search_result(Json& block, const Path& at, Content& out) {
    std::string title, source;
    if (!read(block, at, "title", title) || !read(block, at, "source", source)) return false;
    for (const std::string& part : {title, source}) {
      if (!part.empty()) out.text += part + "\n\n";
    }
    Json* content = block.find("content");
    if (!is_set(content)) return missing(at, "content");
    return read_blocks(*content, at / "content", out);
  }

  bool read_result(Json& block, const Path& at, size_t j) {
    std::string id;
    if (!read(block, at, "tool_use_id", id, true)) return false;
    const Path id_at = at / "tool_use_id";
    if (answered_.contains(id)) {
      return fail(
          id_at,
          fmt::format(
              "messages.{}.content.{}: each tool_use must have a single result. Found multiple `tool_result` blocks "
              "with id: {}",
              index_, j, id));
    }
    if (!open_.contains(id)) {
      return fail(
          id_at,
          fmt::format(
              "unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` "
              "block must have a corresponding `tool_use` block in the previous message.",
              index_, j, id));
    }
    open_.erase(id);
    answered_.insert(id);
    Content content;
    result_ = static_cast<int64_t>(j);
    if (Json* value = block.find("content"); is_set(value) && !read_blocks(*value, at / "content", content))
      return false;
    result_ = -1;
    Message& m = add(Role::kTool);
    m.tool_call_id = std::move(id);
    m.content = std::move(content);
    return true;
  }

  // ---- assistant ----

  bool read_assistant(Json& content, const Path& at, const Path& content_at) {
    if (!open_.empty()) return unanswered(index_, at);
    Message m{.role = Role::kAssistant, .source = static_cast<int32_t>(index_)};
    std::optional<std::string> reasoning;
    if (content.is_string()) {
      m.content.text = std::move(content.as_string());
    } else if (!read_assistant_blocks(content.as_array(), content_at, m, reasoning)) {
      return false;
    }
    m.reasoning = std::move(reasoning);
    out_.conversation.messages.push_back(std::move(m));
    return true;
  }

  bool read_assistant_blocks(JsonArray& blocks, const Path& at, Message& m, std::optional<std::string>& reasoning) {
    for (size_t j = 0; j < blocks.size(); ++j) {
      const Path block_at = at[j];
      Json& block = blocks[j];
      std::string type, text;
      if (!read_type(block, block_at, type)) return false;
      if (type == "text") {
        if (!open_.empty()) return unanswered(fmt::format("{}.{}", index_, j), block_at);
        if (!read(block, block_at, "text", text, true)) return false;
        if (!m.content.text.empty()) m.content.text += "\n\n";
        m.content.text += text;
      } else if (type == "thinking") {
        if (!read(block, block_at, "thinking", text, true)) return false;
        reasoning = reasoning ? *reasoning + "\n\n" + text : text;
      } else if (type == "redacted_thinking") {
        if (!read_redacted(block, block_at, reasoning)) return false;
      } else if (type == "tool_use") {
        if (!read_use(block, block_at, j, m)) return false;
      } else if (type == "tool_result") {
        return fail(block_at, fmt::format("messages.{}: `tool_result` blocks can only be in `user` messages", index_));
      } else if (type == "image") {
        return fail(block_at, "Image in assistant message is unsupported");
      } else {
        // Server tool blocks follow the policy; documents and the like are read as text.
        Content part;
        if (!read_block(block, block_at, type, part)) return false;
        if (part.text.empty()) continue;
        if (!m.content.text.empty()) m.content.text += "\n\n";
        m.content.text += part.text;
      }
    }
    return true;
  }

  // Thinking that we sealed comes back; what others sealed cannot be read and is left out.
  bool read_redacted(Json& block, const Path& at, std::optional<std::string>& reasoning) {
    std::string data;
    if (!read(block, at, "data", data, true)) return false;
    if (options_.sealer == nullptr) return true;
    Result<std::string> text = options_.sealer->open(data);
    if (text.ok()) reasoning = reasoning ? *reasoning + "\n\n" + text.value() : text.value();
    return true;
  }

  bool read_use(Json& block, const Path& at, size_t j, Message& m) {
    ToolCall call;
    if (!read(block, at, "id", call.id, true) || !read(block, at, "name", call.name, true)) return false;
    const Json* input = block.find("input");
    if (input == nullptr) return missing(at, "input");
    append_python_json(call.arguments, *input);
    if (m.tool_calls.empty()) turn_ids_.clear();
    if (!open_.insert(call.id).second) {
      return fail(at / "id", fmt::format("messages.{}.content.{}: `tool_use` ids must be unique", index_, j));
    }
    turn_ids_.push_back(call.id);
    turn_ = index_;
    m.tool_calls.push_back(std::move(call));
    return true;
  }

  ToolChoice choice_ = ToolChoice::kAuto;
  std::string named_;
  std::vector<Tool> known_;        // all declared tools; a tool choice may narrow the conversation's
  std::set<std::string> dropped_;  // names of server tools that the policy drops
  std::vector<Tool> announced_;   // by tool references of the message being read
  size_t index_ = 0;              // of the message being read
  int64_t result_ = -1;           // block index of the tool_result being read
  size_t turn_ = 0;               // of the assistant turn that open_ belongs to
  std::vector<std::string> turn_ids_;  // its tool_use ids, in order
  std::set<std::string> open_;    // those without a result
  std::set<std::string> answered_;
};

}  // namespace

std::optional<ApiError> convert_messages(Json body, const RequestOptions& options, Request& out) {
  return MessagesReader(options, out).run(std::move(body));
}

}  // namespace deepinfer::recipe
