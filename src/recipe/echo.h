// What completions with "echo" begin with: the prompt as text.
//
//   options.completion_prefixes = echoed_prompts(request, vocabulary);
//
// One text a prompt; none for other requests. Token ids of a prompt give their text, those without one nothing.
#pragma once

#include <string>
#include <vector>

#include "recipe/output_vocabulary.h"
#include "recipe/request.h"

namespace deepinfer::recipe {

std::vector<std::string> echoed_prompts(const Request& request, const OutputVocabulary& vocabulary);

}  // namespace deepinfer::recipe
