// The options of the table that LLM and its engine have, as LlmOptions.
//
//   LlmOptions options;
//   DI_RETURN_IF_ERROR(read_llm_options(values, &options));      // but for `model`, which may be a name
#pragma once

#include "app/options/values.h"
#include "base/status.h"

namespace deepinfer {
struct LlmOptions;
}

namespace deepinfer::app {

// For CommandOptions::bind, which wants to know of every option.
inline constexpr const char* kLlmOptionNames[] = {"backend", "threads", "context", "sequences",
                                                  "rows",    "cache",   "cache-mb", "keep",
                                                  "ban-tokens", "top-k-max"};

Status read_llm_options(const OptionValues& values, LlmOptions* options);

}  // namespace deepinfer::app
