// Both products of routed experts in one persistent kernel (experts_few.h). CTAs first take units of the first product,
// 32 channels of an expert's hidden vector each: eight warps are four quarters of K times gate and up. Then warps take
// units of the second, 16 rows each, as soon as all hidden channels of the expert are there. The copies of a warp run
// ahead through both, a ring of slots of two tiles (weights.cuh) each.
#include "ops/cuda/experts_few.h"

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/problem.cuh"
#include "ops/cuda/swiglu.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kWarps = 2 * kQuarters, kThreads = 32 * kWarps, kCtas = 2, kTokens = 8, kUnit = 32;
constexpr int kSlotBytes = 2 * kFp4TileBytes, kPartialFloats = kQuarters * kTokens * 2 * kUnit;
constexpr int kSlots = ((226 << 10) / kCtas - 2048 - 4 * kPartialFloats) / (kWarps * kSlotBytes);
constexpr int kSharedBytes = kWarps * kSlots * kSlotBytes + 4 * kPartialFloats;
static_assert(kSlots >= 4);

struct Arguments {
  FewExperts e;
  int up_chunks, up_quarter;  // of the first product; all chunks where K is not cut
  int down_chunks, units;     // of the second; units of the first in an expert
  Shifts shifts;
};

// Tile `index` of those of a single row: shared memory.
struct Choice {
  int expert, pair;
};

__device__ __forceinline__ int acquire(const int32_t* p) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void add_release(int32_t* p) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p) : "memory");
}

using F = Fragment<WeightFormat::kFp4>;

// A lane's part of a tile in shared memory.
struct Tile {
  uint4 v[2][1];
  uint32_t f[F::kFactors];

  __device__ __forceinline__ void read(const uint8_t* at, int lane) {
    const int quad = lane % 4;
    uint32_t scales[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      v[h][0] = *reinterpret_cast<const uint4*>(at + (lane / 4 + 8 * h) * 64 + quad * 16);
      scales[h] = *reinterpret_cast<const uint32_t*>(at + 1024 + (lane / 4 + 8 * h) * 4);
    }
    F::factors(scales[0], scales[1], quad, f);
  }
  __device__ __forceinline__ void multiply(int j, const uint4& b, const Shifts& s, float (&acc)[4]) const {
    uint32_t a[4];
    F::expand(v, j, f, s, a);
    mma_bf16(acc, a, j % 2 ? b.z : b.x, j % 2 ? b.w : b.y);
  }
};

// What a warp copies, in the order in which it multiplies.
struct Ahead {
  const uint8_t* from = nullptr;
  int left = 0;          // chunks (first product) or chunks of one tile (second) of the unit
  bool second = false;
  int unit;              // of the product at hand
};

