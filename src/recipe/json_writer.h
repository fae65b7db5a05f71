// Small helpers for writing JSON text into a string. Internal to this room.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "recipe/json.h"

namespace deepinfer::recipe {

inline void append_int(std::string& out, int64_t value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

// `,"key":"value"`
inline void append_member(std::string& out, std::string_view key, std::string_view value) {
  out.append(",\"").append(key).append("\":");
  append_json_string(out, value);
}

// `,"key":value` for a value that is JSON text already.
inline void append_raw_member(std::string& out, std::string_view key, std::string_view json) {
  out.append(",\"").append(key).append("\":").append(json);
}

}  // namespace deepinfer::recipe
