// Anthropic Messages: message and its event sequence (spec/protocol.md 11.5). See api_stream.h.
#pragma once

#include <memory>

#include "recipe/api_stream.h"

namespace deepinfer::recipe {

std::unique_ptr<ApiStream> make_messages_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary);

}  // namespace deepinfer::recipe