__global__ __launch_bounds__(kThreads, kCtas) void few_experts_kernel(const Arguments a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t full[kWarps][kSlots];
  __shared__ Choice choices[kFewTiles];
  __shared__ int choice_count;
  const FewExperts& e = a.e;
  float* partial = reinterpret_cast<float*>(shared + kWarps * kSlots * kSlotBytes);  // [quarter][token][gate, up][32]
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32,
            quad = lane % 4;
  const int quarter = warp / 2, first = min(quarter * a.up_quarter, a.up_chunks),
            last = min(a.up_chunks, first + a.up_quarter);
  uint8_t* ring = shared + warp * kSlots * kSlotBytes;
  if (lane == 0) {
    for (int i = 0; i < kSlots; ++i) barrier_init(&full[warp][i], 1);
    barrier_init_fence();
  }
  wait_for_inputs();
  start_next_kernel();
  if (e.ids != nullptr) {
    if (warp == 0) {
      const int id = lane < e.choices ? e.ids[lane] : -1;
      const bool here = id >= 0 && id < e.mine;
      const unsigned all = __ballot_sync(0xffffffffu, here);
      if (here) choices[__popc(all & ((1u << lane) - 1))] = {e.slot_of != nullptr ? e.slot_of[id] : id, lane};
      if (lane == 0) choice_count = __popc(all);
    }
  } else if (threadIdx.x == 0) {
    choice_count = min(*e.tile_count, e.max_tiles);
  }
  __syncthreads();
  const int tiles = choice_count, up_total = tiles * a.units, blocks = e.w2.n / 16, down_total = tiles * blocks;
  const auto tile_of = [&](int t) {
    return e.ids != nullptr ? GroupTile{choices[t].expert, kTokens * t, 1} : e.tiles[t];
  };
  const auto pair_of = [&](int t, int packed_row) { return e.ids != nullptr ? choices[t].pair : e.pairs[packed_row]; };
  // The CTAs with fewer units of the first product have the more of the second.
  const int down_first = warp * gridDim.x + (gridDim.x - 1 - blockIdx.x), down_step = kWarps * gridDim.x;

  // One lane starts the copies.
  const uint64_t policy = read_once();
  Ahead ahead{.unit = static_cast<int>(blockIdx.x)};
  const auto next_unit = [&] {
    if (!ahead.second) {
      if (first < last && ahead.unit < up_total) {
        const int t = ahead.unit / a.units, channels = ahead.unit % a.units;
        ahead.from = static_cast<const uint8_t*>(e.w1_w3.codes) + tile_of(t).expert * e.w1_w3.codes_stride +
                     fp4_tile(2 * (channels + warp % 2 * a.units), first, a.up_chunks);
        ahead.left = last - first;
        ahead.unit += gridDim.x;
        return;
      }
      ahead.second = true;
      ahead.unit = down_first;
    }
    if (ahead.unit >= down_total) return;
    ahead.from = static_cast<const uint8_t*>(e.w2.codes) + tile_of(ahead.unit / blocks).expert * e.w2.codes_stride +
                 fp4_tile(ahead.unit % blocks, 0, a.down_chunks);
    ahead.left = a.down_chunks;
    ahead.unit += down_step;
  };
  const auto issue = [&](int slot) {
    if (ahead.left == 0) {
      next_unit();
      if (ahead.left == 0) return;
    }
    const uint32_t to = shared_address(ring + slot * kSlotBytes), barrier = shared_address(&full[warp][slot]);
    if (!ahead.second) {
      barrier_expect(barrier, kSlotBytes);
      bulk_load(to, ahead.from, kSlotBytes, barrier, policy);
      ahead.from += kSlotBytes;
      --ahead.left;
      return;
    }
    const bool both = ahead.left > 1;
    barrier_expect(barrier, both ? kSlotBytes : kFp4TileBytes);
    bulk_load(to, ahead.from, kFp4TileBytes, barrier, policy);
    if (both) bulk_load(to + kFp4TileBytes, ahead.from + kSlotBytes, kFp4TileBytes, barrier, policy);
    ahead.from += 2 * kSlotBytes;
    ahead.left -= both ? 2 : 1;
  };
  if (lane == 0) {
    for (int i = 0; i < kSlots - 1; ++i) issue(i);
  }
  __syncwarp();

  // Copies go into the slot that was read last: what was read from it has arrived in registers, since it has been used.
  int slot = 0, free_slot = kSlots - 1, phase = 0;
  const auto next_slot = [&] {
    __syncwarp();
    if (lane == 0) issue(free_slot);
    free_slot = slot;
    if (++slot == kSlots) slot = 0, phase ^= 1;
  };

  for (int unit = blockIdx.x; unit < up_total; unit += gridDim.x) {
    const int t = unit / a.units, channels = unit % a.units;
    const GroupTile group = tile_of(t);
    const int row = group.first_row + min(lane / 4, group.rows - 1);
    const uint8_t* x =
        e.packed + (static_cast<int64_t>(e.ids != nullptr ? 0 : e.x_rows[row]) * a.up_chunks + first) * 256 + quad * 16;
    float acc[2][4] = {};
    uint4 even[4], odd[4];
    const auto load = [&](uint4 (&to)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = *reinterpret_cast<const uint4*>(x + i * 64);
      x += 256;
    };
    const auto chunk = [&](const uint4 (&b)[4], uint4 (&next)[4], bool more) {
      if (more) load(next);
      barrier_wait(&full[warp][slot], phase);
      Tile tile[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) tile[i].read(ring + slot * kSlotBytes + i * kFp4TileBytes, lane);
      next_slot();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) tile[i].multiply(j, b[j / 2], a.shifts, acc[i]);
      }
    };
    if (first < last) load(even);
    for (int c = first; c < last;) {
      const bool more = ++c < last;
      chunk(even, odd, more);
      if (!more) break;
      chunk(odd, even, ++c < last);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        partial[(quarter * kTokens + 2 * quad + k % 2) * 2 * kUnit + warp % 2 * kUnit + 16 * i + lane / 4 + 8 * (k / 2)] =
            acc[i][k];
    }
    __syncthreads();
    // Warp: token, lane: channel.
    if (warp < group.rows) {
      const float* p = partial + warp * 2 * kUnit + lane;
      constexpr int kNext = kTokens * 2 * kUnit;
      float sum[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* q = p + i * kUnit;
        sum[i] = a.up_quarter < a.up_chunks ? ((q[0] + q[kNext]) + q[2 * kNext]) + q[3 * kNext] : q[0];
        sum[i] = value(rounded(sum[i]));
      }
      const int packed_row = group.first_row + warp, pair = pair_of(t, packed_row);
      if (pair >= 0) {
        const bf16 h = rounded(swiglu(sum[0], sum[1], e.limit) * e.weights[pair]);
        const bf16 q = rounded(fake_quantise_fp8(value(h), warp_max(fabsf(value(h)))));
        // Column 8 i + 4 half + 2 j + pair of registers: the inverse of packed_column().
        uint8_t* to = e.hidden + (static_cast<int64_t>(packed_row) * a.down_chunks + channels / 4) * 256 +
                      lane / 8 * 64 + channels % 4 * 16 + lane / 2 % 2 * 8 + lane % 2 * 4 + lane / 4 % 2 * 2;
        *reinterpret_cast<bf16*>(to) = q;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) add_release(&e.progress[t]);
  }

  for (int unit = down_first; unit < down_total; unit += down_step) {
    const int t = unit / blocks, row0 = unit % blocks * 16;
    const GroupTile group = tile_of(t);
    const uint8_t* x =
        e.hidden + static_cast<int64_t>(group.first_row + min(lane / 4, group.rows - 1)) * a.down_chunks * 256 + quad * 16;
    if (lane == 0) {
      while (acquire(&e.progress[t]) < a.units) {
      }
    }
    __syncwarp();
    float acc[4] = {};
    uint4 even[4], odd[4];
    const auto load = [&](uint4 (&to)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = *reinterpret_cast<const uint4*>(x + i * 64);
      x += 256;
    };
    load(even);
    for (int c = 0; c < a.down_chunks; c += 2) {
      const bool both = c + 1 < a.down_chunks;
      if (both) load(odd);
      barrier_wait(&full[warp][slot], phase);
      Tile tile[2];
      tile[0].read(ring + slot * kSlotBytes, lane);
      if (both) tile[1].read(ring + slot * kSlotBytes + kFp4TileBytes, lane);
      next_slot();
#pragma unroll
      for (int j = 0; j < 8; ++j) tile[0].multiply(j, even[j / 2], a.shifts, acc);
      if (!both) break;
      if (c + 2 < a.down_chunks) load(even);
#pragma unroll
      for (int j = 0; j < 8; ++j) tile[1].multiply(j, odd[j / 2], a.shifts, acc);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = 2 * quad + k % 2;
      if (token >= group.rows) continue;
      const int pair = pair_of(t, group.first_row + token);
      if (pair >= 0)
        store<Output::kBf16>(e.out, static_cast<int64_t>(pair) * e.w2.n + row0 + lane / 4 + 8 * (k / 2), acc[k]);
    }
  }

  // The last CTA leaves zeros behind.
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&e.progress[kFewTiles], 1) != static_cast<int>(gridDim.x) - 1) return;
  for (int i = 0; i <= kFewTiles; ++i) e.progress[i] = 0;
}

}  // namespace

bool fits_few_experts(const LinearWeights& w1_w3, const LinearWeights& w2, int max_tiles) {
  const int inter = w1_w3.n / 2;
  return w1_w3.format == WeightFormat::kFp4 && w2.format == WeightFormat::kFp4 && max_tiles <= kFewTiles &&
         inter % kChunk == 0 && w2.k == inter && w2.k / kChunk <= kWholeChunks && w2.n % 16 == 0;
}

void few_experts(const FewExperts& e, cudaStream_t stream) {
  Arguments a{};
  a.e = e;
  a.up_chunks = e.w1_w3.k / kChunk;
  a.up_quarter = a.up_chunks <= kWholeChunks ? a.up_chunks : (a.up_chunks + kQuarters - 1) / kQuarters;
  a.down_chunks = e.w2.k / kChunk;
  a.units = e.w2.k / kUnit;
  cudaFuncSetAttribute(few_experts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  // All CTAs run at once: those of the second product wait for others' sums of the first.
  launch_next(few_experts_kernel, kCtas * multiprocessors(), kThreads, kSharedBytes, stream, a);
}

}  // namespace deepinfer::ops::cuda
