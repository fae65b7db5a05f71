#include "recipe/usage.h"

#include <iterator>

#include <fmt/format.h>

namespace deepinfer::recipe {

void append_chat_usage(std::string& out, const Usage& u) {
  fmt::format_to(
      std::back_inserter(out),
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}})",
      u.prompt_tokens, u.completion_tokens, u.prompt_tokens + u.completion_tokens, u.cached_tokens);
  if (u.reasoning_tokens) {
    fmt::format_to(std::back_inserter(out), R"(,"completion_tokens_details":{{"reasoning_tokens":{}}})",
                   *u.reasoning_tokens);
  }
  fmt::format_to(std::back_inserter(out), R"(,"prompt_cache_hit_tokens":{},"prompt_cache_miss_tokens":{}}})",
                 u.cached_tokens, u.prompt_tokens - u.cached_tokens);
}

void append_responses_usage(std::string& out, const Usage& u) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},)"
                 R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
                 u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.reasoning_tokens.value_or(0),
                 u.prompt_tokens + u.completion_tokens);
}

void append_messages_usage(std::string& out, const Usage& u) {
  fmt::format_to(
      std::back_inserter(out),
      R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{},)"
      R"("service_tier":"standard"}})",
      u.prompt_tokens - u.cached_tokens, u.cached_tokens, u.completion_tokens);
}

}  // namespace deepinfer::recipe
