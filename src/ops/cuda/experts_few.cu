// Both products of one row's experts in one persistent kernel (experts_few.h). CTAs first take units of the first
// product, 32 channels of an expert's hidden vector each: eight warps are four quarters of K times gate and up. Then
// they take units of the second, 16 rows of weights a warp, as soon as all hidden channels of the expert are there;
// those of the shared expert come first. The copies of a warp run ahead through all, a ring of slots: two tiles
// (weights.cuh), or one of FP8. Loops are short, so that the schedulers' instruction caches hold them.
#include "ops/cuda/experts_few.h"

#include "ops/cuda/launch.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/problem.cuh"
#include "ops/cuda/swiglu.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kWarps = 2 * kQuarters, kThreads = 32 * kWarps, kCtas = 2, kUnit = 32;
constexpr int kSlotBytes = 2 * kFp4TileBytes;
constexpr int kInputChunks = 48, kInputBytes = kInputChunks * 256;  // a packed row
constexpr int kSumFloats = kQuarters * 2 * kUnit;                   // [quarter][gate, up][32], twice
constexpr int kSlots = ((226 << 10) / kCtas - 2048 - 8 * kSumFloats - kInputBytes) / (kWarps * kSlotBytes);
constexpr int kRingBytes = kWarps * kSlots * kSlotBytes, kSharedBytes = kRingBytes + kInputBytes + 8 * kSumFloats;
static_assert(kSlots >= 4 && kInputChunks >= kWholeChunks);

struct Arguments {
  FewExperts e;
  int up_chunks, up_quarter;  // of the first product; all chunks where K is not cut
  int down_chunks, units;     // of the second; units of the first in an expert
  int shared_chunks, shared_blocks;  // of the shared expert: chunks and blocks of 16 rows
  Shifts shifts;
};

// One of the row's experts that are ours: where its weights are, and which choice it was.
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

// Where a CTA's or a warp's units begin, and how far they lie apart.
struct Walk {
  int quarter, first, last;          // chunks of a quarter of K
  int light, shared, shared_step;    // CTAs that take blocks of the shared expert; a warp's first one
  int place, up_total, down_each, down_total;  // units of a CTA; down_each: of an expert in the second product

  __device__ __forceinline__ Walk(const Arguments& a, int experts) {
    const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), ctas = gridDim.x;
    place = ctas - 1 - static_cast<int>(blockIdx.x);
    quarter = warp / 2;
    first = min(quarter * a.up_quarter, a.up_chunks);
    last = min(a.up_chunks, first + a.up_quarter);
    up_total = experts * a.units;
    down_each = a.e.w2.n / (16 * kWarps), down_total = experts * down_each;
    // The CTAs at the end, which have fewer units of the first product, have the shared expert's and the more of the
    // second product's.
    light = ctas - up_total % ctas;
    shared = place < light ? warp * light + place : a.shared_blocks;
    shared_step = kWarps * light;
  }
};

// What a warp copies, in the order in which it multiplies.
struct Ahead {
  enum Phase { kUp, kShared, kDown } phase = kUp;
  int unit = 0, left = 0;  // next unit of the phase; chunks left of the one at hand
  const uint8_t *from = nullptr, *scales = nullptr;
};

