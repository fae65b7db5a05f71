// The syntax tree of an ECMA-262 regular expression. Internal to the room.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/char_set.h"
#include "grammar/limits.h"

namespace deepinfer::grammar {

enum class RegexKind : uint8_t {
  kEmpty,
  kChars,
  kConcat,
  kChoice,
  kRepeat,
  kBegin,
  kEnd,
  kBoundary,
  kNotBoundary,
  kLook
};

struct RegexNode {
  RegexKind kind;
  bool negative = false, behind = false;  // kLook
  bool asserts = false;                   // an assertion is somewhere inside
  bool nullable = true;                   // may match nothing (assertions count as nothing)
  uint32_t min = 0, max = 0;              // kRepeat
  CharSet chars;                          // kChars
  std::vector<uint32_t> children;
};

struct RegexTree {
  std::vector<RegexNode> nodes;
  uint32_t root = 0;
};

Result<RegexTree> parse_regex_tree(std::string_view pattern, const Limits& limits);

// The characters of a Unicode property as \p{name} or \p{name=value} writes it; an error names what is not supported.
Result<CharSet> unicode_property(std::string_view name);

CharSet regex_word_chars();
CharSet regex_digits();
CharSet regex_spaces();

}  // namespace deepinfer::grammar
