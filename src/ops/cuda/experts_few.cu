// Both products of routed experts in one persistent kernel (experts_few.h). CTAs first take units of the first product,
// 32 channels of an expert's hidden vector each: eight warps are four quarters of K times gate and up. Then warps take
// units of the second, 16 rows each, as soon as all hidden channels of the expert are there; those of the shared expert
// come first. The copies of a warp run ahead through all, a ring of slots: two tiles (weights.cuh), or one of FP8.
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
constexpr int kActivationBytes = kWholeChunks * kChunk * 2;  // one hidden vector of the shared expert
constexpr int kSlots =
    ((226 << 10) / kCtas - 2048 - 4 * kPartialFloats - kActivationBytes) / (kWarps * kSlotBytes);
constexpr int kSharedBytes = kWarps * kSlots * kSlotBytes + 4 * kPartialFloats + kActivationBytes;
static_assert(kSlots >= 4);

struct Arguments {
  FewExperts e;
  int up_chunks, up_quarter;  // of the first product; all chunks where K is not cut
  int down_chunks, units;     // of the second; units of the first in an expert
  int shared_chunks, shared_blocks;  // of the shared expert: chunks and blocks of 16 rows
  Shifts shifts;
};

// Tile `index` of those of a single row: shared memory.
struct Choice {
  int expert, pair;
};

__device__ __forceinline__ int relaxed(const int32_t* p) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
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

  __device__ __forceinline__ void read(uint32_t at, int lane) {
    const int quad = lane % 4;
    uint32_t scales[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      v[h][0] = shared_load(at + (lane / 4 + 8 * h) * 64 + quad * 16);
      scales[h] = shared_load_word(at + 1024 + (lane / 4 + 8 * h) * 4);
    }
    F::factors(scales[0], scales[1], quad, f);
  }
  __device__ __forceinline__ void multiply(int j, const uint4& b, const Shifts& s, float (&acc)[4]) const {
    uint32_t a[4];
    F::expand(v, j, f, s, a);
    mma_bf16(acc, a, j % 2 ? b.z : b.x, j % 2 ? b.w : b.y);
  }
};

using F8 = Fragment<WeightFormat::kFp8>;
constexpr int kVectorBytes = 32 * 16;  // of a warp's slot of FP8

// A lane's part of a tile of the shared expert.
struct SharedTile {
  uint4 v[2][2];
  uint32_t f[F8::kFactors];

  __device__ __forceinline__ void read(uint32_t at, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) v[h][i] = shared_load(at + (2 * h + i) * kVectorBytes + lane * 16);
    }
    F8::factors(shared_load_word(at + 4 * kVectorBytes), 0, lane % 4, f);
  }
  __device__ __forceinline__ void multiply(int j, const uint4& b, const Shifts& s, float (&acc)[4]) const {
    uint32_t a[4];
    F8::expand(v, j, f, s, a);
    mma_bf16(acc, a, j % 2 ? b.z : b.x, j % 2 ? b.w : b.y);
  }
};

// What a warp copies, in the order in which it multiplies.
struct Ahead {
  enum Phase { kUp, kShared, kDown } phase = kUp;
  int unit = 0, left = 0;  // next unit of the phase; chunks left of the one at hand
  const uint8_t *from = nullptr, *scales = nullptr;
};

// Where a CTA's or a warp's units begin, and how far they lie apart.
struct Walk {
  int quarter, first, last;         // chunks of a quarter of K
  int shared, shared_step, down;    // first units
  int up_total, blocks, down_total;

  __device__ __forceinline__ Walk(const Arguments& a, int tiles) {
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), ctas = gridDim.x,
              place = ctas - 1 - static_cast<int>(blockIdx.x);
    quarter = warp / 2;
    first = min(quarter * a.up_quarter, a.up_chunks);
    last = min(a.up_chunks, first + a.up_quarter);
    blocks = a.e.w2.n / 16;
    up_total = tiles * a.units, down_total = tiles * blocks;
    // The CTAs at the end, which have fewer units of the first product, have the shared expert's and the more of the
    // second product's. The warps of a CTA share a hidden vector.
    const int light = ctas - up_total % ctas;
    shared = place < light ? warp * light + place : a.shared_blocks;
    shared_step = kWarps * light;
    down = place * kWarps + warp;
  }
};

__device__ __forceinline__ GroupTile tile_of(const FewExperts& e, const Choice* choices, int t) {
  return e.ids != nullptr ? GroupTile{choices[t].expert, kTokens * t, 1} : e.tiles[t];
}