// The warp's next unit; left stays 0 where there is none. Not inlined: every place that starts a copy would hold it,
// and code comes from memory too.
__device__ __noinline__ Ahead next_unit(Ahead ahead, const Arguments& a, const Choice* choices, int experts) {
  const FewExperts& e = a.e;
  const Walk walk(a, experts);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, ctas = gridDim.x;
  if (ahead.phase == Ahead::kUp) {
    if (walk.first < walk.last && ahead.unit < walk.up_total) {
      const int channels = ahead.unit % a.units;
      ahead.from = static_cast<const uint8_t*>(e.w1_w3.codes) +
                   choices[ahead.unit / a.units].expert * e.w1_w3.codes_stride +
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
    ahead.unit = walk.place;
  }
  if (ahead.unit >= walk.down_total) return ahead;
  ahead.from = static_cast<const uint8_t*>(e.w2.codes) +
               choices[ahead.unit / walk.down_each].expert * e.w2.codes_stride +
               fp4_tile(ahead.unit % walk.down_each * kWarps + warp, 0, a.down_chunks);
  ahead.left = a.down_chunks;
  ahead.unit += ctas;
  return ahead;
}

// A warp's ring: copies go into the slot that was read last. What was read from it has arrived in registers, since it
// has been used.
class Ring {
 public:
  __device__ __forceinline__ Ring(uint32_t slots, const uint64_t* bulk, const uint64_t* lanes)
      : slots_(slots), bulk_(shared_address(bulk)), lanes_(shared_address(lanes)), policy_(read_once()) {}

  __device__ __forceinline__ void start(const Arguments& a, const Choice* choices, int experts) {
    ahead_.unit = blockIdx.x;
#pragma unroll 1
    for (int i = 0; i < kSlots - 1; ++i) issue(i, a, choices, experts);
  }
  // The address of the next slot, when its bulk copies (or those of the lanes) are there.
  __device__ __forceinline__ uint32_t wait_bulk() { return wait(bulk_, bulk_phases_); }
  __device__ __forceinline__ uint32_t wait_lanes() { return wait(lanes_, lane_phases_); }
  // All has been read from it.
  __device__ __forceinline__ void next(const Arguments& a, const Choice* choices, int experts) {
    __syncwarp();
    issue(free_slot_, a, choices, experts);
    free_slot_ = slot_;
    if (++slot_ == kSlots) slot_ = 0;
  }

 private:
  __device__ __forceinline__ uint32_t wait(uint32_t barriers, uint32_t& phases) {
    barrier_wait(barriers + 8 * slot_, phases >> slot_ & 1);
    phases ^= 1u << slot_;
    return slots_ + slot_ * kSlotBytes;
  }
  __device__ __forceinline__ void issue(int slot, const Arguments& a, const Choice* choices, int experts) {
    if (ahead_.left == 0) {
      ahead_ = next_unit(ahead_, a, choices, experts);
      if (ahead_.left == 0) return;
    }
    const uint32_t to = slots_ + slot * kSlotBytes;
    if (ahead_.phase == Ahead::kShared) return issue_fp8(slot, to, a.e.shared.w2.k);
    const uint32_t barrier = bulk_ + 8 * slot;
    const bool first = threadIdx.x % 32 == 0;
    if (ahead_.phase == Ahead::kUp) {  // two tiles side by side
      if (first) barrier_expect(barrier, kSlotBytes), bulk_load(to, ahead_.from, kSlotBytes, barrier, policy_);
      ahead_.from += kSlotBytes;
      --ahead_.left;
      return;
    }
    const bool two = ahead_.left > 1;  // of two chunks
    if (first) {
      barrier_expect(barrier, two ? kSlotBytes : kFp4TileBytes);
      bulk_load(to, ahead_.from, kFp4TileBytes, barrier, policy_);
      if (two) bulk_load(to + kFp4TileBytes, ahead_.from + kSlotBytes, kFp4TileBytes, barrier, policy_);
    }
    ahead_.from += 2 * kSlotBytes;
    ahead_.left -= two ? 2 : 1;
  }
  __device__ __forceinline__ void issue_fp8(int slot, uint32_t to, int k) {
    const int lane = threadIdx.x % 32;
    uint32_t mine;
    asm volatile("mad.lo.u32 %0, %1, 16, %2;" : "=r"(mine) : "r"(lane), "r"(to));  // one register: linear_few.cu
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        async_load_16(mine + (2 * h + i) * kVectorBytes, ahead_.from + h * 8 * k + i * 64, policy_);
    }
    if (lane == 0) async_load<4>(to + 4 * kVectorBytes, ahead_.scales);
    barrier_arrive_after_loads(lanes_ + 8 * slot);
    ahead_.from += kChunk;
    ahead_.scales += 4;
    --ahead_.left;
  }

  uint32_t slots_, bulk_, lanes_, bulk_phases_ = 0, lane_phases_ = 0;  // a bit a slot
  uint64_t policy_;
  int slot_ = 0, free_slot_ = kSlots - 1;
  Ahead ahead_;
};

// What all parts of the kernel know.
struct Work {
  const Arguments& a;
  const Choice* choices;
  int experts;
  Walk walk;
  uint8_t* input;  // the packed row at hand, shared by the CTA
  float* sums;
  Ring ring;

  __device__ __forceinline__ void next() { ring.next(a, choices, experts); }
  // The CTA's next packed row.
  __device__ __forceinline__ void fetch(const uint8_t* row, int chunks) const {
    constexpr int kEach = kInputBytes / 16 / kThreads;
    uint4 u[kEach];  // all loads before the first store
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + threadIdx.x;
      if (i < chunks * 16) u[n] = __ldcg(reinterpret_cast<const uint4*>(row) + i);
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + threadIdx.x;
      if (i < chunks * 16) reinterpret_cast<uint4*>(input)[i] = u[n];
    }
    __syncthreads();
  }
};

