// A rendered prompt: its text and which bytes of it the template wrote as special tokens.
//
// Only `specials` become special ids; every other byte is plain text, whatever it spells (spec/protocol.md 7.2). So
// text from users, tools or schemas can never yield a control token: trust is a byte range, not a spelling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/constants.h"
#include "recipe/conversation.h"

namespace deepinfer::recipe {

// One special token of the template: bytes [begin, begin + length) of the text.
struct TrustedSpan {
  size_t begin = 0;
  uint32_t length = 0;
  SpecialToken token = SpecialToken::kBos;
};

// What a stretch of the prompt comes from, for `deepinfer encode --explain`.
enum class PartKind : uint8_t {
  kTemplate,
  kEffort,
  kSystem,
  kTools,
  kFormat,
  kUser,
  kReminder,
  kReasoning,
  kAnswer,
  kCall,
  kToolResult
};
std::string_view part_kind_name(PartKind kind);

// The part goes on to the next part's begin, or to the end of the text.
struct PromptPart {
  size_t begin = 0;
  PartKind kind = PartKind::kTemplate;
  int32_t source = -1;  // index of the request's message or item, -1 where there is none
};

// The image behind a placeholder: conversation.messages[message].content.images[image].
struct ImageRef {
  size_t message = 0;
  size_t image = 0;
};

struct Prompt {
  std::string text;
  std::vector<TrustedSpan> specials;  // ascending, disjoint; one per image placeholder too
  std::vector<ImageRef> images;       // what stands behind the placeholders, in order; empty for render_reference
  std::vector<PromptPart> parts;      // ascending
};

// Appends to a Prompt. text() is untrusted or fixed wording without tokens; only special() and trusted() write tokens.
class PromptBuilder {
 public:
  explicit PromptBuilder(Prompt& prompt) : prompt_(prompt) {}

  void text(std::string_view text) { prompt_.text += text; }
  void special(SpecialToken token) { special(token, special_text(token)); }
  void special(SpecialToken token, std::string_view spelling) {
    prompt_.specials.push_back({prompt_.text.size(), static_cast<uint32_t>(spelling.size()), token});
    prompt_.text += spelling;
  }
  // Fixed wording in which the spellings of DSML and the think tags are tokens.
  void trusted(std::string_view wording);
  // Text of conversation.messages[message] with its images as placeholders.
  void content(const Content& content, size_t message);
  void part(PartKind kind, int32_t source = -1) { prompt_.parts.push_back({prompt_.text.size(), kind, source}); }
  std::string& raw() { return prompt_.text; }

 private:
  Prompt& prompt_;
};

// The block of calls of spec 4.2, without the two newlines before it. arguments that are not a JSON object become one
// string parameter `arguments`.
void append_call_block(PromptBuilder& out, Version version, const std::vector<ToolCall>& calls);

// The parameters of one call; shared with the reference encoder.
void append_parameters(PromptBuilder& out, Version version, const JsonObject& arguments, bool exact_integers);

// The tool prompt with the given schema lines (already joined by newlines).
void append_tool_prompt(PromptBuilder& out, Version version, std::string_view schemas);

}  // namespace deepinfer::recipe
