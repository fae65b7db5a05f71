// The converters behind parse_request, one per API, and what they share. Internal to the room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/request.h"

namespace deepinfer::recipe {

std::optional<ApiError> convert_chat(Json body, const RequestOptions& options, Request& out);
std::optional<ApiError> convert_responses(Json body, const RequestOptions& options, Request& out);
std::optional<ApiError> convert_completions(Json body, const RequestOptions& options, Request& out);
std::optional<ApiError> convert_messages(Json body, const RequestOptions& options, Request& out);

// {"input":TEXT}, the arguments of a custom tool call.
std::string custom_arguments(std::string_view input);

// Whether an id has the form call_NN_ET_..., which our responses give calls made without any thought (spec 9.4).
bool has_empty_thought_id(const std::vector<ToolCall>& calls);

}  // namespace deepinfer::recipe
