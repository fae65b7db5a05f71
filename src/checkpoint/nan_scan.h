// Whether weights hold values that are not numbers: NaN in F32 and BF16, the NaN codes of E4M3 and UE8M0. FP4 has none.
//
//   if (has_nan(view.data, view.bytes(), view.dtype)) ..
//
// As fast as memory on one thread, for checks of bytes that are read anyway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "numeric/dtype.h"

namespace deepinfer::checkpoint {

// data is aligned to its type; other types than those above hold none.
bool has_nan(const std::byte* data, uint64_t bytes, numeric::DType dtype);

// What to say of a tensor that does.
Status nan_error(std::string_view tensor, std::string_view path);

}  // namespace deepinfer::checkpoint
