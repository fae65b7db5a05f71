#include <cuda_bf16.h>

#include "ops/cuda/common.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {
namespace {

// One warp packs one row, 32 columns at a time: lane l holds column 32 g + l of group g.
__global__ void pack_kernel(const __nv_bfloat16* x, int64_t rows, int k, int chunks, Packing packing, const int32_t* source_row, uint8_t* packed, int64_t stride) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int64_t source = source_row != nullptr ? source_row[row] : row;
  for (int g = 0; g < chunks * 4; ++g) {
    const int column = 32 * g + lane, in_chunk = column % kChunk;
    float v = source >= 0 && column < k ? __bfloat162float(x[source * stride + column]) : 0.0f;
    if (packing.format != WeightFormat::kBf16 && packing.quantise) {
      float amax = fabsf(v);
#pragma unroll
      for (int o = 16; o > 0; o /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
      v = fake_quantise_fp8(v, amax);
    }
    int quad, j, e, half;  // the inverse of packed_column
    if (packing.format == WeightFormat::kFp8) {
      quad = in_chunk / 16 % 4, j = in_chunk / 64 * 4 + in_chunk / 4 % 4, e = in_chunk % 2, half = in_chunk / 2 % 2;
    } else if (packing.format == WeightFormat::kFp4) {
      quad = in_chunk / 32, j = in_chunk / 8 % 4 * 2 + in_chunk / 2 % 2, e = in_chunk % 2, half = in_chunk / 4 % 2;
    } else {
      quad = in_chunk / 8 % 4, j = in_chunk / 32 * 2 + in_chunk / 4 % 2, e = in_chunk / 2 % 2, half = in_chunk % 2;
    }
    // Stream: [two steps][lane][8 values], so that a lane reads 16 bytes for two steps. Else wgmma's cores.
    const int chunk = g / 4;
    const int64_t at = packing.stream ? (row * chunks + chunk) * 256 + j / 2 * 64 + quad * 16 + j % 2 * 8 + e * 4 + half * 2
                                      : ((row / kPackedRows * chunks + chunk) * (kPackedRows / 8) + row % kPackedRows / 8) * 2048 + (2 * j + e) * 128 + row % 8 * 16 +
                                            quad * 4 + half * 2;
    *reinterpret_cast<__nv_bfloat16*>(packed + at) = __float2bfloat16_rn(v);
  }
}

}  // namespace

size_t packed_bytes(int64_t rows, int k) {
  // A stream tile of 16 may begin at the last 8 rows.
  return static_cast<size_t>((rows + 8 + kPackedRows - 1) / kPackedRows * kPackedRows) * ((k + kChunk - 1) / kChunk) * kChunk * 2;
}

void pack_activations(const void* x, int64_t rows, int k, Packing packing, const int32_t* source_row, void* packed, cudaStream_t stream,
                      int64_t x_stride) {
  constexpr int kWarps = 4;
  pack_kernel<<<static_cast<unsigned>((rows + kWarps - 1) / kWarps), 32 * kWarps, 0, stream>>>(
      static_cast<const __nv_bfloat16*>(x), rows, k, (k + kChunk - 1) / kChunk, packing, source_row, static_cast<uint8_t*>(packed), x_stride != 0 ? x_stride : k);
}

}  // namespace deepinfer::ops::cuda
