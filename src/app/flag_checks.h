// Checks of flag values that CLI11's own casts let through. Each gives what is wrong, empty if nothing is.
//
//   app.add_option("--seed", seed)->check(CLI::Validator(check_seed, "SEED"));
#pragma once

#include <string>

namespace deepinfer::app {

// Digits that fit 64 bits: a cast would wrap negative numbers and clip large ones.
std::string check_seed(const std::string& value);

// A range check alone lets NaN pass, since it compares false with both bounds.
std::string check_not_nan(const std::string& value);

}  // namespace deepinfer::app