// The warp's next unit; left stays 0 where there is none. Not inlined: every place that starts a copy would hold it,
// and code comes from memory too.
__device__ __noinline__ Ahead next_unit(Ahead ahead, const Arguments& a, const Choice* choices, int tiles) {
  const FewExperts& e = a.e;
  const Walk walk(a, tiles);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, ctas = gridDim.x;
  if (ahead.phase == Ahead::kUp) {
    if (walk.first < walk.last && ahead.unit < walk.up_total) {
      const int channels = ahead.unit % a.units;
      ahead.from = static_cast<const uint8_t*>(e.w1_w3.codes) +
                   tile_of(e, choices, ahead.unit / a.units).expert * e.w1_w3.codes_stride +
                   fp4_tile(2 * (channels + warp % 2 * a.units), walk.first, a.up_chunks);
      ahead.left = walk.last - walk.first;
      ahead.unit += ctas;
      return ahead;
    }
    ahead.phase = Ahead::kShared;
    ahead.unit = walk.shared;
  }
  if (ahead.phase == Ahead::kShared) {
    if (ahead.unit < a.shared_blocks) {
      const LinearWeights& w = e.shared.w2;
      ahead.from =
          static_cast<const uint8_t*>(w.codes) + static_cast<int64_t>(16 * ahead.unit + lane / 4) * w.k + lane % 4 * 16;
      ahead.scales = w.scales + static_cast<int64_t>(ahead.unit / 2) * (w.k / 32);
      ahead.left = a.shared_chunks;
      ahead.unit += walk.shared_step;
      return ahead;
    }
    ahead.phase = Ahead::kDown;
    ahead.unit = walk.down;
  }
  if (ahead.unit >= walk.down_total) return ahead;
  ahead.from = static_cast<const uint8_t*>(e.w2.codes) +
               tile_of(e, choices, ahead.unit / walk.blocks).expert * e.w2.codes_stride +
               fp4_tile(ahead.unit % walk.blocks, 0, a.down_chunks);
  ahead.left = a.down_chunks;
  ahead.unit += kWarps * ctas;
  return ahead;
}

// Brings activations into the L1 cache, so that only the first chunk waits for them.
__device__ __forceinline__ void touch(const uint8_t* p, int64_t stride, int rows, int chunks, int lane) {
  for (int row = 0; row < rows; ++row) {
    for (int i = lane; i < 2 * chunks; i += 32) {
      [[maybe_unused]] uint32_t unused;
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(unused) : "l"(p + row * stride + i * 128) : "memory");
    }
  }
}

