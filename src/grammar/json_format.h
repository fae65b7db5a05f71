// The string formats that JSON Schema's `format` enforces here: date-time, date, time, duration (RFC 3339), email
// (RFC 5321 mailbox, ASCII), hostname (RFC 1123), ipv4, ipv6 (RFC 4291 without zone), uri (RFC 3986), uuid (RFC 4122).
// Every other name is an annotation.
//
//   check_format("date", "2024-02-29");           // true
//   format_regex("uuid").pattern;                 // for the automaton
#pragma once

#include <cstdint>
#include <string_view>

namespace deepinfer::grammar {

bool is_known_format(std::string_view name);
// True when `text` (UTF-8) is of the format; `name` must be a known one.
bool check_format(std::string_view name, std::string_view text);

struct FormatRegex {
  std::string_view pattern;  // the whole text must match
  int64_t max_length = -1;   // a bound that holds beside the pattern, -1 for none
  // False where the pattern leaves out texts of the format (a leap second written in another zone than UTC), so that
  // its complement must not stand for "not of this format".
  bool exact = true;
};
// `name` must be a known format.
FormatRegex format_regex(std::string_view name);

}  // namespace deepinfer::grammar
