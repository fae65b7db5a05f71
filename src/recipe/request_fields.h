// Every field of the request schemas and what becomes of it. docs/api-compatibility.md is printed from this table
// (tools/api_compatibility); a test compares the two and tries the fields on the converters.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "recipe/conversation.h"

namespace deepinfer::recipe {

enum class FieldUse : uint8_t {
  kHonoured,  // has its effect
  kChecked,   // a wrong value is refused, a right one has no effect
  kIgnored,   // any value is accepted and has no effect
  kRefused,   // 400
};

struct RequestField {
  Protocol protocol;
  std::string_view path;  // [] stands for any index
  FieldUse use;
  std::string_view note;
};

// Grouped by protocol. What is not listed is ignored.
std::span<const RequestField> request_fields();

// The whole page.
std::string api_compatibility_markdown();

}  // namespace deepinfer::recipe
