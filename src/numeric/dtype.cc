#include "numeric/dtype.h"

#include <array>

namespace deepinfer::numeric {
namespace {

struct Info {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr std::array<Info, 16> kInfo = {{{DType::kBool, "BOOL", 1},
                                         {DType::kU8, "U8", 1},
                                         {DType::kI8, "I8", 1},
                                         {DType::kF8E4M3, "F8_E4M3", 1},
                                         {DType::kF8E5M2, "F8_E5M2", 1},
                                         {DType::kF8E8M0, "F8_E8M0", 1},
                                         {DType::kI16, "I16", 2},
                                         {DType::kU16, "U16", 2},
                                         {DType::kF16, "F16", 2},
                                         {DType::kBF16, "BF16", 2},
                                         {DType::kI32, "I32", 4},
                                         {DType::kU32, "U32", 4},
                                         {DType::kF32, "F32", 4},
                                         {DType::kF64, "F64", 8},
                                         {DType::kI64, "I64", 8},
                                         {DType::kU64, "U64", 8}}};

}  // namespace

std::string_view dtype_name(DType t) { return kInfo[static_cast<size_t>(t)].name; }

size_t dtype_bytes(DType t) { return kInfo[static_cast<size_t>(t)].bytes; }

Result<DType> dtype_from_name(std::string_view name) {
  for (const Info& info : kInfo) {
    if (info.name == name) return info.dtype;
  }
  return make_error(Code::kUnsupported, "tensor element type \"{}\" is not known", name);
}

}  // namespace deepinfer::numeric
