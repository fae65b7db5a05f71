// UTF-8: validation, repair, code point counting and decoding.
//
//   std::string clean = replace_broken_utf8(bytes);      // what Python's bytes.decode("utf-8", "replace") gives
//
// Valid means Unicode's definition: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::text {

bool is_valid_utf8(std::string_view bytes);

// Each maximal part of an ill-formed sequence (Unicode 16, section 3.9, table 3-8) becomes one U+FFFD.
std::string replace_broken_utf8(std::string_view bytes);

// What stands at the start of `bytes` (not empty).
enum class Utf8Head : uint8_t {
  kCharacter,   // `length` bytes encode `code_point`
  kBroken,      // `length` bytes can never become a character: one U+FFFD
  kIncomplete,  // all `length` bytes left are the beginning of a character
};
struct Utf8Step {
  Utf8Head head;
  uint8_t length;
  uint32_t code_point;  // only for kCharacter
};
Utf8Step read_utf8(std::string_view bytes);

// Number of code points in valid UTF-8.
size_t count_code_points(std::string_view text);

void append_utf8(uint32_t code_point, std::string* out);

}  // namespace deepinfer::text
