// Names of devices: "auto", "cpu", "cuda" and "cuda:N".
//
//   if (const std::string error = device_error("cuda:1x"); !error.empty()) ...  // "must be auto, cpu, ..."
//   gpu_index("cuda:1")                                                         // 1
//
// Pure; N is at most kGpuMax.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace deepinfer::engine {

inline constexpr int kGpuMax = 63;

// The N of "cuda:N", 0 for "cuda", none for anything else.
inline std::optional<int> gpu_index(std::string_view device) {
  constexpr std::string_view kName = "cuda";
  if (!device.starts_with(kName)) return std::nullopt;
  device.remove_prefix(kName.size());
  if (device.empty()) return 0;
  int index = 0;
  const char* const last = device.data() + device.size();
  const auto [end, error] = std::from_chars(device.data() + 1, last, index);
  if (device[0] != ':' || error != std::errc() || end != last || index < 0 || index > kGpuMax) return std::nullopt;
  return index;
}

// Empty, or what is wrong with the name.
inline std::string device_error(std::string_view device) {
  if (device == "auto" || device == "cpu" || gpu_index(device).has_value()) return {};
  return "must be auto, cpu, cuda or cuda:N with N from 0 to " + std::to_string(kGpuMax);
}

}  // namespace deepinfer::engine
