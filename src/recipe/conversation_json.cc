#include "recipe/conversation_json.h"

#include <iterator>

#include "recipe/constants.h"

namespace deepinfer::recipe {
namespace {

constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "latest_reminder"};
constexpr std::string_view kDetails[] = {"low", "high", "original", "auto"};
constexpr std::string_view kChoices[] = {"auto", "none", "required"};
constexpr std::string_view kFormats[] = {"text", "json_object", "json_schema", "regex"};
constexpr std::string_view kEfforts[] = {"low", "high", "xhigh", "max"};
constexpr std::string_view kStages[] = {"reasoning_start", "reasoning", "content_start", "content", "tool_calls"};
constexpr std::string_view kConstraints[] = {"none", "json", "regex", "tool_call", "tool_call_required"};

template <class Enum, size_t N>
bool read_enum(const Json* value, const std::string_view (&names)[N], Enum& out) {
  if (value == nullptr || value->is_null()) return true;
  if (!value->is_string()) return false;
  for (size_t i = 0; i < N; ++i) {
    if (value->as_string() == names[i]) {
      out = static_cast<Enum>(i);
      return true;
    }
  }
  return false;
}

bool is_set(const Json* value) { return value != nullptr && !value->is_null(); }

Status wrong(std::string_view where) { return make_error(Code::kInvalidArgument, "{} has a wrong value", where); }

Status read_content(const Json* value, Content& out) {
  if (!is_set(value)) return {};
  if (value->is_string()) {
    out.text = value->as_string();
    return {};
  }
  if (!value->is_array()) return wrong("content");
  bool first = true;
  for (const Json& part : value->as_array()) {
    if (!first) out.text += "\n\n";
    first = false;
    const Json* type = part.find("type");
    if (type == nullptr || !type->is_string()) return wrong("content[].type");
    if (type->as_string() == "image") {
      out.images.push_back({.offset = out.text.size()});
    } else if (const Json* text = part.find("text"); text != nullptr && text->is_string()) {
      out.text += text->as_string();
    } else {
      return wrong("content[].text");
    }
  }
  return {};
}

Result<Tool> read_tool(const Json& value) {
  Tool tool;
  const Json* name = value.find("name");
  if (name == nullptr || !name->is_string()) return wrong("tools[].name");
  tool.name = name->as_string();
  if (const Json* d = value.find("description"); is_set(d) && d->is_string()) tool.description = d->as_string();
  if (const Json* p = value.find("parameters"); p != nullptr) tool.parameters = *p;
  if (const Json* s = value.find("strict"); is_set(s) && s->is_bool()) tool.strict = s->as_bool();
  if (const Json* d = value.find("defer_loading"); is_set(d) && d->is_bool()) tool.defer_loading = d->as_bool();
  return tool;
}

Status read_tools(const Json* value, std::vector<Tool>& out) {
  if (!is_set(value)) return {};
  if (!value->is_array()) return wrong("tools");
  for (const Json& item : value->as_array()) {
    DI_ASSIGN_OR_RETURN(Tool tool, read_tool(item));
    out.push_back(std::move(tool));
  }
  return {};
}

Result<Message> read_message(const Json& value) {
  Message m;
  if (!is_set(value.find("role")) || !read_enum(value.find("role"), kRoles, m.role)) return wrong("role");
  DI_RETURN_IF_ERROR(read_content(value.find("content"), m.content));
  if (const Json* r = value.find("reasoning_content"); is_set(r) && r->is_string()) m.reasoning = r->as_string();
  if (const Json* p = value.find("prefix"); is_set(p) && p->is_bool()) m.prefix = p->as_bool();
  if (const Json* id = value.find("tool_call_id"); is_set(id) && id->is_string()) m.tool_call_id = id->as_string();
  DI_RETURN_IF_ERROR(read_tools(value.find("tools"), m.tools));
  if (const Json* calls = value.find("tool_calls"); is_set(calls)) {
    if (!calls->is_array()) return wrong("tool_calls");
    for (const Json& c : calls->as_array()) {
      const Json *id = c.find("id"), *name = c.find("name"), *arguments = c.find("arguments");
      if (name == nullptr || !name->is_string() || arguments == nullptr || !arguments->is_string())
        return wrong("tool_calls[]");
      m.tool_calls.push_back(
          {is_set(id) && id->is_string() ? id->as_string() : "", name->as_string(), arguments->as_string()});
    }
  }
  return m;
}

Json tool_to_json(const Tool& tool) {
  Json out = Json::object();
  out.set("name", tool.name);
  out.set("description", tool.description ? Json(*tool.description) : Json());
  out.set("parameters", tool.parameters);
  out.set("strict", tool.strict ? Json(*tool.strict) : Json());
  if (tool.defer_loading) out.set("defer_loading", true);
  return out;
}

Json tools_to_json(const std::vector<Tool>& tools) {
  Json out = Json::array();
  for (const Tool& tool : tools) out.as_array().push_back(tool_to_json(tool));
  return out;
}

std::string content_text(const Content& content) {
  std::string out;
  size_t start = 0;
  for (const Image& image : content.images) {
    out.append(content.text, start, image.offset - start);
    out += special_text(SpecialToken::kImage);
    start = image.offset;
  }
  out.append(content.text, start, std::string::npos);
  return out;
}

Json images_to_json(const Content& content) {
  Json out = Json::array();
  for (const Image& image : content.images) {
    Json item = Json::object();
    item.set("kind", image.is_data_url ? "data_url" : "url");
    item.set("detail", image_detail_name(image.detail));
    item.set(image.is_data_url ? "data_url" : "url", image.source);
    out.as_array().push_back(std::move(item));
  }
  return out;
}

Json message_to_json(const Message& m) {
  Json out = Json::object();
  out.set("role", kRoles[static_cast<size_t>(m.role)]);
  out.set("content", content_text(m.content));
  if (!m.content.images.empty()) out.set("images", images_to_json(m.content));
  if (m.role == Role::kAssistant) {
    out.set("reasoning_content", m.reasoning ? Json(*m.reasoning) : Json());
    if (!m.tool_calls.empty()) {
      Json calls = Json::array();
      for (const ToolCall& c : m.tool_calls) {
        Json call = Json::object();
        call.set("id", c.id);
        call.set("name", c.name);
        call.set("arguments", c.arguments);
        calls.as_array().push_back(std::move(call));
      }
      out.set("tool_calls", std::move(calls));
    }
    if (m.prefix) out.set("prefix", true);
  }
  if (m.role == Role::kTool) out.set("tool_call_id", m.tool_call_id);
  if (!m.tools.empty()) out.set("tools", tools_to_json(m.tools));
  return out;
}

}  // namespace

