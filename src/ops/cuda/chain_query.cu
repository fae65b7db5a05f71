// The query projections of one row (chain_few.h): wq_a and wkv, norms, wq_b and RoPE, and the row's window record.
#include <algorithm>

#include "ops/cuda/chain.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/low.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kNormedBytes = kChainInputBytes / 2;  // a normed row lies behind the packed one

struct QueryArguments {
  ChainWeights w;
  const uint8_t* packed;
  const float *q_norm, *kv_norm, *cos, *sin;
  bf16 *low_kv, *low_out, *queries;
  uint8_t* record;
  int low, d, half;
  float eps;
};

__device__ __forceinline__ void low_sync() { group_sync(1 + kChainWarps / kQuarters, kLowThreads); }

// RoPE of a block of query rows: lane r < 16 gives the value of row `row` and gets what is stored.
__device__ __forceinline__ bf16 rotated(const QueryArguments& a, int row, bf16 v) {
  const float other = __shfl_xor_sync(0xffffffffu, value(v), 1);
  const int j = row % a.d - (a.d - 2 * a.half);
  if (j < 0) return v;
  const bool odd = row % 2 != 0;
  bf16 pair[2] = {odd ? rounded(other) : v, odd ? v : rounded(other)};
  rotate_pair(pair, a.cos[j / 2], a.sin[j / 2]);
  return odd ? pair[1] : pair[0];
}

// At most 112 registers: a small CTA of another stream finds room beside this one.
__global__ __maxnreg__(112) void query_kernel(const __grid_constant__ QueryArguments a) {
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t full[kChainWarps * kChainSlots];
  __shared__ float norm_sums[kLowThreads / 32];
  const uint32_t ring = (shared_address(unaligned) + 1023) / 1024 * 1024;
  uint8_t* inputs = unaligned + (ring - shared_address(unaligned)) + kChainRingBytes;
  auto* normed = reinterpret_cast<bf16*>(inputs + kChainInputBytes - kNormedBytes);
  auto* sums = reinterpret_cast<float*>(inputs + kChainInputBytes);
  const uint32_t x = shared_address(inputs);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  ChainStream stream(a.w, ring, full, warp);
  const ChainPart &first = a.w.parts[0], &second = a.w.parts[1];
  const uint32_t scales[2] = {stream.scales<0>(stream.share<0>().block), stream.scales<1>(stream.share<1>().block)};
  const bool norms = threadIdx.x < kLowThreads;
  const NormedRow q_norm(a.q_norm, norms ? a.low : 0);
  start_next_kernel();
  wait_for_inputs();

  if (static_cast<int>(blockIdx.x) * first.each < first.blocks) {
    constexpr int kEach = kChainInputBytes / 16 / kChainThreads;
    uint4 u[kEach];  // all loads before the first store
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kChainThreads + threadIdx.x;
      if (i < first.chunks * 16) u[n] = reinterpret_cast<const uint4*>(a.packed)[i];
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kChainThreads + threadIdx.x;
      if (i < first.chunks * 16) reinterpret_cast<uint4*>(inputs)[i] = u[n];
    }
    __syncthreads();
    stream.product<0>(x, sums, scales[0], [&](int block, float v) {
      if (lane < kBlockRows) a.low_kv[block * kBlockRows + lane] = rounded(v);
      chain_block_done(a.w.progress);
    });
  }
  chain_meet(a.w.progress, first.blocks);
  if (norms) {
    q_norm.put(a.low_kv, a.eps, normed, norm_sums, low_sync);
    for (int chunk = warp; chunk < second.chunks; chunk += kLowThreads / 32) {
      const int i = kChunk * chunk + 4 * lane;
      const uint2 u = i < a.low ? *reinterpret_cast<const uint2*>(normed + i) : uint2{};
      if (blockIdx.x == 0 && i < a.low) *reinterpret_cast<uint2*>(a.low_out + i) = u;
      pack_chunk(u, {WeightFormat::kFp8, true}, inputs, 0, 0, chunk);
    }
  }
  __syncthreads();
  chain_leave(a.w.progress);
  stream.product<1>(x, sums, scales[1], [&](int block, float v) {
    const int row = block * kBlockRows + lane % kBlockRows;
    const bf16 out = rotated(a, row, rounded(v));
    if (lane < kBlockRows) a.queries[row] = out;
  });
  if (blockIdx.x + 1 < gridDim.x || !norms) return;
  const int j = min(static_cast<int>(threadIdx.x), a.half - 1);
  const float cos = a.cos[j], sin = a.sin[j];
  NormedRow(a.kv_norm, a.d).put(a.low_kv + a.low, a.eps, normed, norm_sums, low_sync);
  window_record(normed, a.d, a.half, a.cos, a.sin, cos, sin, a.record, low_sync);
}

}  // namespace

bool fits(const QueryChain& c) {
  constexpr int kChunks = kChainInputBytes / 256;
  const int low = c.wq_a_wkv.w.n - c.d;
  return chain_takes(c.wq_a_wkv, kChunks) && chain_takes(c.wq_b, kChunks - kNormedBytes / 256) && low > 0 &&
         low % 4 == 0 && low <= c.wq_b.w.k && 2 * std::max(c.wq_b.w.k, c.d) <= kNormedBytes && c.d % kBlockRows == 0;
}

void project_queries(const QueryChain& c, cudaStream_t stream) {
  const int blocks = c.wq_a_wkv.w.n / kBlockRows, ctas = multiprocessors();
  QueryArguments a{};
  a.w.maps[0] = *c.wq_a_wkv.map, a.w.maps[1] = *c.wq_b.map;
  a.w.parts[0] = chain_part(c.wq_a_wkv.w, (blocks + ctas - 1) / ctas), a.w.parts[1] = chain_part(c.wq_b.w, 0);
  a.w.progress = c.progress;
  a.packed = c.packed;
  a.q_norm = c.q_norm, a.kv_norm = c.kv_norm, a.cos = c.cos, a.sin = c.sin;
  a.low_kv = static_cast<bf16*>(c.low_kv), a.low_out = static_cast<bf16*>(c.low);
  a.queries = static_cast<bf16*>(c.queries);
  a.record = c.record;
  a.low = c.wq_a_wkv.w.n - c.d, a.d = c.d, a.half = c.half;
  a.eps = c.eps;
  cudaFuncSetAttribute(query_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kChainSharedBytes);
  launch_next(query_kernel, ctas, kChainThreads, kChainSharedBytes, stream, a);
}

}  // namespace deepinfer::ops::cuda
