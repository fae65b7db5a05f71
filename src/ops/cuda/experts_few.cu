// Both products of one row's experts in one persistent kernel (experts_few.h). CTAs first take units of the first
// product, 32 channels of an expert's hidden vector each: eight warps are four quarters of K times gate and up. Then
// they take units of the second, 16 rows of weights a warp, as soon as all hidden channels of the expert are there;
// those of the shared expert come first. A ninth warp makes the copies of all: a ring of stages runs ahead through all
// units. Loops are short, so that the schedulers' instruction caches hold them.
#include "ops/cuda/experts_few.h"

#include "ops/cuda/launch.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/problem.cuh"
#include "ops/cuda/swiglu.cuh"

namespace deepinfer::ops::cuda {
namespace {

// Warps that multiply, and their threads.
constexpr int kWarps = 2 * kQuarters, kThreads = 32 * kWarps, kCtas = 2, kUnit = 32, kRegisters = 96;
constexpr int kSlotBytes = 2 * kFp4TileBytes, kStageBytes = kWarps * kSlotBytes;
constexpr int kInputChunks = 48, kInputBytes = kInputChunks * 256;  // a packed row
constexpr int kSumFloats = kQuarters * 2 * kUnit;                   // [quarter][gate, up][32], twice
constexpr int kStages = ((226 << 10) / kCtas - 2048 - 8 * kSumFloats - kInputBytes) / kStageBytes;
constexpr int kRingBytes = kStages * kStageBytes, kSharedBytes = kRingBytes + kInputBytes + 8 * kSumFloats;
static_assert(kStages >= 4 && kInputChunks >= kWholeChunks);

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
  int light, shared;                 // CTAs that take blocks of the shared expert; the first one of the CTA's
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
    shared = place;
  }
};

// A stage of the ring: what all multiplying warps take at a time, side by side in shared memory. One warp fills it.
// First product: a warp's two tiles of a chunk. Second: two chunks of a pair of warps, whose tiles lie side by side in
// memory too (small copies are slow). Shared expert: a warp's 16 rows of a chunk, and their scales.
class Producer {
 public:
  __device__ __forceinline__ Producer(const Arguments& a, const Choice* choices, int experts, uint32_t ring,
                                      const uint64_t* full, const uint64_t* empty)
      : a_(a), choices_(choices), experts_(experts), ring_(ring), full_(shared_address(full)),
        empty_(shared_address(empty)), policy_(read_once()) {}

