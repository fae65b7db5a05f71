// Lists of token ids as options write them: "0..3,7,10..12", strictly increasing.
//
//   DI_ASSIGN_OR_RETURN(std::vector<int32_t> ids, parse_token_ranges("0..3,7"));     // 0 1 2 3 7
//
// kInvalidArgument for anything else, and for more than kTokenRangeMax ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::app {

inline constexpr int32_t kTokenRangeMax = 1 << 22;

Result<std::vector<int32_t>> parse_token_ranges(std::string_view text);
// For the option table: what is wrong with the text, empty if nothing is.
std::string check_token_ranges(const std::string& text);

}  // namespace deepinfer::app
