// What completions with "echo" begin with: the prompt as text.
//
//   options.completion_prefix = echoed_prompt(request, vocabulary);
//
// Empty for other requests. Token ids of a prompt give their text, those without one nothing.
#pragma once

#include <string>

#include "recipe/output_vocabulary.h"
#include "recipe/request.h"

namespace deepinfer::recipe {

std::string echoed_prompt(const Request& request, const OutputVocabulary& vocabulary);

}  // namespace deepinfer::recipe