  __device__ __forceinline__ void up() {
    const FewExperts& e = a_.e;
    const int lane = threadIdx.x % 32, first = lane / 2 * a_.up_quarter;
    const int mine = lane < kWarps ? min(a_.up_chunks - first, a_.up_quarter) : 0;  // of warp number `lane`
#pragma unroll 1
    for (int unit = blockIdx.x; unit < experts_ * a_.units; unit += gridDim.x) {
      const uint8_t* from = static_cast<const uint8_t*>(e.w1_w3.codes) +
                            choices_[unit / a_.units].expert * e.w1_w3.codes_stride +
                            fp4_tile(2 * (unit % a_.units + lane % 2 * a_.units), first, a_.up_chunks);
#pragma unroll 1
      for (int c = 0; c < a_.up_quarter; ++c, from += kSlotBytes) {
        const bool here = c < mine;
        const uint32_t barrier = acquire(__popc(__ballot_sync(0xffffffffu, here)) * kSlotBytes);
        if (here) bulk_load(slot() + lane * kSlotBytes, from, kSlotBytes, barrier, policy_);
        advance();
      }
    }
  }
  __device__ __forceinline__ void down(const Walk& walk) {
    const FewExperts& e = a_.e;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int unit = walk.place; unit < walk.down_total; unit += gridDim.x) {
      const uint8_t* from = static_cast<const uint8_t*>(e.w2.codes) +
                            choices_[unit / walk.down_each].expert * e.w2.codes_stride +
                            fp4_tile(unit % walk.down_each * kWarps + 2 * lane, 0, a_.down_chunks);
#pragma unroll 1
      for (int c = 0; c < a_.down_chunks; c += 2, from += 2 * kSlotBytes) {
        const uint32_t bytes = c + 1 < a_.down_chunks ? 2 * kSlotBytes : kSlotBytes;
        const uint32_t barrier = acquire(kWarps / 2 * bytes);
        if (lane < kWarps / 2) bulk_load(slot() + lane * 2 * kSlotBytes, from, bytes, barrier, policy_);
        advance();
      }
    }
  }
  __device__ __forceinline__ void shared(const Walk& walk) {
    const LinearWeights& w = a_.e.shared.w2;
    const int lane = threadIdx.x % 32;
    // A warp's block lies `light` blocks behind that of the warp before.
#pragma unroll 1
    for (int block = walk.shared; block < a_.shared_blocks; block += kWarps * walk.light) {
      const uint8_t* from =
          static_cast<const uint8_t*>(w.codes) + static_cast<int64_t>(16 * block + lane / 4) * w.k + lane % 4 * 16;
#pragma unroll 1
      for (int c = 0; c < a_.shared_chunks; ++c, from += kChunk) {
        wait_empty();
#pragma unroll 1
        for (int warp = 0; warp < kWarps; ++warp) {
          const int other = block + warp * walk.light;
          if (other >= a_.shared_blocks) break;
          const uint8_t* codes = from + static_cast<int64_t>(warp * walk.light) * 16 * w.k;
          uint32_t to;
          // One register: linear_few.cu.
          asm volatile("mad.lo.u32 %0, %1, 16, %2;" : "=r"(to) : "r"(lane), "r"(slot() + warp * kSlotBytes));
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              async_load_16(to + (2 * h + i) * kVectorBytes, codes + h * 8 * w.k + i * 64, policy_);
          }
          if (lane == 0)
            async_load<4>(slot() + warp * kSlotBytes + 4 * kVectorBytes,
                          w.scales + static_cast<int64_t>(other / 2) * (w.k / 32) + 4 * c);
        }
        barrier_count_loads(full_ + 8 * stage_);
        __syncwarp();
        if (lane == 0) barrier_arrive(full_ + 8 * stage_);
        advance();
      }
    }
  }

 private:
  __device__ __forceinline__ uint32_t slot() const { return ring_ + stage_ * kStageBytes; }
  // All warps have read what was there.
  __device__ __forceinline__ void wait_empty() { barrier_wait(empty_ + 8 * stage_, phase_ ^ 1); }
  __device__ __forceinline__ uint32_t acquire(uint32_t bytes) {
    wait_empty();
    const uint32_t barrier = full_ + 8 * stage_;
    if (threadIdx.x % 32 == 0) barrier_expect(barrier, bytes);
    __syncwarp();
    return barrier;
  }
  __device__ __forceinline__ void advance() {
    if (++stage_ == kStages) stage_ = 0, phase_ ^= 1;
  }

  const Arguments& a_;
  const Choice* choices_;
  int experts_;
  uint32_t ring_, full_, empty_;
  uint64_t policy_;
  int stage_ = 0, phase_ = 0;
};

// The other end of the ring.
class Ring {
 public:
  __device__ __forceinline__ Ring(uint32_t ring, const uint64_t* full, const uint64_t* empty)
      : ring_(ring), full_(shared_address(full)), empty_(shared_address(empty)) {}
  // Where the next stage lies, when it is there.
  __device__ __forceinline__ uint32_t wait() {
    barrier_wait(full_ + 8 * stage_, phase_);
    return ring_ + stage_ * kStageBytes;
  }
  // The warp has read all of it.
  __device__ __forceinline__ void next() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty_ + 8 * stage_);
    if (++stage_ == kStages) stage_ = 0, phase_ ^= 1;
  }

 private:
  uint32_t ring_, full_, empty_;
  int stage_ = 0, phase_ = 0;
};

__device__ __forceinline__ void multipliers_meet() { group_sync(1, kThreads); }

