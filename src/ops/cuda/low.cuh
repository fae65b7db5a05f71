// Between the first and the second query projection (spec/model.md 6.2): norms of a row, and its window record.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/pack.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kLowThreads = 256;

// A row's norm into shared memory by kLowThreads threads that meet at sync(). Weights come before the row does: they
// do not hang on the kernel in front.
class NormedRow {
 public:
  __device__ __forceinline__ NormedRow(const float* w, int n) : w_(w), n_(n) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) ahead_[k] = at(k) < n ? w[at(k)] : 0.0f;
  }
  // The tree of rms_norm(). shared: kLowThreads / 32 floats.
  template <class Sync>
  __device__ __forceinline__ void put(const bf16* x, float eps, bf16* out, float* shared, Sync sync) const {
    float v[kAhead], sum = 0;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) v[k] = at(k) < n_ ? value(x[at(k)]) : 0.0f;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) sum += v[k] * v[k];
    for (int i = at(kAhead); i < n_; i += kLowThreads) sum += value(x[i]) * value(x[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    sync();
    sum = shared[0];
#pragma unroll
    for (int w = 1; w < kLowThreads / 32; ++w) sum += shared[w];
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(n_) + eps);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at(k) < n_) out[at(k)] = rounded(ahead_[k] * (v[k] * scale));
    }
    for (int i = at(kAhead); i < n_; i += kLowThreads) out[i] = rounded(w_[i] * (value(x[i]) * scale));
    sync();
  }

 private:
  static constexpr int kAhead = 5;
  __device__ __forceinline__ static int at(int k) { return static_cast<int>(threadIdx.x) + k * kLowThreads; }

  const float* w_;
  int n_;
  float ahead_[kAhead];
};

// The record of a row whose normed values are in shared memory: RoPE and FQ8, codes, then scales. cos, sin: of the row;
// those of pair threadIdx.x come along, loaded before.
template <class Sync>
__device__ __forceinline__ void window_record(bf16* normed, int d, int half, const float* cos, const float* sin,
                                              float my_cos, float my_sin, uint8_t* record, Sync sync) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bf16* rope = normed + d - 2 * half;
  if (static_cast<int>(threadIdx.x) < half) rotate_pair(rope + 2 * threadIdx.x, my_cos, my_sin);
  for (int i = threadIdx.x + kLowThreads; i < half; i += kLowThreads) rotate_pair(rope + 2 * i, cos[i], sin[i]);
  sync();
  for (int g = warp; g < d / 32; g += kLowThreads / 32) {
    const float v = value(normed[32 * g + lane]);
    const int e = fq8_exponent(warp_max(fabsf(v)));
    record[32 * g + lane] = fq8_code(v, e);
    if (lane == 0) record[d + g] = static_cast<uint8_t>(e);
  }
}

}  // namespace deepinfer::ops::cuda
