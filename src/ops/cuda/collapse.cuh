// Collapse of the four streams of a row and its norm (spec/model.md 5.3): entering a sublayer, and the head.
#pragma once

#include "ops/cuda/common.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kStreams = 4, kEnterThreads = 512;

// Collapse with `pre`, then norm, into out, by kEnterThreads threads that meet at sync(); two channels a thread at a
// time (d is even). collapsed: the vector before the norm.
template <class Sync>
__device__ __forceinline__ void collapse_and_norm(const bf16* x, const float* pre, const float* norm, int d, float eps,
                                                  bf16* collapsed, bf16* out, float* shared, Sync sync) {
  float square = 0;
#pragma unroll 5
  for (int i = 2 * threadIdx.x; i < d; i += 2 * kEnterThreads) {
    float a = 0, b = 0;
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const __nv_bfloat162 u = *reinterpret_cast<const __nv_bfloat162*>(x + s * d + i);
      a = s == 0 ? pre[0] * value(u.x) : fmaf(pre[s], value(u.x), a);
      b = s == 0 ? pre[0] * value(u.y) : fmaf(pre[s], value(u.y), b);
    }
    const __nv_bfloat162 c(rounded(a), rounded(b));
    *reinterpret_cast<__nv_bfloat162*>(collapsed + i) = c;
    square += value(c.x) * value(c.x);
    square += value(c.y) * value(c.y);
  }
  square = warp_sum(square);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = square;
  sync();
  float sum = shared[0];
#pragma unroll
  for (int w = 1; w < kEnterThreads / 32; ++w) sum += shared[w];
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(d) + eps);
#pragma unroll 5
  for (int i = 2 * threadIdx.x; i < d; i += 2 * kEnterThreads) {
    const __nv_bfloat162 c = *reinterpret_cast<const __nv_bfloat162*>(collapsed + i);
    const float2 w = *reinterpret_cast<const float2*>(norm + i);
    *reinterpret_cast<__nv_bfloat162*>(out + i) =
        __nv_bfloat162(rounded(w.x * (value(c.x) * scale)), rounded(w.y * (value(c.y) * scale)));
  }
}

}  // namespace deepinfer::ops::cuda
