#include "recipe/request_reader.h"

#include <algorithm>

#include "recipe/constants.h"
#include "recipe/converters.h"
#include "recipe/schema_check.h"

namespace deepinfer::recipe {
namespace {

// Messages repeat ids and names of the request, which may be long.
constexpr size_t kMessageBytesMax = 2000;

}  // namespace

std::string Path::to_string() const {
  if (parent_ == nullptr) return {};
  std::string out = parent_->to_string();
  if (index_ >= 0) {
    out += '[' + std::to_string(index_) + ']';
  } else {
    if (!out.empty()) out += '.';
    out += key_;
  }
  return out;
}

std::string_view clip(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

std::optional<ApiError> RequestReader::run(Json body) {
  const bool fine = body.is_object() ? convert(body) && finish() : bad(root_, "the body must be an object");
  if (fine) return std::nullopt;
  return error_;
}

bool RequestReader::fail(const Path& at, std::string message) {
  error_.message = clip(message, kMessageBytesMax);
  error_.param = at.to_string();
  return false;
}

bool RequestReader::bad(const Path& at, std::string_view what) {
  const std::string path = at.to_string();
  return fail(at, path.empty() ? fmt::format("invalid request body: {}", what)
                               : fmt::format("invalid request body: `{}`: {}", path, what));
}

bool RequestReader::over_limit(const Path& at, std::string_view limit, size_t limit_value) {
  return fail(at, fmt::format("`{}` is over the limit {} = {} of this server.", at.to_string(), limit, limit_value));
}

bool RequestReader::too_many(const Path& at, size_t count, size_t limit, std::string_view name) {
  return count <= limit || over_limit(at, name, limit);
}

bool RequestReader::missing(const Path& at, std::string_view key) { return bad(at / key, "this field is required"); }

bool RequestReader::expect_object(const Json& value, const Path& at) {
  return value.is_object() || bad(at, fmt::format("expected an object, got {}", value.kind_name()));
}

bool RequestReader::expect_array(const Json& value, const Path& at) {
  return value.is_array() || bad(at, fmt::format("expected an array, got {}", value.kind_name()));
}

bool RequestReader::unknown_value(const Path& at, std::string_view value, std::string_view expected) {
  return bad(at, fmt::format("unknown value '{}', expected {}", clip(value, 100), expected));
}

bool RequestReader::read(const Json& object, const Path& at, std::string_view key, std::optional<std::string>& out) {
  const Json* value = object.find(key);
  if (!is_set(value)) return true;
  if (!value->is_string()) return bad(at / key, fmt::format("expected a string, got {}", value->kind_name()));
  out = value->as_string();
  return true;
}

bool RequestReader::read(const Json& object, const Path& at, std::string_view key, std::string& out, bool required) {
  std::optional<std::string> value;
  if (!read(object, at, key, value)) return false;
  if (value) out = std::move(*value);
  return value || !required || missing(at, key);
}

bool RequestReader::read(const Json& object, const Path& at, std::string_view key, std::optional<bool>& out) {
  const Json* value = object.find(key);
  if (!is_set(value)) return true;
  if (!value->is_bool()) return bad(at / key, fmt::format("expected a boolean, got {}", value->kind_name()));
  out = value->as_bool();
  return true;
}

bool RequestReader::read(const Json& object, const Path& at, std::string_view key, bool& out) {
  std::optional<bool> value;
  if (!read(object, at, key, value)) return false;
  out = value.value_or(out);
  return true;
}

bool RequestReader::read(const Json& object, const Path& at, std::string_view key, std::optional<double>& out) {
  const Json* value = object.find(key);
  if (!is_set(value)) return true;
  if (!value->is_number()) return bad(at / key, fmt::format("expected a number, got {}", value->kind_name()));
  out = value->as_double();
  return true;
}

bool RequestReader::read(const Json& object, const Path& at, std::string_view key, std::optional<int64_t>& out) {
  const Json* value = object.find(key);
  if (!is_set(value)) return true;
  if (!value->is_integer()) return bad(at / key, fmt::format("expected an integer, got {}", value->kind_name()));
  // What does not fit is far outside every range that follows; its sign is what matters.
  out = value->to_int64().value_or(value->as_double() < 0 ? INT64_MIN : INT64_MAX);
  return true;
}

bool RequestReader::read_type(const Json& value, const Path& at, std::string& out) {
  return expect_object(value, at) && read(value, at, "type", out, true);
}

bool RequestReader::read_model(const Json& body) {
  if (!read(body, root_, "model", out_.model, true)) return false;
  if (options_.models.empty()) return fail(root_ / "model", "This server serves no model.");
  for (const ServedModel& m : options_.models) {
    if (m.name == out_.model) {
      out_.version = m.version;
      return true;
    }
  }
  if (const ServedModel* alias = model_alias(out_.model)) {
    out_.version = alias->version;
    return true;
  }
  std::string names;
  for (const ServedModel& m : options_.models) names += (names.empty() ? "" : ", ") + m.name;
  return fail(root_ / "model",
              fmt::format("The supported API model names are {}, but you passed {}.", names, clip(out_.model, 200)));
}

// A model that answers for a name nobody serves, or null.
const ServedModel* RequestReader::model_alias(std::string_view name) const {
  if (options_.accept_any_model) return &options_.models.front();
  if (out_.protocol != Protocol::kMessages || !name.starts_with("claude")) return nullptr;
  if (name.starts_with("claude-opus")) {
    for (const ServedModel& m : options_.models) {
      if (m.name == options_.claude_opus_model) return &m;
    }
  }
  return &options_.models.front();
}

bool RequestReader::read_sampling(const Json& body) {
  std::optional<double> temperature, top_p;
  if (!read(body, root_, "temperature", temperature) || !read(body, root_, "top_p", top_p)) return false;
  if (temperature && !(*temperature >= 0 && *temperature <= 2)) {
    return fail(root_ / "temperature", "Invalid temperature value, the valid range of temperature is [0, 2]");
  }
  if (top_p && !(*top_p > 0 && *top_p <= 1)) {
    return fail(root_ / "top_p", "Invalid top_p value, the valid range of top_p is (0, 1.0]");
  }
  out_.inference.temperature = temperature.value_or(1.0);
  out_.inference.top_p = top_p.value_or(1.0);
  return read(body, root_, "stream", out_.stream);
}

bool RequestReader::read_max_tokens(const Json& body, std::string_view key, bool lower_to_bound) {
  std::optional<int64_t> value;
  if (!read(body, root_, key, value)) return false;
  if (!value) return true;
  const int64_t bound = options_.limits.max_tokens_max;
  if (lower_to_bound) value = std::min(*value, bound);
  if (*value < 1 || *value > bound) {
    return fail(root_ / key, fmt::format("Invalid max_tokens value, the valid range of max_tokens is [1, {}]", bound));
  }
  out_.inference.max_tokens = value;
  return true;
}

bool RequestReader::read_top_logprobs(const Json& body) {
  std::optional<int64_t> value;
  if (!read(body, root_, "top_logprobs", value)) return false;
  if (!value) return true;
  if (*value < 0 || *value > 20) {
    return fail(root_ / "top_logprobs", "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
  }
  out_.inference.top_logprobs = static_cast<int>(*value);
  return true;
}

bool RequestReader::read_seed(const Json& body) {
  std::optional<int64_t> seed;
  if (!read(body, root_, "seed", seed)) return false;
  const Json* value = body.find("seed");
  const bool too_large = is_set(value) && !value->to_int64();
  if (seed && (*seed < 0 || too_large))
    return fail(root_ / "seed", "Invalid seed value, the valid range of seed is [0, 2^63)");
  out_.inference.seed = seed;
  return true;
}

bool RequestReader::read_n(const Json& body) {
  std::optional<int64_t> n;
  if (!read(body, root_, "n", n)) return false;
  if (n && (*n < 1 || *n > options_.limits.n_max))
    return fail(root_ / "n", fmt::format("Invalid n value, the valid range of n is [1, {}]", options_.limits.n_max));
  out_.inference.n = static_cast<int>(n.value_or(1));
  return true;
}

bool RequestReader::read_penalty(const Json& body, std::string_view key, double& out) {
  std::optional<double> value;
  if (!read(body, root_, key, value)) return false;
  out = value.value_or(0);
  if (out >= -2 && out <= 2) return true;
  return fail(root_ / key, fmt::format("Invalid {} value, the valid range of {} is [-2, 2]", key, key));
}

bool RequestReader::read_stream_options(const Json& body) {
  const Json* value = body.find("stream_options");
  if (!is_set(value)) return true;
  const Path at = root_ / "stream_options";
  if (!expect_object(*value, at)) return false;
  if (!out_.stream) return fail(at, "stream_options should be set along with stream = true");
  return read(*value, at, "include_usage", out_.include_usage);
}

bool RequestReader::read_stops(const Json& body, std::string_view key) {
  const Json* value = body.find(key);
  if (!is_set(value)) return true;
  const Path at = root_ / key;
  // The wording says 'stop' in all APIs.
  const auto add = [&](const Json& stop, const Path& path, std::string_view index) {
    if (!stop.is_string()) return bad(path, fmt::format("expected a string, got {}", stop.kind_name()));
    if (stop.as_string().empty()) {
      return fail(
          path, fmt::format(
                    "Invalid 'stop{}': empty string. Expected a string with minimum length 1, but got an empty string "
                    "instead.",
                    index));
    }
    if (stop.as_string().size() > options_.limits.stop_sequence_bytes_max) {
      return over_limit(path, "stop_sequence_bytes_max", options_.limits.stop_sequence_bytes_max);
    }
    out_.parsing.stop_sequences.push_back(stop.as_string());
    return true;
  };
  if (value->is_string() && key == "stop") return add(*value, at, {});
  if (!value->is_array())
    return bad(at, fmt::format("expected a string or a list of strings, got {}", value->kind_name()));
  const JsonArray& list = value->as_array();
  if (list.size() > options_.limits.stop_sequences_max) {
    return fail(at, fmt::format("Stop string array too long: {}", list.size()));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!add(list[i], at[i], fmt::format("[{}]", i))) return false;
  }
  return true;
}

bool RequestReader::read_user(const Json& object, const Path& at, std::string_view key) {
  std::optional<std::string> user;
  if (!read(object, at, key, user)) return false;
  if (!user) return true;
  if (user->size() > options_.limits.user_id_bytes_max) {
    return over_limit(at / key, "user_id_bytes_max", options_.limits.user_id_bytes_max);
  }
  out_.user_id = std::move(*user);
  return true;
}

bool RequestReader::read_effort(const Json& object, const Path& at, std::string_view key) {
  const Json* value = object.find(key);
  if (!is_set(value)) return true;
  if (value->is_integer()) {
    const int64_t number = value->to_int64().value_or(0);
    if (number < 1 || number > 100) return bad(at / key, "an effort number must be in 1..100");
    effort_number_ = number;
    return true;
  }
  if (!value->is_string())
    return bad(at / key, fmt::format("expected a string or an integer, got {}", value->kind_name()));
  static constexpr std::string_view kNames[] = {"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"};
  if (std::find(std::begin(kNames), std::end(kNames), value->as_string()) == std::end(kNames)) {
    return unknown_value(at / key, value->as_string(),
                         "none, minimal, low, medium, high, xhigh, ultra, max or an integer 1..100");
  }
  effort_ = value->as_string();
  return true;
}

bool RequestReader::read_thinking(const Json& body) {
  const Json* value = body.find("thinking");
  if (!is_set(value)) return true;
  const Path at = root_ / "thinking";
  std::string type;
  if (!read_type(*value, at, type)) return false;
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return unknown_value(at / "type", type, "enabled, adaptive or disabled");
  }
  thinking_ = type != "disabled";
  std::optional<int64_t> budget;
  return read(*value, at, "budget_tokens", budget);
}

bool RequestReader::set_thinking() {
  Conversation& c = out_.conversation;
  const bool asked_off = effort_ && *effort_ == "none";
  c.thinking = thinking_.value_or(!asked_off && (effort_ || effort_number_ || options_.default_thinking));
  c.history_reasoning = options_.history_reasoning;
  c.effort.reset();
  if (!c.thinking) return true;
  if (effort_number_) {
    c.effort = Effort::kNumber;
    c.effort_number = static_cast<int>(*effort_number_);
    return true;
  }
  const std::string_view name = effort_ ? std::string_view(*effort_) : "high";
  if (name == "minimal" || name == "low") {
    c.effort = Effort::kLow;
  } else if (name == "xhigh") {
    c.effort = Effort::kXHigh;
  } else if (name == "max" || name == "ultra") {
    c.effort = Effort::kMax;
  } else {
    c.effort = Effort::kHigh;
  }
  return true;
}

bool RequestReader::read_schema_format(const Json& format, const Path& at) {
  std::optional<std::string> name, description;
  std::optional<bool> strict;
  if (!expect_object(format, at) || !read(format, at, "name", name) || !read(format, at, "description", description) ||
      !read(format, at, "strict", strict)) {
    return false;
  }
  const Json* schema = format.find("schema");
  if (!is_set(schema)) return missing(at, "schema");
  const Path schema_at = at / "schema";
  if (to_compact_json(*schema).size() > options_.limits.schema_bytes_max) {
    return over_limit(schema_at, "schema_bytes_max", options_.limits.schema_bytes_max);
  }
  if (const auto fault = check_schema(*schema)) return fail(schema_at, "Invalid json schema: " + *fault);
  out_.conversation.response_format = ResponseFormat::kJsonSchema;
  out_.conversation.response_schema = *schema;
  constraint_schema_ = *schema;
  if (!strict.value_or(false)) return true;
  if (const auto fault = complete_strict(constraint_schema_, SchemaUse::kResponseFormat))
    return fail(schema_at, *fault);
  return true;
}

bool RequestReader::mentions_json() const {
  const auto mentions = [](std::string_view text) {
    for (size_t i = 0; i + 4 <= text.size(); ++i) {
      if ((text[i] | 32) == 'j' && (text[i + 1] | 32) == 's' && (text[i + 2] | 32) == 'o' && (text[i + 3] | 32) == 'n')
        return true;
    }
    return false;
  };
  const auto& messages = out_.conversation.messages;
  return std::any_of(messages.begin(), messages.end(), [&](const Message& m) { return mentions(m.content.text); });
}

namespace {

// The tool list as the constraint carries it (fixtures/encoding/README.md).
std::string constraint_tools(const std::vector<Tool>& tools) {
  std::string out = "[";
  for (const Tool& tool : tools) {
    if (out.size() > 1) out += ',';
    out += "{\"type\":\"function\",\"function\":{\"name\":";
    append_json_string(out, tool.name);
    out += ",\"description\":";
    if (tool.description) {
      append_json_string(out, *tool.description);
    } else {
      out += "null";
    }
    out += ",\"parameters\":";
    append_compact_json(out, tool.parameters);
    out += ",\"strict\":";
    out += !tool.strict ? "null" : *tool.strict ? "true" : "false";
    out += tool.defer_loading ? "},\"defer_loading\":true}" : "}}";
  }
  return out + "]";
}

void apply_service_sampling(const Conversation& c, Version version, InferenceOptions& o) {
  if (c.thinking) {
    o.temperature = 1.0;
    o.top_p = version == Version::kV41 ? std::max(o.top_p, 0.95) : c.has_tools() ? 0.95 : 1.0;
  } else if (version == Version::kV41) {
    o.top_p = 1.0;
  }
  o.sampler.frequency_penalty = o.sampler.presence_penalty = 0;
}

}  // namespace

bool RequestReader::finish_reasoning(std::string_view name, std::string_view list) {
  Conversation& c = out_.conversation;
  bool current = false;
  std::vector<bool> after_last_user(c.messages.size());
  for (size_t i = c.messages.size(); i-- > 0;) {
    current |= c.messages[i].role == Role::kUser;
    after_last_user[i] = !current;
  }
  for (size_t i = 0; i < c.messages.size(); ++i) {
    Message& m = c.messages[i];
    if (m.role != Role::kAssistant) continue;
    if (!c.thinking) {
      m.reasoning.reset();
      continue;
    }
    const bool needed =
        after_last_user[i] && (!m.tool_calls.empty() || tools_declared_) && !has_empty_thought_id(m.tool_calls);
    if (!m.reasoning && needed && options_.reasoning_behavior == ReasoningBehavior::kReject) {
      const Path at = root_ / list;
      return fail(m.source < 0 ? at : at[static_cast<size_t>(m.source)],
                  fmt::format("The `{}` in the thinking mode must be passed back to the API.", name));
    }
    if (!m.reasoning) m.reasoning.emplace();
  }
  return true;
}

bool RequestReader::check_image_literals() {
  const Path at = root_ / (out_.protocol == Protocol::kResponses ? "input" : "messages");
  for (const Message& m : out_.conversation.messages) {
    for (std::string_view literal : {"<｜image｜>", "<｜deepseek_image｜>"}) {
      if (m.content.text.find(literal) == std::string::npos) continue;
      return fail(m.source < 0 ? at : at[static_cast<size_t>(m.source)],
                  fmt::format("The text of a message must not contain the image placeholder {}.", literal));
    }
  }
  return true;
}

bool RequestReader::finish() {
  Conversation& c = out_.conversation;
  if (options_.reject_image_literal && !check_image_literals()) return false;
  const bool required = c.tool_choice == ToolChoice::kRequired && c.has_tools();
  ParsingOptions& p = out_.parsing;
  p.parse_tool_calls = c.has_tools();
  p.json_mode = c.response_format == ResponseFormat::kJsonObject;
  const Message* prefill = !c.messages.empty() && c.messages.back().prefix ? &c.messages.back() : nullptr;
  if (required) {
    p.initial = InitialStage::kToolCalls;
  } else if (prefill == nullptr) {
    p.initial = c.thinking ? InitialStage::kReasoningStart : InitialStage::kContentStart;
  } else if (!c.thinking || !prefill->content.text.empty()) {
    p.initial = InitialStage::kContent;
  } else {
    const bool reasoned = prefill->reasoning && !prefill->reasoning->empty();
    p.initial = reasoned ? InitialStage::kReasoning : InitialStage::kReasoningStart;
  }
  OutputConstraint& constraint = out_.inference.constraint;
  if (c.has_tools()) {
    const bool must_call = required || out_.force_call_after_thinking;
    constraint = {must_call ? ConstraintKind::kToolCallRequired : ConstraintKind::kToolCall, constraint_tools(c.tools)};
  } else if (c.response_format == ResponseFormat::kJsonObject) {
    constraint = {ConstraintKind::kJson, ""};
  } else if (c.response_format == ResponseFormat::kJsonSchema) {
    constraint = {ConstraintKind::kJson, to_compact_json(constraint_schema_)};
  } else if (c.response_format == ResponseFormat::kRegex) {
    constraint = {ConstraintKind::kRegex, c.response_regex};
  }
  if (options_.sampling_policy == SamplingPolicy::kDeepSeek) apply_service_sampling(c, out_.version, out_.inference);
  return true;
}

}  // namespace deepinfer::recipe
