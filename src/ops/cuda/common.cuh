// What the stage kernels share: the row set as a kernel sees it, block reductions with a fixed tree, codecs and fake
// quantisation.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ops/row_batch.h"

namespace deepinfer::ops::cuda {

using bf16 = __nv_bfloat16;

// A row set in device memory; cos and sin are [rows, rope / 2].
struct RowView {
  const SequenceRows* sequences;
  const int32_t *blocks, *tokens, *positions, *sequence, *image_row, *history, *source, *outputs;
  const int32_t* counts;  // sequences, outputs
  const int32_t* feedback;
  const float *cos[2], *sin[2];         // 0 plain, 1 compressed
  const float *entry_cos, *entry_sin;   // compressed, at the position before each row: where a ratio-2 entry is rotated

  __device__ int32_t token(int32_t t) const { return t >= 0 || t == kNoToken ? t : feedback[-1 - t]; }
  __device__ bool image(int row) const { return image_row[row] >= 0; }
};

// ---- reductions: a tree that depends on the block size alone; every kernel fixes its block size
// --------------------------------
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
// Same value to all threads. `shared`: kThreads / 32 floats, free again after the call.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v, float* shared) {
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = shared[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) sum += shared[w];
  return sum;
}

__device__ __forceinline__ float value(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ bf16 rounded(float x) { return __float2bfloat16_rn(x); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// out[i] = w[i] * x[i] * rsqrt(mean(x^2) + eps), one rounding (spec 4.6); x and out may be the same. A whole block.
template <int kThreads>
__device__ __forceinline__ void rms_norm(const bf16* x, const float* w, int n, float eps, bf16* out, float* shared) {
  float sum = 0;
#pragma unroll 5
  for (int i = threadIdx.x; i < n; i += kThreads) sum += value(x[i]) * value(x[i]);
  const float scale = 1.0f / sqrtf(block_sum<kThreads>(sum, shared) / static_cast<float>(n) + eps);
#pragma unroll 5
  for (int i = threadIdx.x; i < n; i += kThreads) out[i] = rounded(w[i] * (value(x[i]) * scale));
}

// RoPE of the pair at x, one rounding (spec 6.2).
__device__ __forceinline__ void rotate_pair(bf16* x, float c, float s) {
  const float a = value(x[0]), b = value(x[1]);
  x[0] = rounded(a * c - b * s);
  x[1] = rounded(a * s + b * c);
}

// ---- formats
// -------------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ float ue8m0_value(uint8_t c) {
  return c == 0 ? 0x1p-127f : __uint_as_float(static_cast<uint32_t>(c) << 23);
}
// Biased exponent of the smallest power of two >= t; t normal.
__device__ __forceinline__ int power_of_two_exponent(float t) {
  const uint32_t bits = __float_as_uint(t);
  return static_cast<int>(bits >> 23) + ((bits & 0x7fffff) != 0);
}
__device__ __forceinline__ uint8_t e4m3_code(float x) { return __nv_fp8_e4m3(x).__x; }
__device__ __forceinline__ float e4m3_value(uint8_t c) {
  __nv_fp8_e4m3 v;
  v.__x = c;
  return static_cast<float>(v);
}
// Nearest e2m1, ties to the even code; bit 3 for x < 0.
__device__ __forceinline__ uint8_t e2m1_code(float x) {
  const float a = fabsf(x);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | (x < 0 ? 8 : 0));
}
__device__ __forceinline__ float e2m1_value(int code) {
  const int m = code & 7;
  const float v = m < 2
                      ? 0.5f * static_cast<float>(m)
                      : __uint_as_float(static_cast<uint32_t>(126 + m / 2) << 23 | static_cast<uint32_t>(m & 1) << 22);
  return code & 8 ? -v : v;
}

// Scale exponent (biased) of FQ8 for a group whose largest magnitude is amax (spec 4.2).
__device__ __forceinline__ int fq8_exponent(float amax) {
  return power_of_two_exponent(fmaxf(amax, 1e-4f) * (1.0f / 448.0f));
}
__device__ __forceinline__ uint8_t fq8_code(float x, int exponent) {
  const float inverse = __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
  return e4m3_code(fminf(fmaxf(x * inverse, -448.0f), 448.0f));
}
__device__ __forceinline__ float fake_quantise_fp8(float x, float amax) {
  const int e = fq8_exponent(amax);
  return e4m3_value(fq8_code(x, e)) * __uint_as_float(static_cast<uint32_t>(e) << 23);
}
// FQ4I (4.4): the exponent is that of the smallest power of two >= max(amax, 6 * 2^-126) / 6.
__device__ __forceinline__ int fq4i_exponent(float amax) {
  return power_of_two_exponent(fmaxf(amax, 6 * 0x1p-126f) / 6.0f);
}
__device__ __forceinline__ uint8_t fq4i_code(float x, int exponent) {
  const float scale = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
  return e2m1_code(fminf(fmaxf(x / scale, -6.0f), 6.0f));
}

}  // namespace deepinfer::ops::cuda
