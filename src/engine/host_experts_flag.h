// How many experts of a layer the host computes for a GPU, as a user writes it: "off", "auto" or a number.
//
//   host_experts_count("64")      // 64; "auto": ops::kAutoHostExperts; "off": 0; none for anything else
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

#include "ops/host_experts.h"

namespace deepinfer::engine {

inline constexpr int kHostExpertsMax = 4096;

inline std::optional<int> host_experts_count(std::string_view text) {
  if (text == "off") return 0;
  if (text == "auto") return ops::kAutoHostExperts;
  int count = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, count);
  if (error != std::errc() || end != last || count < 0 || count > kHostExpertsMax) return std::nullopt;
  return count;
}

}  // namespace deepinfer::engine
