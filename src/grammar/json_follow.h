// Which bytes may come next in a JSON text that is to become a given value, however it is spelled. Internal to the
// room.
//
//   ByteSet next;
//   if (!follow_json("{\"a\": [1", value, &next)) ...   // this text cannot become the value any more
//
// The text is a part, from its start, of some JSON value (without white space before it). Never says no wrongly. `next`
// holds every byte with which the text stays possible, but may hold others; what ends a finished number is not in it.
#pragma once

#include <string_view>

#include "grammar/byte_set.h"
#include "grammar/json_value.h"

namespace deepinfer::grammar {

bool follow_json(std::string_view text, const JsonValue& value, ByteSet* next);

// One text for all values that are equal as JSON Schema means it (json_equal).
void append_canonical_json(const JsonValue& value, std::string& out);

}  // namespace deepinfer::grammar
