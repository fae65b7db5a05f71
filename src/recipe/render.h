// Conversation -> prompt, exactly as DeepSeek's models were trained (spec/protocol.md 3 to 6).
//
//   Prompt prompt = render(conversation, Version::kV41);
//   Result<Encoded> ids = encode(prompt, special_ids, tokenizer);      // recipe/tokenize.h
//
// Three profiles: render() is what the APIs use, render_fim() the completions endpoint, render_reference() the encoder
// shipped with the models, which takes OpenAI-style messages. Rendering copies each byte of the conversation once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "recipe/conversation.h"
#include "recipe/prompt.h"

namespace deepinfer::recipe {

Prompt render(const Conversation& conversation, Version version);

// The tool schema line of spec 4.1: {"name": ..., "description": ..., "parameters": ...}.
void append_tool_schema(std::string& out, const Tool& tool);

// Fill in the middle; without suffix a plain continuation. Both texts are untrusted.
Prompt render_fim(std::string_view prefix, const std::optional<std::string>& suffix);

// Parameters of the reference encoder (spec 6).
struct ReferenceOptions {
  bool thinking = true;
  // Nothing: the version's default (V4.1: 75, V4: no text). Names or, V4.1 only, a number 1..100.
  std::optional<Effort> effort;
  int effort_number = 0;
  bool drop_thinking = true;
  bool continue_final_message = false;
  bool bos = true;
  std::vector<Json> context;  // messages that are already encoded: they count, but are not printed
};

// messages are OpenAI-style objects (role, content, tools, tool_calls, reasoning_content, task, response_format).
// kInvalidArgument names the message that cannot be encoded.
Result<Prompt> render_reference(const std::vector<Json>& messages, Version version, const ReferenceOptions& options);

}  // namespace deepinfer::recipe
