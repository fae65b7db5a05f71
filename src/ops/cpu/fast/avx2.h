// What the AVX2 files offer to the table (kernels.cc). Contracts as in kernels.h.
#pragma once

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast::avx2 {

void multiply(const LinearCall& call, std::byte* scratch);
void pack(const float* x, int64_t k, Order order, bool quantise, uint16_t* out);
void outer(const OuterCall& call);
void swiglu(const float* gate, const float* up, int64_t n, float limit, float weight, float* out);

}  // namespace deepinfer::ops::cpu::fast::avx2
