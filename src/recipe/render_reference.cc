#include <algorithm>
#include <map>

#include "recipe/render.h"

namespace deepinfer::recipe {
namespace {

constexpr std::string_view kImageSpelling = "<｜deepseek_image｜>";

constexpr std::pair<std::string_view, SpecialToken> kTasks[] = {
    {"action", SpecialToken::kAction}, {"query", SpecialToken::kQuery}, {"authority", SpecialToken::kAuthority},
    {"domain", SpecialToken::kDomain}, {"title", SpecialToken::kTitle}, {"read_url", SpecialToken::kReadUrl}};

std::string_view string_member(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? std::string_view(value->as_string()) : std::string_view();
}

bool is_known_role(std::string_view role) {
  return role == "system" || role == "developer" || role == "user" || role == "assistant" || role == "latest_reminder";
}

bool truthy(const Json* value) {
  if (value == nullptr || value->is_null()) return false;
  if (value->is_array()) return !value->as_array().empty();
  if (value->is_object()) return !value->as_object().empty();
  if (value->is_string()) return !value->as_string().empty();
  return !value->is_bool() || value->as_bool();
}

// A message after tool messages were joined to users. user messages are a list of blocks.
struct Turn {
  const Json* message = nullptr;
  std::string_view role;
  std::vector<const Json*> blocks;  // user: content of a user message, or a whole tool message
  std::vector<bool> is_result;
  std::string_view task;
  int32_t source = -1;
};

class ReferenceRenderer {
 public:
  ReferenceRenderer(Version version, const ReferenceOptions& options, Prompt& prompt)
      : version_(version), options_(options), out_(prompt) {}

  Status run(const std::vector<Json>& messages) {
    DI_RETURN_IF_ERROR(check(options_.context));
    DI_RETURN_IF_ERROR(check(messages));
    if (options_.continue_final_message &&
        (messages.empty() || string_member(messages.back(), "role") != "assistant")) {
      return Status(Code::kInvalidArgument, "continue_final_message needs an assistant message at the end");
    }
    std::vector<Turn> context = merge(options_.context);
    std::vector<Turn> own = merge(messages);
    turns_ = context;
    turns_.insert(turns_.end(), own.begin(), own.end());
    sort_results();
    drop_ = options_.drop_thinking &&
            std::none_of(turns_.begin(), turns_.end(), [](const Turn& t) { return truthy(t.message->find("tools")); });
    size_t printed_from = context.size();
    if (options_.thinking && drop_) printed_from -= drop_before_last_turn(printed_from);
    find_last_turn();
    for (size_t i = printed_from; i < turns_.size(); ++i) {
      if (is_known_role(turns_[i].role)) continue;
      return make_error(Code::kInvalidArgument, "messages[{}].role is {}, which cannot be encoded", turns_[i].source,
                        turns_[i].role);
    }
    if (options_.bos && context.empty()) out_.special(SpecialToken::kBos);
    for (size_t i = printed_from; i < turns_.size(); ++i) turn(i);
    return {};
  }

