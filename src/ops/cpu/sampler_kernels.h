// The sampler's passes over a row of logits (internal to ops/cpu), for the widest vectors that the machine has. All of
// them give the same bits on every target, but for the sum of exps().
//
//   const SamplerKernels& k = sampler_kernels();
//   double sum = k.exps(z, e, n);
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/sampling.h"

namespace deepinfer::ops {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr float kNoiseMax = 22.9f;       // above G of every word
// relative, a term: twice the bound of a sum of positive numbers, and room
inline constexpr double kSumError = 0x3p-53;
inline constexpr double kRoughError = 2e-6;     // relative; measured 3e-7
inline constexpr size_t kContendersMax = 512;   // tokens of one call

struct SamplerKernels {
  float (*clean)(const float* in, float* out, size_t n);       // NaN becomes -inf; gives the largest
  float (*largest)(const float* x, size_t n);                  // NaN never is; -inf for none
  size_t (*find)(const float* x, size_t n, float value);       // the first; n: none
  void (*mask)(float* x, const uint32_t* allowed, size_t words, size_t n);  // -inf where the bit is 0
  void (*scale)(const float* x, float max, float factor, float* z, size_t n);  // (x - max) * factor
  // e = exp(z), z <= 0; gives their sum in some order: within kSumError * n of any other order's.
  double (*exps)(const float* z, double* e, size_t n);
  // The same in fp32: each value and the sum (in double) are within kRoughError of the true ones.
  double (*rough_exps)(const float* z, float* e, size_t n);
  double (*exp_sum)(const float* x, double max, size_t n);     // of exp(x - max) in double, ids ascending; NaN counts 0
  // Ids with z > cut, ascending. out: [n], all of which may be written.
  size_t (*above)(const float* z, size_t n, float cut, int32_t* out);
  void (*noise)(const NoisePlace& at, const int32_t* ids, size_t n, uint32_t* words);  // words[i] of token ids[i]
  // Of tokens first .. first + 4 * blocks - 1; first is a multiple of 4, blocks of 8.
  void (*noise_run)(const NoisePlace& at, uint32_t first, size_t blocks, uint32_t* words);
  // Positions among n <= kContendersMax tokens for which z + G may be best or more.
  size_t (*contenders)(const float* z, const uint32_t* words, size_t n, float best, uint16_t* out);
};

const SamplerKernels& sampler_kernels();
// For tests: those of each target that this machine has, the plainest first. Ends with null.
const SamplerKernels* const* all_sampler_kernels();

}  // namespace deepinfer::ops
