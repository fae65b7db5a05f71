// Plain and fill-in-the-middle completions: text_completion (spec/protocol.md 12). See api_stream.h.
#pragma once

#include <memory>

#include "recipe/api_stream.h"

namespace deepinfer::recipe {

std::unique_ptr<ApiStream> make_completions_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary);

}  // namespace deepinfer::recipe
