#include "app/flag_checks.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace deepinfer::app {

std::string check_seed(const std::string& value) {
  uint64_t seed = 0;
  const char* end = value.data() + value.size();
  const auto [at, error] = std::from_chars(value.data(), end, seed);
  if (error == std::errc() && at == end) return {};
  return "must be a whole number from 0 to 18446744073709551615";
}

std::string check_not_nan(const std::string& value) {
  return std::isnan(std::strtod(value.c_str(), nullptr)) ? "must be a number" : "";
}

}  // namespace deepinfer::app