// At most 112 registers: a small CTA of another stream finds room beside two of these.
__global__ __maxnreg__(112) void few_experts_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t full[2][kWarps][kSlots];  // bulk copies; copies of the lanes
  __shared__ Choice choices[8];
  __shared__ int choice_count;
  const FewExperts& e = a.e;
  float* partial = reinterpret_cast<float*>(shared + kWarps * kSlots * kSlotBytes);  // [quarter][token][gate, up][32]
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32,
            quad = lane % 4, ctas = gridDim.x, cta = blockIdx.x;
  const uint32_t ring = shared_address(shared) + warp * kSlots * kSlotBytes,
                 barriers[2] = {shared_address(&full[0][warp][0]), shared_address(&full[1][warp][0])};
  if (lane == 0) {
    for (int i = 0; i < kSlots; ++i) barrier_init(&full[0][warp][i], 1), barrier_init(&full[1][warp][i], 32);
    barrier_init_fence();
  }
  __syncwarp();

  const SharedExpert& s = e.shared;
  const auto pair_of = [&](int t, int packed_row) { return e.ids != nullptr ? choices[t].pair : e.pairs[packed_row]; };
  const uint64_t policy = read_once();
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
  const int tiles = choice_count;
  const Walk walk(a, tiles);
  Ahead ahead{.unit = cta};
  const auto issue = [&](int slot) {
    if (ahead.left == 0) {
      ahead = next_unit(ahead, a, choices, tiles);
      if (ahead.left == 0) return;
    }
    const uint32_t to = ring + slot * kSlotBytes;
    if (ahead.phase == Ahead::kShared) {
      uint32_t mine;
      asm volatile("mad.lo.u32 %0, %1, 16, %2;" : "=r"(mine) : "r"(lane), "r"(to));  // one register: linear_few.cu
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          async_load_16(mine + (2 * h + i) * kVectorBytes, ahead.from + h * 8 * s.w2.k + i * 64, policy);
      }
      if (lane == 0) async_load<4>(to + 4 * kVectorBytes, ahead.scales);
      barrier_arrive_after_loads(barriers[1] + 8 * slot);
      ahead.from += kChunk;
      ahead.scales += 4;
      --ahead.left;
      return;
    }
    const bool up = ahead.phase == Ahead::kUp, two = up || ahead.left > 1;
    if (lane == 0) {
      const uint32_t barrier = barriers[0] + 8 * slot;
      barrier_expect(barrier, two ? kSlotBytes : kFp4TileBytes);
      bulk_load(to, ahead.from, up ? kSlotBytes : kFp4TileBytes, barrier, policy);
      if (!up && two) bulk_load(to + kFp4TileBytes, ahead.from + kSlotBytes, kFp4TileBytes, barrier, policy);
    }
    ahead.from += up ? kSlotBytes : 2 * kSlotBytes;
    ahead.left -= up || !two ? 1 : 2;
  };
  for (int i = 0; i < kSlots - 1; ++i) issue(i);

  // Copies go into the slot that was read last: what was read from it has arrived in registers, since it has been used.
  int slot = 0, free_slot = kSlots - 1;
  uint32_t phases[2] = {};  // a bit a slot
  const auto await_slot = [&](int kind) {
    barrier_wait(barriers[kind] + 8 * slot, phases[kind] >> slot & 1);
    phases[kind] ^= 1u << slot;
    return ring + slot * kSlotBytes;
  };
  const auto next_slot = [&] {
    __syncwarp();
    issue(free_slot);
    free_slot = slot;
    if (++slot == kSlots) slot = 0;
  };
  const auto load_four = [](const uint8_t*& x, uint4 (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = *reinterpret_cast<const uint4*>(x + i * 64);
    x += 256;
  };
  const auto sum_of = [&](const float* q, int next) {
    return a.up_quarter < a.up_chunks ? ((q[0] + q[next]) + q[2 * next]) + q[3 * next] : q[0];
  };

  const int quarter = walk.quarter, first = walk.first, last = walk.last;
  for (int unit = cta; unit < walk.up_total; unit += ctas) {
    const int t = unit / a.units, channels = unit % a.units;
    const GroupTile group = tile_of(e, choices, t);
    const int row = group.first_row + min(lane / 4, group.rows - 1);
    const uint8_t* x =
        e.packed + (static_cast<int64_t>(e.ids != nullptr ? 0 : e.x_rows[row]) * a.up_chunks + first) * 256 + quad * 16;
    float acc[2][4] = {};
    uint4 even[4], odd[4];
    const auto chunk = [&](const uint4 (&b)[4], uint4 (&next)[4], bool more) {
      if (more) load_four(x, next);
      const uint32_t at = await_slot(0);
      Tile tile[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) tile[i].read(at + i * kFp4TileBytes, lane);
      next_slot();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) tile[i].multiply(j, b[j / 2], a.shifts, acc[i]);
      }
    };
    if (e.ids != nullptr && unit == cta) touch(e.packed + first * 256, 0, 1, last - first, lane);
    if (first < last) load_four(x, even);
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
        partial[(quarter * kTokens + 2 * quad + k % 2) * 2 * kUnit + warp % 2 * kUnit + 16 * i + lane / 4 +
                8 * (k / 2)] = acc[i][k];
    }
    __syncthreads();
    // Warp: token, lane: channel.
    if (warp < group.rows) {
      const float* q = partial + warp * 2 * kUnit + lane;
      constexpr int kNext = kTokens * 2 * kUnit;
      const float gate = value(rounded(sum_of(q, kNext))), up = value(rounded(sum_of(q + kUnit, kNext)));
      const int packed_row = group.first_row + warp, pair = pair_of(t, packed_row);
      if (pair >= 0) {
        const bf16 h = rounded(swiglu(gate, up, e.limit) * e.weights[pair]);
        // Column 8 i + 4 half + 2 j + pair of registers: the inverse of packed_column().
        uint8_t* to = e.hidden + (static_cast<int64_t>(packed_row) * a.down_chunks + channels / 4) * 256 +
                      lane / 8 * 64 + channels % 4 * 16 + lane / 2 % 2 * 8 + lane % 2 * 4 + lane / 4 % 2 * 2;
        *reinterpret_cast<bf16*>(to) = rounded(fake_quantise_fp8(value(h), warp_max(fabsf(value(h)))));
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) add_release(&e.progress[t]);
  }

  const auto await_progress = [&](int of, int units) {
    // An acquire empties the L1 cache, which others of the SM use: one, at the end.
    if (lane == 0) {
      while (relaxed(&e.progress[of]) < units) {
      }
      __threadfence();
    }
    __syncwarp();
  };
  if (walk.shared < a.shared_blocks) {
    // One row's hidden vector comes into shared memory: a load to registers waits in line behind the weights that lanes
    // copy, for every chunk. Every warp writes all that it reads; others write the same.
    const uint8_t* hidden =
        s.hidden + static_cast<int64_t>(min(lane / 4, s.rows - 1)) * a.shared_chunks * 256 + quad * 16;
    const bool resident = s.rows == 1;
    uint8_t* kept = shared + kWarps * kSlots * kSlotBytes + 4 * kPartialFloats;
    for (int i = 16 * lane; resident && i < a.shared_chunks * 256; i += 16 * 32)
      *reinterpret_cast<uint4*>(kept + i) = *reinterpret_cast<const uint4*>(s.hidden + i);
    __syncwarp();
    for (int unit = walk.shared; unit < a.shared_blocks; unit += walk.shared_step) {
      float acc[4] = {};
      for (int c = 0; c < a.shared_chunks; ++c) {
        uint4 b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          b[i] = resident ? shared_load(shared_address(kept) + c * 256 + quad * 16 + i * 64)
                          : *reinterpret_cast<const uint4*>(hidden + c * 256 + i * 64);
        SharedTile tile;
        tile.read(await_slot(1), lane);
        next_slot();
#pragma unroll
        for (int j = 0; j < 8; ++j) tile.multiply(j, b[j / 2], a.shifts, acc);
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int token = 2 * quad + k % 2;
        if (token < s.rows)
          store<Output::kBf16>(s.out, static_cast<int64_t>(token) * s.w2.n + 16 * unit + lane / 4 + 8 * (k / 2),
                               acc[k]);
      }
    }
  }

  for (int unit = walk.down; unit < walk.down_total; unit += kWarps * ctas) {
    const int t = unit / walk.blocks, row0 = unit % walk.blocks * 16;
    const GroupTile group = tile_of(e, choices, t);
    const uint8_t* x = e.hidden +
                       static_cast<int64_t>(group.first_row + min(lane / 4, group.rows - 1)) * a.down_chunks * 256 +
                       quad * 16;
    await_progress(t, a.units);
    touch(e.hidden + static_cast<int64_t>(group.first_row) * a.down_chunks * 256, a.down_chunks * 256, group.rows,
          a.down_chunks, lane);
    float acc[4] = {};
    uint4 even[4], odd[4];
    load_four(x, even);
    for (int c = 0; c < a.down_chunks; c += 2) {
      const bool both = c + 1 < a.down_chunks;
      if (both) load_four(x, odd);
      const uint32_t at = await_slot(0);
      Tile tile[2];
      tile[0].read(at, lane);
      if (both) tile[1].read(at + kFp4TileBytes, lane);
      next_slot();
#pragma unroll
      for (int j = 0; j < 8; ++j) tile[0].multiply(j, even[j / 2], a.shifts, acc);
      if (!both) break;
      if (c + 2 < a.down_chunks) load_four(x, even);
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
  if (threadIdx.x == 0) {
    __threadfence();
    choice_count = atomicAdd(&e.progress[kFewTiles], 1);
  }
  __syncthreads();
  if (choice_count != ctas - 1) return;
  for (int i = threadIdx.x; i <= kFewTiles; i += kThreads) e.progress[i] = 0;
}

}  // namespace

