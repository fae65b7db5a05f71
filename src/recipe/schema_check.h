// Checks and completes JSON Schemas of tools and response formats before they are printed or enforced.
//
//   if (auto fault = check_schema(schema)) refuse(*fault);
//   if (auto fault = complete_strict(schema, SchemaUse::kTool)) refuse(*fault);      // spec/protocol.md 4.5
//
// check_schema looks at form only (keywords have the right types, $ref points into the schema); what the sampler can
// enforce is decided by the grammar room. Depth is bounded by the JSON parser.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recipe/json.h"

namespace deepinfer::recipe {

// What is wrong with the schema, or nothing.
std::optional<std::string> check_schema(const Json& schema);

enum class SchemaUse : uint8_t { kTool, kResponseFormat };

// Every object gets additionalProperties: false and required = all its properties, in property order. New keys go to
// the end of their object. Returns the API's wording for what strict mode refuses.
std::optional<std::string> complete_strict(Json& schema, SchemaUse use);

}  // namespace deepinfer::recipe
