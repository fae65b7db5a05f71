#include "ops/cpu/sampler_kernels.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

// Vectors are passed between inlined functions only.
#pragma GCC diagnostic ignored "-Wpsabi"
// GCC 12 says so of its own _mm512_undefined_epi32().
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace deepinfer::ops {

static constexpr size_t kExpBlock = 64;

#pragma GCC push_options
#pragma GCC optimize("O3")

namespace plain {
#define DI_SAMPLER_VECTOR 16
#define DI_SAMPLER_BITS(m) static_cast<uint32_t>(_mm_movemask_ps((__m128)(m)))
#define DI_SAMPLER_MUL32(a, b) ((Q)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#include "ops/cpu/sampler_kernels.inc"
#undef DI_SAMPLER_VECTOR
#undef DI_SAMPLER_BITS
#undef DI_SAMPLER_MUL32
}  // namespace plain

#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#define DI_SAMPLER_VECTOR 32
#define DI_SAMPLER_BITS(m) static_cast<uint32_t>(_mm256_movemask_ps((__m256)(m)))
#define DI_SAMPLER_MUL32(a, b) ((Q)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#include "ops/cpu/sampler_kernels.inc"
#undef DI_SAMPLER_VECTOR
#undef DI_SAMPLER_BITS
#undef DI_SAMPLER_MUL32
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
namespace avx512 {
#define DI_SAMPLER_VECTOR 64
#define DI_SAMPLER_BITS(m) static_cast<uint32_t>(_mm512_movepi32_mask((__m512i)(m)))
#define DI_SAMPLER_MUL32(a, b) ((Q)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#include "ops/cpu/sampler_kernels.inc"
#undef DI_SAMPLER_VECTOR
#undef DI_SAMPLER_BITS
#undef DI_SAMPLER_MUL32
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC pop_options

namespace {

struct Available {
  const SamplerKernels* list[4] = {&plain::kKernels};
  int count = 1;
  Available() {
    if (__builtin_cpu_supports("avx2")) list[count++] = &avx2::kKernels;
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
      list[count++] = &avx512::kKernels;
  }
};

const Available& available() {
  static const Available a;
  return a;
}

}  // namespace

const SamplerKernels& sampler_kernels() { return *available().list[available().count - 1]; }
const SamplerKernels* const* all_sampler_kernels() { return available().list; }

}  // namespace deepinfer::ops
