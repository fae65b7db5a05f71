// The parts of /openapi.json that are written by hand: what bodies look like (internal to serve/).
//
//   components.set("schemas", hand_written_schemas());            // ChatCompletion, Response, Message, File, Batch, ..
//   if (std::string_view name = answer_schema("GET", "/v1/models"); !name.empty()) ref("#/components/schemas/" + name);
//
// Objects list what clients can count on; more members may come.
#pragma once

#include <string_view>

#include "recipe/json.h"

namespace deepinfer::serve {

recipe::Json hand_written_schemas();

// Of a route's answer with status 200; empty: it is no JSON.
std::string_view answer_schema(std::string_view method, std::string_view path);

// Of a body that is sent to a route, for those that recipe/request_fields.h does not describe; empty: it does, or there
// is none.
std::string_view body_schema(std::string_view method, std::string_view path);

// A request that the bundled model answers; null where a path takes none.
recipe::Json body_example(std::string_view path, std::string_view model);

}  // namespace deepinfer::serve
