#include "checkpoint/nan_scan.h"

#include <algorithm>
#include <cstring>

namespace deepinfer::checkpoint {
namespace {

// Blocks keep the inner loop free of exits, so that it becomes vector code.
template <class T, class IsNan>
bool any(const std::byte* data, uint64_t bytes, IsNan is_nan) {
  constexpr uint64_t kBlock = 4096;
  const auto* p = reinterpret_cast<const T*>(data);
  const uint64_t n = bytes / sizeof(T);
  for (uint64_t begin = 0; begin < n; begin += kBlock) {
    const uint64_t end = std::min(begin + kBlock, n);
    T found = 0;
    for (uint64_t i = begin; i < end; ++i) found |= is_nan(p[i]);
    if (found != 0) return true;
  }
  return false;
}

}  // namespace

bool has_nan(const std::byte* data, uint64_t bytes, numeric::DType dtype) {
  switch (dtype) {
    case numeric::DType::kF8E8M0:
      return std::memchr(data, 255, bytes) != nullptr;
    case numeric::DType::kF8E4M3:
      return any<uint8_t>(data, bytes, [](uint8_t v) { return static_cast<uint8_t>((v & 0x7f) == 0x7f); });
    case numeric::DType::kBF16:
      return any<uint16_t>(data, bytes, [](uint16_t v) { return static_cast<uint16_t>((v & 0x7fff) > 0x7f80); });
    case numeric::DType::kF32:
      return any<uint32_t>(data, bytes,
                           [](uint32_t v) { return static_cast<uint32_t>((v & 0x7fffffff) > 0x7f800000); });
    default:
      return false;
  }
}

Status nan_error(std::string_view tensor, std::string_view path) {
  return make_error(Code::kDataLoss, "Tensor \"{}\" holds NaN: the weights in {} are damaged. Fetch the file again.",
                    tensor, path);
}

}  // namespace deepinfer::checkpoint
