// The fixed texts of DeepSeek prompts. Where they come from: fixtures/encoding/constants.json, which is normative; a
// test compares every one of them with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "recipe/conversation.h"

namespace deepinfer::recipe {

// Tokens that the template itself writes. Their ids are looked up by name in the model's tokenizer.
enum class SpecialToken : uint8_t {
  kBos,
  kEos,
  kSystem,
  kUser,
  kAssistant,
  kLatestReminder,
  kThink,
  kEndThink,
  kDsml,
  kImage,
  kFimBegin,
  kFimHole,
  kFimEnd,
  kAction,
  kQuery,
  kAuthority,
  kDomain,
  kTitle,
  kReadUrl
};
inline constexpr size_t kSpecialTokens = 19;

// Spelling in a prompt. The image placeholder has other names in tokenizer files (recipe/tokenize.h).
std::string_view special_text(SpecialToken token);

// V4: tool_calls, invoke, parameter. V4.1: the same with a leading space, and `calls`.
struct DsmlTags {
  std::string_view calls, invoke, parameter;
};
const DsmlTags& dsml_tags(Version version);

// The tool prompt with {schemas} in place of the schema lines. Token spellings in it are trusted.
std::string tool_prompt_template(Version version);

inline constexpr std::string_view kSchemas = "{schemas}";
inline constexpr std::string_view kUpdatedToolsHead = "\n\n### Updated Tool Schemas\n\n";
inline constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
inline constexpr std::string_view kV4JsonObjectFormat =
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.";
inline constexpr std::string_view kEffortHead = "Reasoning Effort: ";
inline constexpr std::string_view kEffortTail =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
inline constexpr std::string_view kToolResultOpen = "<tool_result>";
inline constexpr std::string_view kToolResultClose = "</tool_result>";
inline constexpr std::string_view kSystemReminderOpen = "<system-reminder>\n";
inline constexpr std::string_view kSystemReminderClose = "\n</system-reminder>";
inline constexpr std::string_view kUnsupportedDocument = "[Unsupported Document]";
inline constexpr std::string_view kUnsupportedImage = "[Unsupported Image]";
extern const std::string_view kApplyPatchDescription;
extern const std::string_view kApplyPatchParameters;

// V4.1: the number printed for an effort name.
int effort_number(Effort effort);
// V4 (0731 weights and later): the text printed for an effort name; may be empty.
std::string_view v4_effort_text(Effort effort);

inline constexpr int64_t kMaxTokensDefaultOff = 8192;
inline constexpr int64_t kMaxTokensDefaultThinking = 65536;
inline constexpr int64_t kMaxTokensDefaultMaxEffort = 131072;

}  // namespace deepinfer::recipe
