// Writing one 128-column chunk of activations in the packed form (linear.h), by one warp: for pack_activations and for
// kernels that pack what they computed.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {

__device__ __forceinline__ uint32_t bf16_pair(float a, float b) {
  const __nv_bfloat162 p(__float2bfloat16_rn(a), __float2bfloat16_rn(b));
  return *reinterpret_cast<const uint32_t*>(&p);
}

// u: the bf16 values of columns 4 lane .. + 3 of the chunk. Places: the inverse of packed_column().
__device__ __forceinline__ void pack_chunk(uint2 u, const Packing& packing, uint8_t* packed, int64_t row, int chunks,
                                           int chunk) {
  const int lane = threadIdx.x % 32;
  if (packing.format != WeightFormat::kBf16 && packing.quantise) {
    float v[4] = {__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u), __uint_as_float(u.y << 16),
                  __uint_as_float(u.y & 0xffff0000u)};
    float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
    for (int o = 4; o > 0; o /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = fake_quantise_fp8(v[i], amax);
    u = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3])};
  }
  // words[e]: halves 0 and 1 of register pair e of step j.
  int quad, j;
  uint32_t words[2];
  if (packing.format == WeightFormat::kFp8) {
    quad = lane / 4 % 4, j = lane / 16 * 4 + lane % 4;
    words[0] = __byte_perm(u.x, u.y, 0x5410), words[1] = __byte_perm(u.x, u.y, 0x7632);
  } else if (packing.format == WeightFormat::kFp4) {
    // Even lanes hold half 0 and take step j, odd lanes hold half 1 and take step j + 1.
    quad = lane / 8, j = lane / 2 % 4 * 2 + lane % 2;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, lane % 2 ? u.x : u.y, 1);
    const uint32_t first = lane % 2 ? other : u.x, second = lane % 2 ? u.y : other;
    words[0] = __byte_perm(first, second, 0x5410), words[1] = __byte_perm(first, second, 0x7632);
  } else {
    quad = lane / 2 % 4, j = lane / 8 * 2 + lane % 2;
    words[0] = u.x, words[1] = u.y;
  }
  // Stream: [two steps][lane][8 values], so that a lane reads 16 bytes for two steps. Else wgmma's cores.
  if (packing.stream) {
    *reinterpret_cast<uint2*>(packed + (row * chunks + chunk) * 256 + j / 2 * 64 + quad * 16 + j % 2 * 8) = {words[0],
                                                                                                             words[1]};
  } else {
    const int64_t half = (row / kPackedRows * chunks + chunk) * 2 + j / 4;
    uint8_t* to =
        packed + (half * (kPackedRows / 8) + row % kPackedRows / 8) * 1024 + j % 4 * 256 + row % 8 * 16 + quad * 4;
    *reinterpret_cast<uint32_t*>(to) = words[0];
    *reinterpret_cast<uint32_t*>(to + 128) = words[1];
  }
}

}  // namespace deepinfer::ops::cuda