 private:
  static Status check(const std::vector<Json>& messages) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].is_object() || string_member(messages[i], "role").empty()) {
        return make_error(Code::kInvalidArgument, "messages[{}] is not an object with a role", i);
      }
      const Json* task = messages[i].find("task");
      if (task == nullptr || task->is_null()) continue;
      const std::string_view name = string_member(messages[i], "task");
      if (std::none_of(std::begin(kTasks), std::end(kTasks), [&](const auto& t) { return t.first == name; })) {
        return make_error(Code::kInvalidArgument,
                          "messages[{}].task is not one of action, query, authority, domain, title, read_url", i);
      }
    }
    return {};
  }

  // Tool messages become blocks of the user message before them; users that follow join it too.
  static std::vector<Turn> merge(const std::vector<Json>& messages) {
    std::vector<Turn> turns;
    for (size_t i = 0; i < messages.size(); ++i) {
      const Json& m = messages[i];
      const std::string_view role = string_member(m, "role");
      const bool result = role == "tool";
      const bool joins = !turns.empty() && turns.back().role == "user";
      if (result || role == "user") {
        if (!joins || (!result && !turns.back().task.empty())) {
          turns.push_back(
              {.message = &m, .role = "user", .task = result ? std::string_view() : string_member(m, "task")});
          turns.back().source = static_cast<int32_t>(i);
        }
        turns.back().blocks.push_back(&m);
        turns.back().is_result.push_back(result);
      } else {
        turns.push_back({.message = &m, .role = role, .task = string_member(m, "task")});
        turns.back().source = static_cast<int32_t>(i);
      }
    }
    return turns;
  }

  void sort_results() {
    std::map<std::string_view, size_t> order;
    for (Turn& t : turns_) {
      const Json* calls = t.message->find("tool_calls");
      if (t.role == "assistant" && truthy(calls) && calls->is_array()) {
        order.clear();
        for (size_t i = 0; i < calls->as_array().size(); ++i) {
          const std::string_view id = string_member(calls->as_array()[i], "id");
          if (!id.empty()) order[id] = i;
        }
      } else if (t.role == "user" && !order.empty()) {
        sort_results_of(t, order);
      }
    }
  }

  static void sort_results_of(Turn& t, const std::map<std::string_view, size_t>& order) {
    std::vector<const Json*> results;
    for (size_t i = 0; i < t.blocks.size(); ++i) {
      if (t.is_result[i]) results.push_back(t.blocks[i]);
    }
    const auto key = [&](const Json* m) {
      const auto at = order.find(string_member(*m, "tool_call_id"));
      return at == order.end() ? size_t{0} : at->second;
    };
    std::stable_sort(results.begin(), results.end(), [&](const Json* a, const Json* b) { return key(a) < key(b); });
    size_t next = 0;
    for (size_t i = 0; i < t.blocks.size(); ++i) {
      if (t.is_result[i]) t.blocks[i] = results[next++];
    }
  }

  // Whether a turn opens a user turn for the purposes of dropping and of the assistant header (spec 5.3).
  bool starts_turn(size_t i) const {
    const Turn& t = turns_[i];
    if (t.role == "developer") return true;
    if (t.role == "system") return version_ == Version::kV41 && i > 0;
    if (t.role != "user") return false;
    return version_ == Version::kV4 || std::find(t.is_result.begin(), t.is_result.end(), false) != t.is_result.end();
  }

  void find_last_turn() {
    last_turn_ = -1;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (starts_turn(i)) last_turn_ = static_cast<int64_t>(i);
    }
  }

  // Developer and unknown roles before the last user turn vanish; returns how many of the first `context` did.
  size_t drop_before_last_turn(size_t context) {
    find_last_turn();
    std::vector<Turn> kept;
    size_t dropped = 0;
    for (size_t i = 0; i < turns_.size(); ++i) {
      const std::string_view role = turns_[i].role;
      const bool keep = static_cast<int64_t>(i) >= last_turn_ || role == "user" || role == "system" ||
                        role == "assistant" || role == "latest_reminder";
      if (keep) {
        kept.push_back(turns_[i]);
      } else if (i < context) {
        ++dropped;
      }
    }
    turns_ = std::move(kept);
    return dropped;
  }

  std::string effort_text() const {
    if (!options_.thinking) return {};
    if (version_ == Version::kV4)
      return options_.effort ? std::string(v4_effort_text(*options_.effort)) : std::string();
    const Effort effort = options_.effort.value_or(Effort::kHigh);
    const int number = effort == Effort::kNumber ? options_.effort_number : effort_number(effort);
    return std::string(kEffortHead) + std::to_string(number) + std::string(kEffortTail);
  }

  void turn(size_t i) {
    const Turn& t = turns_[i];
    out_.part(PartKind::kTemplate, t.source);
    if (i == 0) {
      const std::string effort = effort_text();
      if (version_ == Version::kV41 && (!effort.empty() || t.role == "system")) out_.special(SpecialToken::kSystem);
      out_.part(PartKind::kEffort, t.source);
      out_.text(effort);
    } else if (t.role == "system" && version_ == Version::kV41) {
      out_.special(SpecialToken::kSystem);
    }
    if (t.role == "system") {
      out_.part(PartKind::kSystem, t.source);
      content(t.message->find("content"));
      instructions(*t.message);
    } else if (t.role == "developer") {
      out_.special(SpecialToken::kUser);
      out_.part(PartKind::kUser, t.source);
      content(t.message->find("content"));
      instructions(*t.message);
    } else if (t.role == "user") {
      out_.special(SpecialToken::kUser);
      blocks(t);
    } else if (t.role == "latest_reminder") {
      out_.special(SpecialToken::kLatestReminder);
      out_.part(PartKind::kReminder, t.source);
      content(t.message->find("content"));
    } else if (t.role == "assistant") {
      assistant(t, i);
    }
    transition(t, i);
  }

  void blocks(const Turn& t) {
    for (size_t b = 0; b < t.blocks.size(); ++b) {
      if (b > 0) out_.text("\n\n");
      out_.part(t.is_result[b] ? PartKind::kToolResult : PartKind::kUser, t.source);
      if (t.is_result[b]) out_.text(kToolResultOpen);
      content(t.blocks[b]->find("content"));
      if (t.is_result[b]) out_.text(kToolResultClose);
    }
  }

  void content(const Json* value) {
    if (value == nullptr) return;
    if (value->is_string()) out_.text(value->as_string());
    if (!value->is_array()) return;
    bool first = true;
    for (const Json& block : value->as_array()) {
      if (!first) out_.text("\n\n");
      first = false;
      const std::string_view type = string_member(block, "type");
      if (type == "text") {
        out_.text(string_member(block, "text"));
      } else if (type == "image" || type == "image_url") {
        out_.special(SpecialToken::kImage, kImageSpelling);
      } else if (type == "tool_result") {
        out_.text(kToolResultOpen);
        content(block.find("content"));
        out_.text(kToolResultClose);
      } else {
        out_.text("[Unsupported ");
        out_.text(type);
        out_.text("]");
      }
    }
  }

  void instructions(const Json& message) {
    const Json* tools = message.find("tools");
    if (truthy(tools) && tools->is_array()) {
      std::string lines;
      for (const Json& tool : tools->as_array()) {
        if (!lines.empty()) lines += '\n';
        const Json* function = tool.find("function");
        append_python_json(lines, function != nullptr ? *function : tool, true);
      }
      out_.part(PartKind::kTools);
      out_.text("\n\n");
      append_tool_prompt(out_, version_, lines);
    }
    if (const Json* format = message.find("response_format"); truthy(format)) {
      out_.part(PartKind::kFormat);
      out_.text("\n\n");
      out_.text(kResponseFormatHead);
      append_python_json(out_.raw(), *format, true);
    }
  }

  void assistant(const Turn& t, size_t i) {
    const bool after_task = i > 0 && !turns_[i - 1].task.empty();
    const bool last = i + 1 == turns_.size();
    const std::string_view reasoning = string_member(*t.message, "reasoning_content");
    const Json* text = t.message->find("content");
    const Json* calls = t.message->find("tool_calls");
    const bool has_calls = truthy(calls) && calls->is_array();
    const bool continued = last && options_.continue_final_message;
    if (options_.thinking && !after_task && (!drop_ || static_cast<int64_t>(i) > last_turn_)) {
      out_.part(PartKind::kReasoning, t.source);
      out_.text(reasoning);
      const bool open = continued && !reasoning.empty() && !truthy(text) && !has_calls;
      if (!open) out_.special(SpecialToken::kEndThink);
    }
    out_.part(PartKind::kAnswer, t.source);
    content(text);
    if (has_calls) {
      out_.part(PartKind::kCall, t.source);
      out_.text("\n\n");
      call_block(calls->as_array());
    }
    const bool without_eos = continued || truthy(t.message->find("wo_eos"));
    if (!without_eos) out_.special(SpecialToken::kEos);
  }

  void call_block(const JsonArray& calls) {
    const DsmlTags& tags = dsml_tags(version_);
    const auto tag = [&](std::string_view before, std::string_view name, std::string_view after) {
      out_.text(before);
      out_.special(SpecialToken::kDsml);
      out_.text(name);
      out_.text(after);
    };
    tag("<", tags.calls, ">\n");
    for (size_t i = 0; i < calls.size(); ++i) {
      const Json* nested = calls[i].find("function");
      const Json& call = nested != nullptr ? *nested : calls[i];
      if (i > 0) out_.text("\n");
      tag("<", tags.invoke, " name=\"");
      out_.text(string_member(call, "name"));
      out_.text("\">\n");
      call_arguments(call.find("arguments"));
      tag("\n</", tags.invoke, ">");
    }
    tag("\n</", tags.calls, ">");
  }

  // Arguments may be an object or JSON text of one, encoded once or twice.
  void call_arguments(const Json* given) {
    static const Json kNone;
    if (given == nullptr) given = &kNone;
    Json value = *given;
    for (int pass = 0; pass < 2 && value.is_string(); ++pass) {
      Result<Json> parsed = parse_json(value.as_string());
      if (!parsed.ok()) break;
      value = std::move(parsed).value();
    }
    if (value.is_object()) {
      append_parameters(out_, version_, value.as_object(), true);
    } else {
      append_parameters(out_, version_, {{"arguments", *given}}, true);
    }
  }

  // What follows a message: nothing, a task token, or the header of the assistant's turn.
  void transition(const Turn& t, size_t i) {
    if (i + 1 == turns_.size() && options_.continue_final_message) return;
    if (i + 1 < turns_.size() && turns_[i + 1].role != "assistant" && turns_[i + 1].role != "latest_reminder") return;
    out_.part(PartKind::kTemplate, t.source);
    if (!t.task.empty()) {
      if (t.task == "action") {
        out_.special(SpecialToken::kAssistant);
        out_.special(options_.thinking ? SpecialToken::kThink : SpecialToken::kEndThink);
      }
      for (const auto& [name, token] : kTasks) {
        if (name == t.task) out_.special(token);
      }
      return;
    }
    const bool header =
        t.role == "user" || t.role == "developer" || (t.role == "system" && version_ == Version::kV41 && i > 0);
    if (!header) return;
    out_.special(SpecialToken::kAssistant);
    const bool think = options_.thinking && (!drop_ || static_cast<int64_t>(i) >= last_turn_);
    out_.special(think ? SpecialToken::kThink : SpecialToken::kEndThink);
  }

  const Version version_;
  const ReferenceOptions& options_;
  PromptBuilder out_;
  std::vector<Turn> turns_;
  bool drop_ = true;
  int64_t last_turn_ = -1;
};

}  // namespace

Result<Prompt> render_reference(const std::vector<Json>& messages, Version version, const ReferenceOptions& options) {
  Prompt prompt;
  DI_RETURN_IF_ERROR(ReferenceRenderer(version, options, prompt).run(messages));
  return prompt;
}

}  // namespace deepinfer::recipe
