// What `deepinfer cache explain` prints: why a logged prompt was not served from the cache (kv/explain.h), in words.
//
//   DI_ASSIGN_OR_RETURN(std::string text, explain_prompt(prompts, at, shape, &tokenizer));
#pragma once

#include <span>
#include <string>

#include "kv/explain.h"
#include "text/tokenizer.h"

namespace deepinfer::app {

// `tokenizer` may be null: token ids instead of text.
std::string explain_prompt(std::span<const kv::LoggedPrompt> prompts, size_t at, const kv::ExplainShape& shape,
                           const text::Tokenizer* tokenizer);

}  // namespace deepinfer::app
