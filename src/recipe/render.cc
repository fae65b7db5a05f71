#include "recipe/render.h"

#include <algorithm>
#include <unordered_map>

namespace deepinfer::recipe {
namespace {

// The version has no name for a number, so it prints the nearest text below it.
Effort v4_effort(const Conversation& c) {
  if (*c.effort != Effort::kNumber) return *c.effort;
  if (c.effort_number >= 100) return Effort::kMax;
  return c.effort_number > 50 ? Effort::kHigh : Effort::kLow;
}

std::string effort_text(const Conversation& c, Version version) {
  if (!c.thinking || !c.effort) return {};
  if (version == Version::kV4) return std::string(v4_effort_text(v4_effort(c)));
  const int number = *c.effort == Effort::kNumber ? c.effort_number : effort_number(*c.effort);
  return std::string(kEffortHead) + std::to_string(number) + std::string(kEffortTail);
}

// Renders one conversation; see the steps in spec 3.2 to 3.4.
class Renderer {
 public:
  Renderer(const Conversation& c, Version version, Prompt& prompt)
      : c_(c), version_(version), prompt_(prompt), out_(prompt) {}

  void run() {
    collect();
    sort_tool_results();
    find_last_turn();
    reserve();
    out_.part(PartKind::kTemplate);
    out_.special(SpecialToken::kBos);
    first();
    for (size_t i = first_index_; i < messages_.size(); ++i) message(i);
    closing();
  }

 private:
  bool formatted() const {
    return c_.response_format == ResponseFormat::kJsonObject || c_.response_format == ResponseFormat::kJsonSchema;
  }

  // Fills messages_ (without the leading System, which is leading_ or, in V4, systems_).
  void collect() {
    messages_.reserve(c_.messages.size());
    for (const Message& m : c_.messages) {
      const bool leading = m.role == Role::kSystem && (version_ == Version::kV4 || messages_.empty());
      if (leading) systems_.push_back(&m);
      if (!leading || version_ == Version::kV41) messages_.push_back(&m);
    }
    has_system_ = !systems_.empty();
    if (version_ == Version::kV41 && has_system_) first_index_ = 1;
    if (!has_system_ && (c_.has_tools() || formatted())) has_system_ = true;
  }

  // Tool messages of a run of users and tools go in the order of the calls they answer; users keep their places.
  void sort_tool_results() {
    const Message* last_calls = nullptr;
    for (size_t begin = 0; begin < messages_.size(); ++begin) {
      if (messages_[begin]->role == Role::kAssistant && !messages_[begin]->tool_calls.empty())
        last_calls = messages_[begin];
      if (!in_run(begin)) continue;
      size_t end = begin;
      while (end < messages_.size() && in_run(end)) ++end;
      if (last_calls != nullptr) sort_run(begin, end, *last_calls);
      begin = end - 1;
    }
  }

  bool in_run(size_t i) const { return messages_[i]->role == Role::kUser || messages_[i]->role == Role::kTool; }

  void sort_run(size_t begin, size_t end, const Message& calls) {
    std::vector<const Message*> tools;
    for (size_t i = begin; i < end; ++i) {
      if (messages_[i]->role == Role::kTool) tools.push_back(messages_[i]);
    }
    if (tools.size() < 2) return;
    std::unordered_map<std::string_view, size_t> position;
    for (size_t i = 0; i < calls.tool_calls.size(); ++i) position[calls.tool_calls[i].id] = i;
    const auto key = [&](const Message* m) {
      const auto at = position.find(m->tool_call_id);
      return at == position.end() ? size_t{0} : at->second;
    };
    std::stable_sort(tools.begin(), tools.end(), [&](const Message* a, const Message* b) { return key(a) < key(b); });
    size_t next = 0;
    for (size_t i = begin; i < end; ++i) {
      if (messages_[i]->role == Role::kTool) messages_[i] = tools[next++];
    }
  }

  void find_last_turn() {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const Role role = messages_[i]->role;
      const bool starts = role == Role::kUser || (version_ == Version::kV41 && role == Role::kSystem && i > 0) ||
                          (version_ == Version::kV4 && role == Role::kTool);
      if (starts) last_turn_ = i;
    }
  }

  void reserve() {
    size_t bytes = 4096;
    for (const Message& m : c_.messages) bytes += m.content.text.size() + (m.reasoning ? m.reasoning->size() : 0) + 64;
    prompt_.text.reserve(bytes);
    prompt_.specials.reserve(8 * c_.messages.size() + 64);
    prompt_.parts.reserve(4 * c_.messages.size() + 8);
  }

  // Effort text and the leading System with the tool prompt and the response format.
  void first() {
    const std::string effort = effort_text(c_, version_);
    const bool empty = messages_.empty() && !has_system_;
    if (version_ == Version::kV41) {
      if (empty) return;
      if (!effort.empty() || has_system_) out_.special(SpecialToken::kSystem);
    }
    out_.part(PartKind::kEffort);
    out_.text(effort);
    if (!has_system_) return;
    bool joined = false;
    for (const Message* system : systems_) {
      if (version_ == Version::kV4 && system->content.text.empty() && system->content.images.empty()) continue;
      out_.part(PartKind::kSystem, system->source);
      if (joined) out_.text("\n\n");
      joined = true;
      content(*system);
    }
    if (c_.has_tools()) {
      out_.part(PartKind::kTools);
      out_.text("\n\n");
      append_tool_prompt(out_, version_, schema_lines(c_.tools, false));
    }
    if (formatted()) response_format();
    if (!systems_.empty()) announced_tools(*systems_.front());
  }

