// Conversations and options as JSON, in the form of fixtures/encoding (see its README): for tests, tools and debugging.
//
//   Result<Conversation> c = conversation_from_json(case.find("conversation"));
//   Json back = conversation_to_json(c.value());
//
// In text an image is printed as <｜image｜>; when reading, content may be a list of parts joined by a blank line.
#pragma once

#include "base/status.h"
#include "recipe/conversation.h"
#include "recipe/json.h"

namespace deepinfer::recipe {

Result<Conversation> conversation_from_json(const Json& value);
Json conversation_to_json(const Conversation& conversation);
Json inference_options_to_json(const InferenceOptions& options);
Json parsing_options_to_json(const ParsingOptions& options);
Result<ParsingOptions> parsing_options_from_json(const Json& value);

std::string_view initial_stage_name(InitialStage stage);
std::string_view image_detail_name(ImageDetail detail);
std::string_view effort_name(Effort effort);

}  // namespace deepinfer::recipe
