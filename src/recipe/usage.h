// Token counts of one response, as all three APIs report them (spec/protocol.md 8.5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace deepinfer::recipe {

struct Usage {
  int64_t prompt_tokens = 0;      // with BOS, headers and image tokens; once, however many choices share the prompt
  int64_t cached_tokens = 0;      // of them, found in the prefix cache
  int64_t completion_tokens = 0;  // all sampled tokens of all choices
  std::optional<int64_t> reasoning_tokens = 0;  // nothing if the engine delivered text instead of ids
};

// The usage objects of Chat Completions (and plain completions), Responses and Messages.
void append_chat_usage(std::string& out, const Usage& usage);
void append_responses_usage(std::string& out, const Usage& usage);
void append_messages_usage(std::string& out, const Usage& usage);

}  // namespace deepinfer::recipe
