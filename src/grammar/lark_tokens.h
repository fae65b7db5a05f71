// The tokens of a grammar in Lark's syntax (private to the room; lark.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::grammar {

enum class LarkKind : uint8_t { kName, kString, kRegexp, kNumber, kDirective, kMark, kEnd };

struct LarkToken {
  LarkKind kind;
  std::string text;  // decoded string; pattern; name; number; mark ("->", "..", or one character); directive with its %
  std::string flags;  // of strings and regular expressions
  size_t at;          // place in the source
  bool leads = false;  // the first of its line
};

// Ends with a kEnd token.
Result<std::vector<LarkToken>> read_lark_tokens(std::string_view source);
Status lark_error(std::string_view source, size_t at, std::string_view what);

}  // namespace deepinfer::grammar
