// What the kernels of linear layers share: the problem as a kernel sees it, stores and launches (internal to
// linear*.cu).
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kWarpgroup = 128;
inline constexpr int kCoreBytes = 128;                              // 8 rows x 16 bytes
inline constexpr int kGroupHalfBytes = kChunk / 16 * kCoreBytes;    // 8 packed rows of half a chunk
inline constexpr int kPackedGroups = kPackedRows / 8;
inline constexpr int kQuarters = 4;
inline constexpr int kWholeChunks = 18;                             // up to this many chunks K is not cut

struct Problem {
  const uint8_t* codes;
  const uint8_t* scales;
  int n, k, chunks;
  int quarter;                   // chunks in each quarter (the last ones may hold fewer); all chunks where K is not cut
  int64_t codes_stride, scales_stride;
  const uint8_t* packed;
  void* y;
  int64_t y_stride;
  const int32_t* x_rows;         // grouped, few rows: row of `packed` behind each packed row, or nullptr
  int rows;                      // plain and batched: rows of each matrix
  int row_tiles, token_tiles;
  int tiles_each, group_rows;    // batched: token tiles and packed rows of each matrix
  int64_t y_group;               // elements between the outputs of two matrices
  const int32_t* y_rows;         // output row of each packed row, or nullptr
  const GroupTile* tiles;        // grouped: else nullptr
  const int32_t* tile_count;
  Shifts shifts;

  __device__ __forceinline__ GroupTile tile(int index, int tokens) const {
    if (tiles != nullptr) return tiles[index];
    const int group = index / tiles_each, first = index % tiles_each * tokens;
    return {group, group * group_rows + first, min(tokens, rows - first)};
  }
  // Where the output of a packed row begins; -1: nowhere.
  __device__ __forceinline__ int64_t output(const GroupTile& g, int token) const {
    const int row = g.first_row + token;
    if (y_rows != nullptr) return y_rows[row] < 0 ? -1 : y_rows[row] * y_stride;
    return tiles != nullptr ? row * y_stride : (row - g.expert * group_rows) * y_stride + g.expert * y_group;
  }
};

template <Output kOutput>
__device__ __forceinline__ void store(void* y, int64_t index, float v) {
  if constexpr (kOutput == Output::kBf16) {
    static_cast<__nv_bfloat16*>(y)[index] = __float2bfloat16_rn(v);
  } else {
    static_cast<float*>(y)[index] = v;
  }
}

template <typename Kernel>
void launch_problem(Kernel kernel, dim3 grid, int threads, int shared_bytes, int cluster, const Problem& p,
                    cudaStream_t stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[3]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // launch.h
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  // Measured: wo_a at 64 rows in 15.3 instead of 22.1 us, perhaps because more clusters of four find places at once.
  attributes[2].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
  attributes[2].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
  config.attrs = attributes;
  config.numAttrs = cluster > 2 ? 3 : cluster > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, p);
}

inline int multiprocessors() {
  int device = 0, count = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// tokens: rows of a tile, 8 or 16 (few), 32, 64 or 128 (many).
// linear_few.cu
void multiply_few(WeightFormat format, Output output, int tokens, const Problem& p, cudaStream_t stream);
// linear_few_fp4.cu
void multiply_few_fp4(Output output, int tokens, const Problem& p, cudaStream_t stream);
// linear_many.cu
void multiply_many(WeightFormat format, Output output, int tokens, const Problem& p, cudaStream_t stream);
// linear_wide.cu: FP8 in prefill. wide_tokens(): rows of a tile, 0 where linear_many.cu is taken to be faster for
// `count` matrices of `rows` rows each.
int wide_tokens(int n, int k, int count, int rows);
void multiply_wide(Output output, int tokens, const Problem& p, cudaStream_t stream);

}  // namespace deepinfer::ops::cuda
