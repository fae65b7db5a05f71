// A parsed API request -> what the engine and the grammar compiler need of it, but for its prompt and max_tokens.
//
//   std::optional<grammar::Constraint> constraint;
//   read_api_request(request, specials, &r, &constraint);
//   if (constraint) r.grammar = ... compiled
//
// Text is off: the builder of the answer (recipe/api_stream.h) makes text of the tokens, and looks for stop texts. With
// reasoning, a constraint holds behind its end.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "grammar/constraint.h"
#include "recipe/request.h"
#include "recipe/tokenize.h"

namespace deepinfer::engine {

void read_api_request(const recipe::Request& from, const recipe::SpecialIds& specials, Request* to,
                      std::optional<grammar::Constraint>* constraint);

// The token ids that a completions request gives in place of its `prompt`th text, which are the prompt as it is; empty if
// it gives a text. kInvalidArgument for an id that a vocabulary of `vocab_size` ids does not have.
Result<std::vector<int32_t>> prompt_token_ids(const recipe::Request& request, size_t prompt, int64_t vocab_size);

}  // namespace deepinfer::engine
