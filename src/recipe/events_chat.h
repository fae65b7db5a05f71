// Chat Completions: chat.completion and chat.completion.chunk (spec/protocol.md 9.4, 9.5, 9.7, 9.8). See api_stream.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "recipe/api_stream.h"

namespace deepinfer::recipe {

std::unique_ptr<ApiStream> make_chat_stream(ApiStreamOptions options, const OutputVocabulary* vocabulary);

// The members that every object of these two APIs begins with: `"id":...,"object":...,"created":...,"model":...,` and
// so on.
std::string chat_identity(const ApiStreamOptions& options, std::string_view object);

// finish_reason of Chat Completions and plain completions.
std::string_view chat_finish_reason(FinishReason reason);

}  // namespace deepinfer::recipe