  void response_format() {
    out_.part(PartKind::kFormat);
    out_.text("\n\n");
    if (c_.response_format == ResponseFormat::kJsonSchema) {
      out_.text(kResponseFormatHead);
      append_python_json(out_.raw(), c_.response_schema);
    } else if (version_ == Version::kV4) {
      out_.text(kV4JsonObjectFormat);
    } else {
      out_.text(kResponseFormatHead);
      out_.text("{\"type\": \"json_object\"}");
    }
  }

  static std::string schema_lines(const std::vector<Tool>& tools, bool deferred_too) {
    std::string lines;
    for (const Tool& tool : tools) {
      if (tool.defer_loading && !deferred_too) continue;
      if (!lines.empty()) lines += '\n';
      append_tool_schema(lines, tool);
    }
    return lines;
  }

  void announced_tools(const Message& system) {
    if (version_ != Version::kV41 || system.tools.empty()) return;
    out_.part(PartKind::kTools, system.source);
    out_.text(kUpdatedToolsHead);
    out_.text(schema_lines(system.tools, true));
  }

  void content(const Message& m) { out_.content(m.content, static_cast<size_t>(&m - c_.messages.data())); }

  void message(size_t i) {
    const Message& m = *messages_[i];
    out_.part(PartKind::kTemplate, m.source);
    switch (m.role) {
      case Role::kSystem:
        out_.special(SpecialToken::kSystem);
        out_.part(PartKind::kSystem, m.source);
        content(m);
        announced_tools(m);
        return;
      case Role::kUser:
        separator(i);
        out_.part(PartKind::kUser, m.source);
        content(m);
        return;
      case Role::kTool:
        separator(i);
        out_.text(kToolResultOpen);
        out_.part(PartKind::kToolResult, m.source);
        content(m);
        out_.part(PartKind::kTemplate, m.source);
        out_.text(kToolResultClose);
        return;
      case Role::kLatestReminder:
        out_.special(SpecialToken::kLatestReminder);
        out_.part(PartKind::kReminder, m.source);
        content(m);
        return;
      case Role::kAssistant:
        assistant(m, i);
        return;
    }
  }

  void separator(size_t i) {
    if (i > 0 && in_run(i - 1)) {
      out_.text("\n\n");
    } else {
      out_.special(SpecialToken::kUser);
    }
  }

  void assistant(const Message& m, size_t i) {
    out_.special(SpecialToken::kAssistant);
    const bool prefill = is_prefill(i);
    const bool shown = c_.has_tools() || c_.history_reasoning == HistoryReasoning::kKeep || prefill ||
                       !last_turn_ || i > *last_turn_;
    if (c_.thinking && shown) {
      out_.special(SpecialToken::kThink);
      out_.part(PartKind::kReasoning, m.source);
      if (m.reasoning) out_.text(*m.reasoning);
      out_.part(PartKind::kTemplate, m.source);
      // A prefill without content leaves the reasoning open.
      const bool open = prefill && m.content.text.empty();
      if (!open) out_.special(SpecialToken::kEndThink);
    } else {
      out_.special(SpecialToken::kEndThink);
    }
    out_.part(PartKind::kAnswer, m.source);
    content(m);
    if (!m.tool_calls.empty()) {
      out_.part(PartKind::kCall, m.source);
      out_.text("\n\n");
      append_call_block(out_, version_, m.tool_calls);
    }
    if (prefill) return;
    out_.part(PartKind::kTemplate, m.source);
    out_.special(SpecialToken::kEos);
  }

  bool is_prefill(size_t i) const {
    return i + 1 == messages_.size() && messages_[i]->role == Role::kAssistant && messages_[i]->prefix;
  }

  void closing() {
    if (!messages_.empty() && is_prefill(messages_.size() - 1)) return;
    out_.part(PartKind::kTemplate);
    out_.special(SpecialToken::kAssistant);
    out_.special(c_.thinking ? SpecialToken::kThink : SpecialToken::kEndThink);
    if (c_.tool_choice == ToolChoice::kRequired && !c_.tools.empty()) {
      out_.text("\n\n<");
      out_.special(SpecialToken::kDsml);
      out_.text(dsml_tags(version_).calls);
      out_.text(">\n");
    }
  }

  const Conversation& c_;
  const Version version_;
  Prompt& prompt_;
  PromptBuilder out_;
  std::vector<const Message*> systems_;   // the leading System (V4.1) or all of them (V4)
  std::vector<const Message*> messages_;  // in printing order; V4.1: the leading System is [0] and printed by first()
  bool has_system_ = false;               // a leading System is printed, perhaps an inserted empty one
  size_t first_index_ = 0;
  std::optional<size_t> last_turn_;
};

}  // namespace

void append_tool_schema(std::string& out, const Tool& tool) {
  out += "{\"name\": ";
  append_json_string(out, tool.name);
  out += ", \"description\": ";
  append_json_string(out, tool.description ? std::string_view(*tool.description) : std::string_view());
  out += ", \"parameters\": ";
  append_python_json(out, tool.parameters);
  out += '}';
}

Prompt render(const Conversation& conversation, Version version) {
  Prompt prompt;
  Renderer(conversation, version, prompt).run();
  return prompt;
}

Prompt render_fim(std::string_view prefix, const std::optional<std::string>& suffix) {
  Prompt prompt;
  PromptBuilder out(prompt);
  out.part(PartKind::kTemplate);
  out.special(SpecialToken::kBos);
  if (suffix) out.special(SpecialToken::kFimBegin);
  out.part(PartKind::kUser);
  out.text(prefix);
  if (suffix) {
    out.special(SpecialToken::kFimHole);
    out.text(*suffix);
    out.special(SpecialToken::kFimEnd);
  }
  return prompt;
}

}  // namespace deepinfer::recipe