std::string_view initial_stage_name(InitialStage stage) { return kStages[static_cast<size_t>(stage)]; }
std::string_view image_detail_name(ImageDetail detail) { return kDetails[static_cast<size_t>(detail)]; }
std::string_view effort_name(Effort effort) {
  return effort == Effort::kNumber ? "number" : kEfforts[static_cast<size_t>(effort)];
}

Result<Conversation> conversation_from_json(const Json& value) {
  Conversation c;
  const Json* messages = value.find("messages");
  if (messages == nullptr || !messages->is_array()) return wrong("messages");
  for (size_t i = 0; i < messages->as_array().size(); ++i) {
    Result<Message> m = read_message(messages->as_array()[i]);
    if (!m.ok()) return m.status().with_context("messages[" + std::to_string(i) + "]");
    c.messages.push_back(std::move(m).value());
    c.messages.back().source = static_cast<int32_t>(i);
  }
  if (const Json* t = value.find("thinking_mode"); is_set(t)) {
    if (!t->is_bool()) return wrong("thinking_mode");
    c.thinking = t->as_bool();
  }
  if (const Json* effort = value.find("reasoning_effort"); effort != nullptr) {
    Effort e = Effort::kHigh;
    if (effort->to_int64()) {
      e = Effort::kNumber;
      c.effort_number = static_cast<int>(*effort->to_int64());
    } else if (!read_enum(effort, kEfforts, e)) {
      return wrong("reasoning_effort");
    }
    c.effort = effort->is_null() ? std::nullopt : std::optional(e);
  }
  DI_RETURN_IF_ERROR(read_tools(value.find("tools"), c.tools));
  if (!read_enum(value.find("tool_choice"), kChoices, c.tool_choice)) return wrong("tool_choice");
  if (!read_enum(value.find("response_format"), kFormats, c.response_format)) return wrong("response_format");
  if (const Json* schema = value.find("response_schema")) c.response_schema = *schema;
  if (const Json* regex = value.find("response_regex"); is_set(regex) && regex->is_string())
    c.response_regex = regex->as_string();
  if (const Json* h = value.find("history_reasoning"); is_set(h) && h->is_string() && h->as_string() == "keep") {
    c.history_reasoning = HistoryReasoning::kKeep;
  }
  return c;
}

