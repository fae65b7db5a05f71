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

Status read_llm_options(const OptionValues& values, LlmOptions* options);

}  // namespace deepinfer::app
