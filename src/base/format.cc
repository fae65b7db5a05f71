#include "base/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace deepinfer {

std::string format_bytes(uint64_t bytes) {
  const double b = static_cast<double>(bytes);
  if (b >= 1e9) return fmt::format("{:.1f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.0f} kB", b / 1e3);
}

Result<uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string unit(error == std::errc() ? end : text.data(), text.data() + text.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  for (int power = 1; const char prefix : {'K', 'M', 'G', 'T'}) {
    const std::string p(1, prefix);
    if (unit == p + "B") factor = std::pow(1000.0, power);
    if (unit == p || unit == p + "IB") factor = std::pow(1024.0, power);
    ++power;
  }
  const double bytes = number * factor;
  if (error != std::errc() || factor == 0 || !(bytes >= 0) || bytes >= 1e18) {
    return make_error(Code::kInvalidArgument,
                      "\"{}\" is no size; write a number and a unit, as in 24GiB, 800MB or 1.5T.", text);
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace deepinfer