// What all multiplying warps know.
struct Work {
  const Arguments& a;
  const Choice* choices;
  int experts;
  Walk walk;
  uint8_t* input;  // the packed row at hand, shared by the CTA
  float* sums;
  Ring ring;

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
    multipliers_meet();
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
    for (int c = 0; c < k.a.up_quarter; ++c, x += 256) {
      uint4 b[4];
      input_of(x, b);
      const uint32_t at = k.ring.wait() + warp * kSlotBytes;
      Tile tile[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) tile[i].read(at + i * kFp4TileBytes, lane);
      k.ring.next();
      if (k.walk.first + c >= k.walk.last) continue;  // a short quarter
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
    multipliers_meet();
    if (warp == 0) put_hidden(k, sums, unit / k.a.units, unit % k.a.units);
  }
}

// The warp's blocks of the shared expert's second product.
__device__ __forceinline__ void multiply_shared(Work& k) {
  if (k.a.shared_blocks == 0 || k.walk.place >= k.walk.light) return;
  const SharedExpert& s = k.a.e.shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  multipliers_meet();  // nobody reads the row before
  k.fetch(s.hidden, k.a.shared_chunks);
#pragma unroll 1
  for (int first = k.walk.shared; first < k.a.shared_blocks; first += kWarps * k.walk.light) {
    const int block = first + warp * k.walk.light;
    float acc[4] = {};
    uint32_t x = shared_address(k.input) + lane % 4 * 16;
#pragma unroll 1
    for (int c = 0; c < k.a.shared_chunks; ++c, x += 256) {
      uint4 b[4];
      input_of(x, b);
      SharedTile tile;
      tile.read(k.ring.wait() + warp * kSlotBytes, lane);
      k.ring.next();
      if (block >= k.a.shared_blocks) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) tile.multiply(j, b[j / 2], k.a.shifts, acc);
    }
    if (lane % 4 != 0 || block >= k.a.shared_blocks) continue;
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
  const uint32_t mine = warp / 2 * 2 * kSlotBytes + warp % 2 * kFp4TileBytes;  // of a stage
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
    multipliers_meet();
    k.fetch(e.hidden + static_cast<int64_t>(t) * k.a.down_chunks * 256, k.a.down_chunks);
    if (threadIdx.x == 0 && unit + ctas >= k.walk.down_total) leave(e);
    float acc[4] = {};
    uint32_t x = shared_address(k.input) + lane % 4 * 16, at = 0;
#pragma unroll 1
    for (int c = 0; c < k.a.down_chunks; ++c, x += 256) {
      uint4 b[4];
      input_of(x, b);
      at = c % 2 == 0 ? k.ring.wait() + mine : at + kSlotBytes;
      Tile tile;
      tile.read(at, lane);
      if (c % 2 != 0 || c + 1 == k.a.down_chunks) k.ring.next();
#pragma unroll
      for (int j = 0; j < 8; ++j) tile.multiply(j, b[j / 2], k.a.shifts, acc);
    }
    if (lane % 4 == 0) {
      bf16* to = static_cast<bf16*>(e.out) + static_cast<int64_t>(k.choices[t].pair) * e.w2.n + row + lane / 4;
      to[0] = rounded(acc[0]), to[8] = rounded(acc[2]);
    }
    multipliers_meet();  // nobody reads this row any more
  }
}

// At most 96 registers: a small CTA of another stream finds room beside two of these.
__global__ __maxnreg__(kRegisters) void few_experts_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t full[kStages], empty[kStages];
  __shared__ Choice choices[kFewChoices];
  __shared__ int choice_count;
  const FewExperts& e = a.e;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(&full[i], 1), barrier_init(&empty[i], kWarps);
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
  const Walk walk(a, experts);
  if (warp == kWarps) {
    Producer p(a, choices, experts, shared_address(shared), full, empty);
    p.up();
    if (walk.place < walk.light) p.shared(walk);
    return p.down(walk);
  }
  Work k{a,
         choices,
         experts,
         walk,
         shared + kRingBytes,
         reinterpret_cast<float*>(shared + kRingBytes + kInputBytes),
         Ring(shared_address(shared), full, empty)};
  multiply_up(k);
  multiply_shared(k);
  multipliers_meet();  // nobody reads the row before
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
  launch_next(few_experts_kernel, kCtas * multiprocessors(), kThreads + 32, kSharedBytes, stream, a);
}

}  // namespace deepinfer::ops::cuda
