// Element types of tensors, under their safetensors names, and a view of a tensor that somebody else owns.
//
//   Result<DType> t = dtype_from_name("F8_E4M3");
//   TensorView w{DType::kF8E4M3, {64, 256}, data};      w.elements() == 16384;  w.bytes() == 16384
//
// FP4 matrices are stored as I8 with half the columns (two e2m1 codes a byte, even column in the low nibble).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::numeric {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

std::string_view dtype_name(DType t);                  // "F8_E4M3"
size_t dtype_bytes(DType t);                           // bytes an element
Result<DType> dtype_from_name(std::string_view name);  // kUnsupported for other names

struct TensorView {
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;         // row-major, outermost first; empty for a scalar
  const std::byte* data = nullptr;    // as stored: little-endian, not owned

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  uint64_t bytes() const { return static_cast<uint64_t>(elements()) * dtype_bytes(dtype); }
  int64_t dim(size_t i) const { return shape[i]; }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

}  // namespace deepinfer::numeric
