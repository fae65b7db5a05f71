// What completions with "echo" begin with: the prompt as text.
//
//   DI_ASSIGN_OR_RETURN(options.completion_prefixes, echoed_prompts(request, vocabulary));
//
// One text a prompt; none for other requests. Token ids of a prompt give their text, those without one nothing: two
// bytes of a request may name a token of a hundred. kInvalidArgument: the choices of all prompts would begin with more
// than kEchoBytesMax together.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"
#include "recipe/output_vocabulary.h"
#include "recipe/request.h"

namespace deepinfer::recipe {

inline constexpr size_t kEchoBytesMax = 32 << 20;

Result<std::vector<std::string>> echoed_prompts(const Request& request, const OutputVocabulary& vocabulary);

}  // namespace deepinfer::recipe
