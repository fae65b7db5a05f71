// OpenAI Responses: the response object and its event sequence (spec/protocol.md 10.4, 10.5, 10.7, 10.8). See
// api_stream.h.
#pragma once

#include <memory>

#include "recipe/api_stream.h"

namespace deepinfer::recipe {

// The response object while the answer is in work.
std::string running_response(const ApiStreamOptions& options);

std::unique_ptr<ApiStream> make_responses_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary);

}  // namespace deepinfer::recipe
