// AMX's tiles in plain code, behind the kernels that use them: the arithmetic of TDPBF16PS as Intel's manual defines
// it. Needs AVX-512, not AMX.
#pragma once

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {

void multiply_emulated(const LinearCall& call, std::byte* scratch);

}  // namespace deepinfer::ops::cpu::fast
