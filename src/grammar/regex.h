// Regular expressions of ECMA-262 with the u flag, read into the grammar form.
//
//   DI_ASSIGN_OR_RETURN(Text id, parse_regex(builder, "[a-z]+-[0-9]{4}", RegexMode::kWhole));
//
// kWhole: the whole text must match; `^` and `$` at the ends change nothing. kSearch: the pattern may match anywhere in
// the text, as JSON Schema's `pattern` does. \d, \w and \s are the sets of ECMA-262 without the i flag; the dot is any
// code point but a line end. Supported beyond plain syntax: lazy marks (no effect on the set of strings), named and
// non-capturing groups, look-ahead and look-behind (as intersections), \b and \B, and \p{..} for the general
// categories, Any, ASCII, Assigned and Alphabetic. Refused by name: back references, other Unicode properties, and what
// is a syntax error under the u flag.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/grammar.h"

namespace deepinfer::grammar {

enum class RegexMode : uint8_t { kWhole, kSearch };

Result<Text> parse_regex(GrammarBuilder& builder, std::string_view pattern, RegexMode mode);

}  // namespace deepinfer::grammar