__device__ __forceinline__ void input_of(uint32_t x, uint4 (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) b[i] = shared_load(x + i * 64);
}

// 32 channels of a hidden vector from the sums of all quarters, by one warp: SwiGLU, weight and FQ8, packed.
__device__ __forceinline__ void put_hidden(const Work& k, const float* sums, int t, int channels) {
  const FewExperts& e = k.a.e;
  const int lane = threadIdx.x % 32;
  const auto sum_of = [&](const float* q) {
    constexpr int kNext = 2 * kUnit;
    return k.a.up_quarter < k.a.up_chunks ? ((q[0] + q[kNext]) + q[2 * kNext]) + q[3 * kNext] : q[0];
  };
  const float gate = value(rounded(sum_of(sums + lane))), up = value(rounded(sum_of(sums + lane + kUnit)));
  const float h = value(rounded(swiglu(gate, up, e.limit) * e.weights[k.choices[t].pair]));
  // Column 8 i + 4 half + 2 j + pair of registers: the inverse of packed_column().
  uint8_t* to = e.hidden + (static_cast<int64_t>(t) * k.a.down_chunks + channels / 4) * 256 + lane / 8 * 64 +
                channels % 4 * 16 + lane / 2 % 2 * 8 + lane % 2 * 4 + lane / 4 % 2 * 2;
  *reinterpret_cast<bf16*>(to) = rounded(fake_quantise_fp8(h, warp_max(fabsf(h))));
  __syncwarp();
  if (lane == 0) add_release(&e.progress[t]);
}

// The CTA's units of the first product.
__device__ __forceinline__ void multiply_up(Work& k) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  k.fetch(k.a.e.packed, k.a.up_chunks);
  int turn = 0;
#pragma unroll 1
  for (int unit = blockIdx.x; unit < k.walk.up_total; unit += gridDim.x, turn ^= 1) {
    float acc[2][4] = {};
    uint32_t x = shared_address(k.input) + k.walk.first * 256 + lane % 4 * 16;
#pragma unroll 1
    for (int c = k.walk.first; c < k.walk.last; ++c, x += 256) {
      uint4 b[4];
      input_of(x, b);
      const uint32_t at = k.ring.wait_bulk();
      Tile tile[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) tile[i].read(at + i * kFp4TileBytes, lane);
      k.next();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) tile[i].multiply(j, b[j / 2], k.a.shifts, acc[i]);
      }
    }
    float* sums = k.sums + turn * kSumFloats;
    if (lane % 4 == 0) {
      float* to = sums + warp * kUnit + lane / 4;  // warp: quarter, then gate or up
#pragma unroll
      for (int i = 0; i < 2; ++i) to[16 * i] = acc[i][0], to[16 * i + 8] = acc[i][2];
    }
    __syncthreads();
    if (warp == 0) put_hidden(k, sums, unit / k.a.units, unit % k.a.units);
  }
}

// The warp's blocks of the shared expert's second product.
__device__ __forceinline__ void multiply_shared(Work& k) {
  if (k.a.shared_blocks == 0 || k.walk.place >= k.walk.light) return;
  const SharedExpert& s = k.a.e.shared;
  const int lane = threadIdx.x % 32;
  __syncthreads();  // nobody reads the row before
  k.fetch(s.hidden, k.a.shared_chunks);
#pragma unroll 1
  for (int block = k.walk.shared; block < k.a.shared_blocks; block += k.walk.shared_step) {
    float acc[4] = {};
    uint32_t x = shared_address(k.input) + lane % 4 * 16;
#pragma unroll 1
    for (int c = 0; c < k.a.shared_chunks; ++c, x += 256) {
      uint4 b[4];
      input_of(x, b);
      SharedTile tile;
      tile.read(k.ring.wait_lanes(), lane);
      k.next();
#pragma unroll
      for (int j = 0; j < 8; ++j) tile.multiply(j, b[j / 2], k.a.shifts, acc);
    }
    if (lane % 4 != 0) continue;
    bf16* to = static_cast<bf16*>(s.out) + 16 * block + lane / 4;
    to[0] = rounded(acc[0]), to[8] = rounded(acc[2]);
  }
}

