// Whether a text is one JSON value, by RFC 8259's grammar alone: numbers of any size, at most kJsonCheckDepthMax nested
// arrays and objects, white space around allowed. For texts that pass through as they are and are never parsed here.
//
//   is_json("{\"a\": 1e400}")   // true
//   is_json("NaN")              // false
//
// `text` must be valid UTF-8. Linear time, no allocation.
#pragma once

#include <string_view>

namespace deepinfer::recipe {

inline constexpr int kJsonCheckDepthMax = 512;

bool is_json(std::string_view text);

}  // namespace deepinfer::recipe
