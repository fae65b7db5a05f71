#include <cuda_bf16.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/pack.cuh"

namespace deepinfer::ops::cuda {
namespace {

// A warp packs one chunk of a row: lane l holds columns 4 l .. 4 l + 3, eight lanes share a scale of FQ8.
__global__ __launch_bounds__(128) void pack_kernel(const __nv_bfloat16* x, int64_t rows, int k, int chunks,
                                                   Packing packing, const int32_t* source_row, uint8_t* packed,
                                                   int64_t stride, int64_t x_between, int rows_between) {
  wait_for_inputs();
  start_next_kernel();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32, row = at / chunks;
  const int chunk = static_cast<int>(at % chunks);
  if (row >= rows) return;
  const int64_t source = source_row != nullptr ? source_row[row] : row;
  uint2 u{};
  if (source >= 0 && kChunk * chunk + 4 * (threadIdx.x % 32) < k)
    u = *reinterpret_cast<const uint2*>(x + blockIdx.y * x_between + source * stride + kChunk * chunk +
                                        4 * (threadIdx.x % 32));
  pack_chunk(u, packing, packed, blockIdx.y * static_cast<int64_t>(rows_between) + row, chunks, chunk);
}

}  // namespace

size_t packed_bytes(int64_t rows, int k) {
  // A stream tile of 16 may begin at the last 8 rows.
  return static_cast<size_t>((rows + 8 + kPackedRows - 1) / kPackedRows * kPackedRows) * ((k + kChunk - 1) / kChunk) *
         kChunk * 2;
}

void pack_activations(const void* x, int64_t rows, int k, Packing packing, const int32_t* source_row, void* packed,
                      cudaStream_t stream, int64_t x_stride, int groups, int64_t x_between) {
  const int chunks = (k + kChunk - 1) / kChunk;
  launch_next(pack_kernel, dim3(static_cast<unsigned>((rows * chunks + 3) / 4), groups), 128, 0, stream,
              static_cast<const __nv_bfloat16*>(x), rows, k, chunks, packing, source_row, static_cast<uint8_t*>(packed),
              x_stride != 0 ? x_stride : k, x_between, group_rows(rows));
}

}  // namespace deepinfer::ops::cuda
