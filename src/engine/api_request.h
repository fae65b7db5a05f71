// A parsed API request -> what the engine and the grammar compiler need of it, but for its prompt and max_tokens.
//
//   std::optional<grammar::Constraint> constraint;
//   read_api_request(request, specials, &r, &constraint);
//   if (constraint) r.grammar = ... compiled
//
// Text is off: the builder of the answer (recipe/api_stream.h) makes text of the tokens, and looks for stop texts. With
// reasoning, a constraint holds behind its end.
#pragma once

#include <optional>

#include "engine/request.h"
#include "grammar/constraint.h"
#include "recipe/request.h"
#include "recipe/tokenize.h"

namespace deepinfer::engine {

void read_api_request(const recipe::Request& from, const recipe::SpecialIds& specials, Request* to,
                      std::optional<grammar::Constraint>* constraint);

}  // namespace deepinfer::engine