Json conversation_to_json(const Conversation& c) {
  Json out = Json::object();
  Json messages = Json::array();
  for (const Message& m : c.messages) messages.as_array().push_back(message_to_json(m));
  out.set("messages", std::move(messages));
  out.set("thinking_mode", c.thinking);
  out.set("tools", tools_to_json(c.tools));
  out.set("tool_choice", kChoices[static_cast<size_t>(c.tool_choice)]);
  if (!c.effort) {
    out.set("reasoning_effort", nullptr);
  } else if (*c.effort == Effort::kNumber) {
    out.set("reasoning_effort", c.effort_number);
  } else {
    out.set("reasoning_effort", effort_name(*c.effort));
  }
  out.set("response_format", kFormats[static_cast<size_t>(c.response_format)]);
  if (c.response_format == ResponseFormat::kJsonSchema) out.set("response_schema", c.response_schema);
  if (c.response_format == ResponseFormat::kRegex) out.set("response_regex", c.response_regex);
  return out;
}

Json inference_options_to_json(const InferenceOptions& o) {
  Json out = Json::object();
  out.set("max_tokens", o.max_tokens ? Json(*o.max_tokens) : Json());
  out.set("temperature", o.temperature);
  out.set("top_p", o.top_p);
  out.set("seed", o.seed ? Json(*o.seed) : Json());
  out.set("logprobs", o.logprobs);
  out.set("top_logprobs", o.top_logprobs ? Json(*o.top_logprobs) : Json());
  Json constraint;
  if (o.constraint.kind != ConstraintKind::kNone) {
    constraint = Json::object();
    constraint.set("kind", kConstraints[static_cast<size_t>(o.constraint.kind)]);
    constraint.set("schema", o.constraint.schema);
  }
  out.set("output_constraint", std::move(constraint));
  return out;
}

Json parsing_options_to_json(const ParsingOptions& o) {
  Json out = Json::object();
  out.set("parse_tool_calls", o.parse_tool_calls);
  out.set("json_mode", o.json_mode);
  out.set("initial", initial_stage_name(o.initial));
  Json stops = Json::array();
  for (const std::string& s : o.stop_sequences) stops.as_array().push_back(s);
  out.set("stop_sequences", std::move(stops));
  return out;
}

Result<ParsingOptions> parsing_options_from_json(const Json& value) {
  ParsingOptions o;
  if (const Json* v = value.find("parse_tool_calls"); is_set(v)) {
    if (!v->is_bool()) return wrong("parse_tool_calls");
    o.parse_tool_calls = v->as_bool();
  }
  if (const Json* v = value.find("json_mode"); is_set(v)) {
    if (!v->is_bool()) return wrong("json_mode");
    o.json_mode = v->as_bool();
  }
  if (!read_enum(value.find("initial"), kStages, o.initial)) return wrong("initial");
  if (const Json* v = value.find("stop_sequences"); is_set(v)) {
    if (!v->is_array()) return wrong("stop_sequences");
    for (const Json& s : v->as_array()) {
      if (!s.is_string()) return wrong("stop_sequences[]");
      o.stop_sequences.push_back(s.as_string());
    }
  }
  return o;
}

}  // namespace deepinfer::recipe