// By one thread: the CTA waits for nobody any more; the last one leaves zeros behind.
__device__ __forceinline__ void leave(const FewExperts& e) {
  if (atomicAdd(&e.progress[kFewChoices], 1) != static_cast<int>(gridDim.x) - 1) return;
  for (int i = 0; i <= kFewChoices; ++i) e.progress[i] = 0;
}

// The CTA's units of the second product.
__device__ __forceinline__ void multiply_down(Work& k) {
  const FewExperts& e = k.a.e;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, ctas = gridDim.x;
  if (threadIdx.x == 0 && k.walk.place >= k.walk.down_total) leave(e);
#pragma unroll 1
  for (int unit = k.walk.place; unit < k.walk.down_total; unit += ctas) {
    const int t = unit / k.walk.down_each, row = (unit % k.walk.down_each * kWarps + warp) * 16;
    if (threadIdx.x == 0) {
      // An acquire empties the L1 cache, which others of the SM use: one, at the end.
      while (relaxed(&e.progress[t]) < k.a.units) {
      }
      __threadfence();
    }
    __syncthreads();
    k.fetch(e.hidden + static_cast<int64_t>(t) * k.a.down_chunks * 256, k.a.down_chunks);
    if (threadIdx.x == 0 && unit + ctas >= k.walk.down_total) leave(e);
    float acc[4] = {};
    uint32_t x = shared_address(k.input) + lane % 4 * 16, at = 0;
#pragma unroll 1
    for (int c = 0; c < k.a.down_chunks; ++c, x += 256) {
      uint4 b[4];
      input_of(x, b);
      at = c % 2 == 0 ? k.ring.wait_bulk() : at + kFp4TileBytes;
      Tile tile;
      tile.read(at, lane);
      if (c % 2 != 0 || c + 1 == k.a.down_chunks) k.next();
#pragma unroll
      for (int j = 0; j < 8; ++j) tile.multiply(j, b[j / 2], k.a.shifts, acc);
    }
    if (lane % 4 == 0) {
      bf16* to = static_cast<bf16*>(e.out) + static_cast<int64_t>(k.choices[t].pair) * e.w2.n + row + lane / 4;
      to[0] = rounded(acc[0]), to[8] = rounded(acc[2]);
    }
    __syncthreads();  // nobody reads this row any more
  }
}

// At most 112 registers: a small CTA of another stream finds room beside two of these.
__global__ __maxnreg__(112) void few_experts_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t full[2][kWarps][kSlots];  // bulk copies; copies of the lanes
  __shared__ Choice choices[kFewChoices];
  __shared__ int choice_count;
  const FewExperts& e = a.e;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  if (lane == 0) {
    for (int i = 0; i < kSlots; ++i) barrier_init(&full[0][warp][i], 1), barrier_init(&full[1][warp][i], 32);
    barrier_init_fence();
  }
  wait_for_inputs();
  start_next_kernel();
  if (warp == 0) {
    const int id = lane < e.choices ? e.ids[lane] : -1;
    const bool here = id >= 0 && id < e.mine;
    const unsigned all = __ballot_sync(0xffffffffu, here);
    if (here) choices[__popc(all & ((1u << lane) - 1))] = {e.slot_of != nullptr ? e.slot_of[id] : id, lane};
    if (lane == 0) choice_count = __popc(all);
  }
  __syncthreads();
  const int experts = choice_count;
  Work k{a,
         choices,
         experts,
         Walk(a, experts),
         shared + kRingBytes,
         reinterpret_cast<float*>(shared + kRingBytes + kInputBytes),
         Ring(shared_address(shared) + warp * kSlots * kSlotBytes, full[0][warp], full[1][warp])};
  k.ring.start(a, choices, experts);
  multiply_up(k);
  multiply_shared(k);
  __syncthreads();  // nobody reads the row before
  multiply_down(k);
}

}  // namespace

bool fits_few_experts(const LinearWeights& w1_w3, const LinearWeights& w2, int choices) {
  const int inter = w1_w3.n / 2;
  return w1_w3.format == WeightFormat::kFp4 && w2.format == WeightFormat::kFp4 && choices <= kFewChoices &&
         w1_w3.k / kChunk <= kInputChunks && inter % kChunk == 0 && w2.k == inter && w2.k / kChunk <= kWholeChunks &&
         w2.n % (16 * kWarps) == 0;
}

bool fits_shared_expert(const LinearWeights& w2) {
  return w2.format == WeightFormat::kFp8 && w2.k / kChunk <= kWholeChunks && w2.n % 16 == 0;
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
