// The environment names of DeepInfer 0.1.0. Those that an option stands for are aliases in the option table; this is
// about the others: names that do nothing here, and names that would change results in a way that is not offered.
#pragma once

#include <span>
#include <string_view>

namespace deepinfer::app {

struct FormerName {
  std::string_view name;  // without DEEPINFER_
  // Values that mean what happens anyway, separated by spaces; "*": all. Others are refused.
  std::string_view accepted;
  std::string_view reason;
};

std::span<const FormerName> former_names();

}  // namespace deepinfer::app
