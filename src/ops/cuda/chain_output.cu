// The output projection of one row (chain_few.h): heads are rotated back, wo_a multiplies each group of them, wo_b
// their results.
#include <cuda.h>

#include "ops/cuda/chain.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/launch.h"

namespace deepinfer::ops::cuda {
namespace {

struct OutputArguments {
  ChainWeights w;
  const bf16* heads;
  const float *cos, *sin;
  bf16 *low, *out;
  int width, d, half, group_blocks;  // group_blocks: blocks of wo_a that take the same heads
};

// A chunk of the heads of a group, rotated back and packed, by one warp.
__device__ __forceinline__ void pack_heads(const OutputArguments& a, const bf16* heads, int chunk, uint8_t* to) {
  const int i = kChunk * chunk + 4 * (threadIdx.x % 32), in_head = i % a.d, j = (in_head - (a.d - 2 * a.half)) / 2;
  uint2 u{};
  if (i < a.width) u = *reinterpret_cast<const uint2*>(heads + i);
  if (i < a.width && in_head >= a.d - 2 * a.half) {
    const float2 c = *reinterpret_cast<const float2*>(a.cos + j), s = *reinterpret_cast<const float2*>(a.sin + j);
    bf16* x = reinterpret_cast<bf16*>(&u);
    rotate_pair(x, c.x, -s.x);
    rotate_pair(x + 2, c.y, -s.y);
  }
  pack_chunk(u, {WeightFormat::kFp8, true, false}, to, 0, 0, chunk);
}

// At most 112 registers: a small CTA of another stream finds room beside this one.
__global__ __maxnreg__(112) void output_kernel(const __grid_constant__ OutputArguments a) {
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t full[kChainWarps * kChainSlots];
  const uint32_t ring = (shared_address(unaligned) + 1023) / 1024 * 1024;
  uint8_t* inputs = unaligned + (ring - shared_address(unaligned)) + kChainRingBytes;
  auto* sums = reinterpret_cast<float*>(inputs + kChainInputBytes);
  const uint32_t x = shared_address(inputs);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  ChainStream stream(a.w, ring, full, warp);
  const ChainPart &wo_a = a.w.parts[0], &wo_b = a.w.parts[1];
  const uint32_t scales[2] = {stream.scales<0>(stream.share<0>().block), stream.scales<1>(stream.share<1>().block)};
  start_next_kernel();
  wait_for_inputs();

  if (static_cast<int>(blockIdx.x) * wo_a.each < wo_a.blocks) {
    const bf16* heads = a.heads + static_cast<int64_t>(blockIdx.x * wo_a.each / a.group_blocks) * a.width;
    for (int chunk = warp; chunk < wo_a.chunks; chunk += kChainWarps) pack_heads(a, heads, chunk, inputs);
    __syncthreads();
    stream.product<0>(x, sums, scales[0], [&](int block, float v) {
      if (lane < kBlockRows) a.low[block * kBlockRows + lane] = rounded(v);
      chain_block_done(a.w.progress);
    });
  }
  chain_meet(a.w.progress, wo_a.blocks);
  constexpr int kEach = kChainInputBytes / 256 / kChainWarps;  // chunks of a warp
  uint2 u[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int chunk = warp + n * kChainWarps, i = kChunk * chunk + 4 * lane;
    u[n] = i < wo_a.blocks * kBlockRows ? *reinterpret_cast<const uint2*>(a.low + i) : uint2{};
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int chunk = warp + n * kChainWarps;
    if (chunk < wo_b.chunks) pack_chunk(u[n], {WeightFormat::kFp8, true}, inputs, 0, 0, chunk);
  }
  __syncthreads();
  chain_leave(a.w.progress);
  stream.product<1>(x, sums, scales[1], [&](int block, float v) {
    if (lane < kBlockRows) a.out[block * kBlockRows + lane] = rounded(v);
  });
}

}  // namespace

bool make_tensor_map(const LinearWeights& w, TensorMap* map) {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap) && alignof(CUtensorMap) <= alignof(TensorMap));
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return false;
  }
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(w.k), static_cast<cuuint64_t>(w.n)},
                   stride[1] = {static_cast<cuuint64_t>(w.k)};
  const cuuint32_t box[2] = {kChunk, kBlockRows}, step[2] = {1, 1};
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
             reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(w.codes), size,
             stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool fits(const OutputChain& c) {
  constexpr int kChunks = kChainInputBytes / 256;
  if (!chain_takes(c.wo_a, kChunks) || !chain_takes(c.wo_b, kChunks) || c.wo_a.w.n % c.groups != 0) return false;
  const int rank = c.wo_a.w.n / c.groups, blocks = c.wo_a.w.n / kBlockRows, ctas = multiprocessors(),
            each = (blocks + ctas - 1) / ctas;
  // The blocks of a CTA take the same heads.
  return rank % (kBlockRows * each) == 0 && c.d % 4 == 0 && c.half % 2 == 0;
}

void project_output(const OutputChain& c, cudaStream_t stream) {
  const int blocks = c.wo_a.w.n / kBlockRows, ctas = multiprocessors();
  OutputArguments a{};
  a.w.maps[0] = *c.wo_a.map, a.w.maps[1] = *c.wo_b.map;
  a.w.parts[0] = chain_part(c.wo_a.w, (blocks + ctas - 1) / ctas), a.w.parts[1] = chain_part(c.wo_b.w, 0);
  a.w.progress = c.progress;
  a.heads = static_cast<const bf16*>(c.heads);
  a.cos = c.cos, a.sin = c.sin;
  a.low = static_cast<bf16*>(c.low), a.out = static_cast<bf16*>(c.out);
  a.width = c.width, a.d = c.d, a.half = c.half, a.group_blocks = blocks / c.groups;
  cudaFuncSetAttribute(output_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kChainSharedBytes);
  launch_next(output_kernel, ctas, kChainThreads, kChainSharedBytes, stream, a);
}

}  // namespace deepinfer::ops::cuda
