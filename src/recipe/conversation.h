// The one form that requests of all three APIs are converted to and that the renderer reads (spec/protocol.md 2).
//
//   Conversation c;
//   c.messages.push_back({.role = Role::kUser, .content = {.text = "Hello"}});
//   Prompt prompt = render(c, Version::kV41);                // recipe/render.h
//
// Plain data, no invariants beyond those written here. All text is valid UTF-8 and untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recipe/json.h"

namespace deepinfer::recipe {

enum class Version : uint8_t { kV4, kV41 };
enum class Protocol : uint8_t { kChat, kResponses, kMessages, kCompletions };

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder };
enum class ImageDetail : uint8_t { kLow, kHigh, kOriginal, kAuto };

// Where an image comes from. `source` is an http(s) URL or a data URL; `path` names the part of the request it stood
// in.
struct Image {
  size_t offset = 0;  // byte offset in Content::text at which its placeholder stands
  std::string source;
  bool is_data_url = false;
  ImageDetail detail = ImageDetail::kHigh;
  std::string path;
};

// Text with images at byte offsets (ascending; several may share one offset). A placeholder typed by a client is text.
struct Content {
  std::string text;
  std::vector<Image> images;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // as sent; normally JSON text of an object
};

// How the one string argument `input` of a custom tool is constrained (spec 9.8).
enum class CustomSyntax : uint8_t { kText, kLark, kRegex };

struct Tool {
  std::string name;
  std::optional<std::string> description;
  Json parameters = Json::object();
  std::optional<bool> strict;
  bool defer_loading = false;  // known to the parser and the constraint, printed only once announced
  std::string name_space;      // Responses: the namespace and the name in it, which `name` joins; empty = none
  std::string local_name;
  bool custom = false;         // the API shows calls of it as custom tool calls
  CustomSyntax syntax = CustomSyntax::kText;
  std::string definition;      // grammar or pattern of a custom tool
};

struct Message {
  Role role = Role::kUser;
  Content content;
  std::optional<std::string> reasoning;  // Assistant
  std::vector<ToolCall> tool_calls;      // Assistant
  bool prefix = false;                   // Assistant, last message only: continued instead of closed
  std::string tool_call_id;              // Tool
  std::vector<Tool> tools;               // System, V4.1: announced from here on
  int32_t source = -1;                   // index of the request's message or item, for `encode --explain`
};

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

enum class ResponseFormat : uint8_t { kText, kJsonObject, kJsonSchema, kRegex };

// Effort as a number in 1..100 or one of the API's names; a name is kept because V4 prints texts, not numbers.
enum class Effort : uint8_t { kLow, kHigh, kXHigh, kMax, kNumber };

enum class HistoryReasoning : uint8_t { kDropUnlessTools, kKeep };

struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;
  std::optional<Effort> effort = Effort::kHigh;  // nothing when thinking is off
  int effort_number = 0;                         // with Effort::kNumber
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat response_format = ResponseFormat::kText;
  Json response_schema;        // kJsonSchema: the schema as sent
  std::string response_regex;  // kRegex
  HistoryReasoning history_reasoning = HistoryReasoning::kDropUnlessTools;

  // Tools are in effect: the tool prompt is printed and calls are parsed (spec 3.2).
  bool has_tools() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
};

enum class ConstraintKind : uint8_t { kNone, kJson, kRegex, kToolCall, kToolCallRequired };

// What the sampler must obey. For tool calls the tools themselves are Conversation::tools.
struct OutputConstraint {
  ConstraintKind kind = ConstraintKind::kNone;
  // kJson: the (strict-completed) schema as compact JSON, "" for any JSON; kRegex: the pattern; tool calls: the tool
  // list in Chat form as compact JSON.
  std::string schema;
};

// What Chat and Completions take beyond the protocols, for the engine; the defaults change nothing. The engine checks
// the ranges that are not checked here.
struct SamplerOptions {
  int64_t top_k = -1;
  double min_p = 0, repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token, bias; each token once
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
};

struct InferenceOptions {
  std::optional<int64_t> max_tokens;  // as asked; resolve_max_tokens() applies defaults
  double temperature = 1.0;           // after the sampling policy (spec 14.3)
  double top_p = 1.0;
  std::optional<int64_t> seed;
  bool logprobs = false;
  std::optional<int> top_logprobs;
  OutputConstraint constraint;
  int n = 1;
  bool parallel_tool_calls = true;
  SamplerOptions sampler;
};

// Where the parser starts (spec 8.3). The *Start stages drop leading newlines.
enum class InitialStage : uint8_t { kReasoningStart, kReasoning, kContentStart, kContent, kToolCalls };

struct ParsingOptions {
  bool parse_tool_calls = false;
  bool json_mode = false;
  InitialStage initial = InitialStage::kReasoningStart;
  std::vector<std::string> stop_sequences;
};

}  // namespace deepinfer::recipe