bool fits_few_experts(const LinearWeights& w1_w3, const LinearWeights& w2, int max_tiles) {
  const int inter = w1_w3.n / 2;
  return w1_w3.format == WeightFormat::kFp4 && w2.format == WeightFormat::kFp4 && max_tiles <= kFewTiles &&
         inter % kChunk == 0 && w2.k == inter && w2.k / kChunk <= kWholeChunks && w2.n % 16 == 0;
}

bool fits_shared_expert(const LinearWeights& w2, int rows) {
  return w2.format == WeightFormat::kFp8 && rows <= kTokens && w2.k / kChunk <= kWholeChunks && w2.n % 16 == 0;
}

void few_experts(const FewExperts& e, cudaStream_t stream) {
  Arguments a{};
  a.e = e;
  a.up_chunks = e.w1_w3.k / kChunk;
  a.up_quarter = a.up_chunks <= kWholeChunks ? a.up_chunks : (a.up_chunks + kQuarters - 1) / kQuarters;
  a.down_chunks = e.w2.k / kChunk;
  a.units = e.w2.k / kUnit;
  if (e.shared.w2.codes != nullptr) a.shared_chunks = e.shared.w2.k / kChunk, a.shared_blocks = e.shared.w2.n / 16;
  cudaFuncSetAttribute(few_experts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  // All CTAs run at once: those of the second product wait for others' sums of the first.
  launch_next(few_experts_kernel, kCtas * multiprocessors(), kThreads, kSharedBytes, stream, a);
}

}  // namespace deepinfer::ops::cuda
