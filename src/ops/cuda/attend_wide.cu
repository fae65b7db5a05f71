// The attention core for head_dim 512 (spec/model.md 6.3, 6.4, 11.3). A cluster of kSplit CTAs takes 64 heads of a row:
// its CTAs share out tiles of 64 keys for the scores and channels for the values, so one row fills many SMs and many
// rows one each, with the same sums. Numbers of rows between go to attend_many.cu.
//
// Keys never stand in shared memory as bf16. Both products are taken transposed, with the keys as the A operand, which
// each thread expands in its registers from the records: scores^T = K Q^T with a key a row, out^T = V^T P^T with a
// channel a row. Queries and probabilities, the B operands, lie in core matrices of 8 heads x 16 bytes. Inside a step
// of 16 the order of channels (of keys) is the one in which FP4 words unpack, the same in every kernel and for every
// kSplit.
//
// Keys are held at 2^-8 of their value, so that a factor on FP4 codes stays finite in bf16; powers of two change no
// rounding.
#include "ops/cuda/attend_keys.cuh"
#include "ops/cuda/launch.h"

namespace deepinfer::ops::cuda {
namespace {

// Bytes in shared memory.
constexpr int kProbabilities = 0;  // [64 heads][640 keys] bf16; before: queries [64][512], then rings of four warps
constexpr int kQueryRings = kHeads * kDim * 2;
constexpr int kKeptTiles = 6;                    // whose scores wait in shared memory
constexpr int kScores = kHeads * kWideKeys * 2;  // before: queries as they are in memory; then rings of records
constexpr int kRings = kScores + kKeptTiles * kScoreBytes;  // of the other twelve warps
constexpr int kSumsBytes = 4 * kMaxTiles * kHeads * 4;
constexpr int kRecords = kRings + 12 * kScoreRingBytes;  // address of each key's record
constexpr int kSums = kRecords - kSumsBytes;             // after the rings: [tile][warp][head] sums of probabilities
constexpr int kMaxima = kRecords + kWideKeys * 8;        // of each head, as ordered_bits()
constexpr int kInverse = kMaxima + kHeads * 4;
constexpr int kSharedBytes = kInverse + kHeads * 4;
static_assert(kSharedBytes <= 227 << 10 && kQueryRings + 4 * kScoreRingBytes <= kScores);

// Orders like the float, as a signed number.
__device__ __forceinline__ int ordered_bits(float x) {
  const int b = __float_as_int(x);
  return b ^ ((b >> 31) & 0x7fffffff);
}
__device__ __forceinline__ float ordered_value(int b) { return __int_as_float(b ^ ((b >> 31) & 0x7fffffff)); }

// A value for each of the thread's 16 columns (heads 8 (i / 2) + 2 quad + i % 2) is combined over the 8 lanes of a
// quad's place; the thread gets two columns, those of group *group of 8 heads.
template <class Combine>
__device__ __forceinline__ float2 combine_columns(float (&v)[16], int lane, int* group, Combine combine) {
  int first = 0;
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    const int bit = 16 >> step, left = 8 >> step;
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= left) continue;
      const float mine = upper ? v[left + i] : v[i], given = upper ? v[i] : v[left + i];
      v[i] = combine(mine, __shfl_xor_sync(0xffffffffu, given, bit));
    }
    first = 2 * first + upper;
  }
  *group = first;
  return {v[0], v[1]};
}

template <int kSplit>
__device__ __forceinline__ void meet() {
  kSplit > 1 ? cluster_sync() : __syncthreads();
}
template <int kSplit>
__device__ __forceinline__ void raise_maximum(int* p, float x) {
  if constexpr (kSplit == 1) {
    atomicMax(p, ordered_bits(x));
  } else {
#pragma unroll
    for (int r = 0; r < kSplit; ++r) {
      asm volatile(
          "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nred.relaxed.cluster.shared::cluster.max.s32 "
          "[remote], %2;\n}\n" ::"r"(shared_address(p)),
          "r"(r), "r"(ordered_bits(x))
          : "memory");
    }
  }
}

// Queries of 64 heads on their way into shared memory, through a stage of it; heads that are not there as zeros. A warp
// takes pieces of 8 heads, two of the four quarters g of channels 128 chunk + 32 q + 8 g + {0 .. 7}, by two loads (full
// sectors) and two stores (different banks). Place 2 q + half of core e of step j of a chunk holds channel
// packed_column(FP4, q, j, e, half).
template <int kThreads>
struct Queries {
  static constexpr int kEach = kHeads * kDim / 8 / kThreads, kWarps = kThreads / 32;

  __device__ __forceinline__ static void load(const AttendArguments& a, int row, int head0, uint8_t* stage) {
    const int lane = threadIdx.x % 32, h = lane / 8, q = lane / 2 % 4, g = lane % 2;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n / 2 * kWarps + threadIdx.x / 32, head = i / 8 * 8 + n % 2 * 4 + h;
      const int there = min(head0 + head, a.heads - 1);
      async_load<16>(
          shared_address(stage) + (i * 64 + ((n % 2 * 32 + lane) ^ (h % 2))) * 16,
          a.q + (static_cast<int64_t>(row) * a.heads + there) * kDim + i / 2 % 4 * 128 + 32 * q + 8 * (i % 2 * 2 + g));
    }
    async_commit();
  }
  __device__ __forceinline__ static void store(const AttendArguments& a, int head0, const uint8_t* stage, uint8_t* to) {
    async_wait<0>();
    __syncwarp();
    const int lane = threadIdx.x % 32, h = lane / 4, q = lane % 4;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n / 2 * kWarps + threadIdx.x / 32, g = n % 2, head = i / 8 * 8 + h;
      uint4 u = *reinterpret_cast<const uint4*>(stage + (i * 64 + ((h * 8 + 2 * q + g) ^ (h % 2))) * 16);
      if (head0 + head >= a.heads) u = {};
      const uint32_t pairs[4] = {__byte_perm(u.x, u.z, 0x5410), __byte_perm(u.x, u.z, 0x7632),
                                 __byte_perm(u.y, u.w, 0x5410), __byte_perm(u.y, u.w, 0x7632)};
#pragma unroll
      for (int b = 0; b < 4; ++b)
        *reinterpret_cast<uint32_t*>(to + i / 8 * kQueryStride + (16 * (i / 2 % 4) + 4 * (i % 2 * 2 + g) + b) * kCore +
                                     h * 16 + q * 4) = pairs[b];
    }
  }
};

// Probabilities of a tile from its scaled scores, at their place as the B operand, and their sums over each warp's 16
// keys; into all CTAs.
template <int kSplit>
__device__ __forceinline__ void soften(int t, const float (&score)[kHeads / 2], uint8_t* shared, int warp, int lane) {
  const int quad = lane % 4;
  const auto* maxima = reinterpret_cast<const int*>(shared + kMaxima);
  float sum[16];
  uint32_t bits[kHeads / 4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int2 top = *reinterpret_cast<const int2*>(maxima + 8 * i + 2 * quad);
    float p[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      p[h][0] = exponential(score[4 * i + 2 * h] - ordered_value(top.x));
      p[h][1] = exponential(score[4 * i + 2 * h + 1] - ordered_value(top.y));
      const __nv_bfloat162 pair(__float2bfloat16_rn(p[h][0]), __float2bfloat16_rn(p[h][1]));
      bits[2 * i + h] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    sum[2 * i] = p[0][0] + p[1][0];
    sum[2 * i + 1] = p[0][1] + p[1][1];
  }
  // Four core matrices at a time, transposed: rows of 8 keys. Lane l gives the address of row l % 8 of matrix l / 8.
  const uint32_t core = shared_address(shared + kProbabilities) + (t * (kTile / 8) + 2 * warp + lane / 8 % 2) * kCore +
                        lane / 16 * kProbabilityStride + lane % 8 * 16;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(core + i * kProbabilityStride),
        "r"(bits[2 * i]), "r"(bits[2 * i + 1]), "r"(bits[2 * i + 2]), "r"(bits[2 * i + 3])
        : "memory");
  }
  int group;
  const float2 total = combine_columns(sum, lane, &group, [](float x, float y) { return x + y; });
  float* to = reinterpret_cast<float*>(shared + kSums) + (4 * t + warp) * kHeads + 8 * group + 2 * quad;
  if constexpr (kSplit == 1) {
    *reinterpret_cast<float2*>(to) = total;
  } else {
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kSplit; ++r) {
      cluster_store(shared_address(to), r, __float_as_uint(total.x));
      cluster_store(shared_address(to + 1), r, __float_as_uint(total.y));
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint32_t at = core + i * kProbabilityStride;
      const uint4 u = shared_load(at);
      for (int r = 0; r < kSplit; ++r) {
        asm volatile(
            "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nst.shared::cluster.v4.u32 [remote], {%2, "
            "%3, %4, %5};\n}\n" ::"r"(at),
            "r"(r), "r"(u.x), "r"(u.y), "r"(u.z), "r"(u.w)
            : "memory");
      }
    }
  }
}

// The addresses of all records: of the window, padded to whole tiles, then of the selected entries. Places without a
// key get the record of another one of their kind: their probability is 0. The loads that hang on each other are done
// step by step for all places of a thread, meanwhile() after the last of them.
template <int kThreads, class Meanwhile>
__device__ __forceinline__ bool place_records(const AttendArguments& a, const RowKeys& list, int window_tiles,
                                              uint64_t* records, Meanwhile meanwhile) {
  constexpr int kEach = (kWideKeys + kThreads - 1) / kThreads;
  const int first = list.limit > 0 ? list.selected[0] : -1;
  int entry[kEach], block[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int at = n * kThreads + threadIdx.x - window_tiles * kTile;
    entry[n] = at >= 0 && at < list.limit ? list.selected[at] : first;
  }
  bool fewer = first < 0 && list.limit > 0;  // were selected than could be
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    fewer |= entry[n] < 0 && first >= 0;
    if (entry[n] < 0) entry[n] = first;
    block[n] = first < 0 ? 0 : list.block(a, entry[n]);
  }
  meanwhile();
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int place = n * kThreads + threadIdx.x;
    if (place < kWideKeys)
      records[place] = reinterpret_cast<uint64_t>(first >= 0 && place >= window_tiles * kTile
                                                      ? list.entry_record(a, entry[n], block[n])
                                                      : list.window_record(a, place < list.in_window ? place : 0));
  }
  return fewer;
}

template <int kSplit, int kGroups>
__global__ __launch_bounds__(kGroups* kGroup, 1) void attend_wide_kernel(const AttendArguments a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kThreads = kGroups * kGroup, kUnits = kGroups * kSplit, kSteps = kUnits == 4 ? 2 : 1;
  static_assert(kUnits >= 4 && kMaxTiles - kUnits <= kKeptTiles);  // a unit's last tile stays in registers
  const int row = blockIdx.x / kSplit, rank = blockIdx.x % kSplit, head0 = blockIdx.y * kHeads;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0), unit = kGroups * rank + group,
            warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) % kGroup / 32, 0);
  const int lane = threadIdx.x % 32, quad = lane % 4;
  auto* records = reinterpret_cast<uint64_t*>(shared + kRecords);
  auto* maxima = reinterpret_cast<int*>(shared + kMaxima);
  const RowKeys list(a, row);  // of what was there before the step's first kernel
  const int window_tiles = (list.in_window + kTile - 1) / kTile;
  wait_for_inputs();
  start_next_kernel();
  Queries<kThreads>::load(a, row, head0, shared + kScores);
  const bool fewer = place_records<kThreads>(a, list, window_tiles, records,
                                             [&] { Queries<kThreads>::store(a, head0, shared + kScores, shared); });
  async_proxy_fence();
  if (threadIdx.x < kHeads) maxima[threadIdx.x] = ordered_bits(-1e30f);
  if constexpr (kSplit > 1) cluster_arrive();  // this CTA is there, and its maxima
  const int entries = __syncthreads_or(fewer) ? list.entries() : list.limit;
  const Tiles tiles{list.in_window, entries, window_tiles, window_tiles + (entries + kTile - 1) / kTile};

  // Scores. A unit (warpgroup of the cluster) takes tiles number unit, unit + kUnits, ..; the last one stays in
  // registers.
  const uint64_t queries = matrix_descriptor(shared, kCore, kQueryStride);
  const int key0 = 16 * warp + key_at(lane / 4),
            mine = unit < tiles.count ? (tiles.count - unit + kUnits - 1) / kUnits : 0;
  const int ring_index = 4 * group + warp;
  uint8_t* key_ring = shared + (ring_index < 4 ? kQueryRings + ring_index * kScoreRingBytes
                                               : kRings + (ring_index - 4) * kScoreRingBytes);
  KeyStream keys(records, tiles, unit, kUnits, key_ring, warp, lane);
  const float scale = a.scale * 256.0f;
  // [tile][8][thread]
  float4* kept = reinterpret_cast<float4*>(shared + kScores + group * kScoreBytes) + threadIdx.x % kGroup;
  float score[kHeads / 2];
  const auto keep = [&](int n, int t) {  // scales the scores, -infinity for keys that are not there
    float top[16];
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) score[i] *= scale;
    if (!tiles.whole(t)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (tiles.there(t, key0 + 8 * h)) continue;
#pragma unroll
        for (int i = 0; i < 16; ++i) score[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) top[i] = fmaxf(score[i / 2 * 4 + i % 2], score[i / 2 * 4 + 2 + i % 2]);
    if (n + 1 < mine) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        kept[(n * kGroups * 8 + i) * kGroup] = {score[4 * i], score[4 * i + 1], score[4 * i + 2], score[4 * i + 3]};
    }
    if constexpr (kSplit > 1) {
      if (n == 0) cluster_wait();
    }
    int at;
    const float2 best = combine_columns(top, lane, &at, [](float x, float y) { return fmaxf(x, y); });
    raise_maximum<kSplit>(maxima + 8 * at + 2 * quad, best.x);
    raise_maximum<kSplit>(maxima + 8 * at + 2 * quad + 1, best.y);
  };
#pragma unroll 1
  for (int n = 0; n < mine; ++n) {
    const int t = tiles.scored(unit + n * kUnits);
    tiles.is_window(t) ? score_tile<true>(keys, key_ring, queries, score)
                       : score_tile<false>(keys, key_ring, queries, score);
    keep(n, t);
  }
  if constexpr (kSplit > 1) {
    if (mine == 0) cluster_wait();
  }
  meet<kSplit>();  // nobody reads queries any more
#pragma unroll 1
  for (int n = mine - 1; n >= 0; --n) {
    if (n + 1 < mine) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 v = kept[(n * kGroups * 8 + i) * kGroup];
        score[4 * i] = v.x, score[4 * i + 1] = v.y, score[4 * i + 2] = v.z, score[4 * i + 3] = v.w;
      }
    }
    soften<kSplit>(tiles.scored(unit + n * kUnits), score, shared, warp, lane);
  }
  async_proxy_fence();

  // Values: the unit's channels of all keys. The first slot is where the group kept its first scores; the last one has
  // no place for keys of the window, so a longer window than two tiles does without.
  using V = Values<kSteps, kGroup>;
  const bool active = kUnits < 16 || group == 0;  // eight units are enough
  const int part = kUnits < 16 ? unit : rank, channel0 = (kSteps == 2 ? part : part / 2) * V::kChannels;
  static_assert(V::kSlotBytes <= kScoreBytes &&
                kScores + kGroups * (kScoreBytes + V::kSlotBytes + V::kEntrySlotBytes) <= kSums);
  const int last_slot = tiles.window_tiles > 2 ? 1 : 2;
  const auto slot = [&](int s) {
    return shared + kScores +
           (s == 0   ? group * kScoreBytes
            : s == 1 ? kGroups * kScoreBytes + group * V::kSlotBytes
                     : kGroups * (kScoreBytes + V::kSlotBytes) + group * V::kEntrySlotBytes);
  };
  const auto meet_ring = [&] { group_sync(1 + group, kGroup); };
  meet_ring();  // nobody of it reads kept scores any more
  if (active) V::issue(tiles, records, 0, shared_address(slot(0)), channel0);
  meet<kSplit>();
  async_proxy_fence();
  if (active && last_slot == 2) V::issue(tiles, records, 1, shared_address(slot(1)), channel0);
  if (const int head = static_cast<int>(threadIdx.x) - (kGroups - 1) * kGroup; head >= 0 && head < kHeads) {
    const float* sums = reinterpret_cast<const float*>(shared + kSums) + head;
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kMaxTiles; t += kMaxTiles / 2) {  // many loads on their way
      float part[kMaxTiles / 2 * 4];
#pragma unroll
      for (int i = 0; i < kMaxTiles / 2 * 4; ++i) part[i] = t + i / 4 < tiles.count ? sums[(4 * t + i) * kHeads] : 0.0f;
#pragma unroll
      for (int i = 0; i < kMaxTiles / 2 * 4; ++i) sum += part[i];
    }
    // 2^8 over the denominator.
    reinterpret_cast<float*>(shared + kInverse)[head] =
        head0 + head < a.heads ? 256.0f / (sum + __expf(a.sink[head0 + head] - ordered_value(maxima[head]))) : 0.0f;
  }
  float acc[kSteps][kHeads / 2];
#pragma unroll
  for (int m = 0; m < kSteps; ++m) {
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) acc[m][i] = 0;
  }
  uint32_t operand[2][kSteps][4];
  const uint64_t probabilities = matrix_descriptor(shared + kProbabilities, kCore, kProbabilityStride);
  const int first = kSteps == 2 ? 0 : part % 2 * 2, channel = channel0 + 32 * warp + lane / 4 * 4 + first;
  const typename V::Lane mine_of{warp, lane, first, channel / 32, channel % 256 / 16};
  int now = 0;
  const auto next_tile = [&](int t) {  // the tile is there, and the slot of the one before is free
    last_slot == 2 ? async_wait<1>() : async_wait<0>();
    meet_ring();
    V::issue(tiles, records, t + last_slot, shared_address(slot(now == 0 ? last_slot : now - 1)), channel0);
    const uint8_t* at = slot(now);
    now = now == last_slot ? 0 : now + 1;
    return at;
  };
#pragma unroll 1
  for (int t = 0; active && t < tiles.window_tiles; ++t)
    V::template multiply<true>(next_tile(t), mine_of, moved(probabilities, t * (kTile / 8) * (kCore / 16)), acc,
                               operand);
#pragma unroll 1
  for (int t = tiles.window_tiles; active && t < tiles.count; ++t)
    V::template multiply<false>(next_tile(t), mine_of, moved(probabilities, t * (kTile / 8) * (kCore / 16)), acc,
                                operand);
  wgmma_wait<0>();
  keep_alive(operand[0]);
  keep_alive(operand[1]);
  __syncthreads();
  if (!active) return;
  const float* inverse = reinterpret_cast<const float*>(shared + kInverse);
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int head = i / 2 * 8 + 2 * quad + i % 2;
    if (head0 + head >= a.heads) continue;
    uint32_t out[kSteps];
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
      const int at = i / 2 * 4 + i % 2;
      const __nv_bfloat162 pair(rounded(tiles.count == 0 ? 0.0f : acc[m][at] * inverse[head]),
                                rounded(tiles.count == 0 ? 0.0f : acc[m][at + 2] * inverse[head]));
      out[m] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    bf16* to = a.out + (static_cast<int64_t>(row) * a.heads + head0 + head) * kDim + channel;
    if constexpr (kSteps == 2) {
      *reinterpret_cast<uint2*>(to) = {out[0], out[1]};
    } else {
      *reinterpret_cast<uint32_t*>(to) = out[0];
    }
  }
}

template <int kSplit, int kGroups>
void launch(const AttendArguments& a, int rows, cudaStream_t stream) {
  cudaFuncSetAttribute(attend_wide_kernel<kSplit, kGroups>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  const dim3 grid(static_cast<unsigned>(rows * kSplit), static_cast<unsigned>((a.heads + kHeads - 1) / kHeads));
  launch_clusters(kSplit, attend_wide_kernel<kSplit, kGroups>, grid, kGroups * kGroup, kSharedBytes, stream, a);
}

}  // namespace

void attend_wide(const AttendArguments& a, int rows, cudaStream_t stream) {
  const int blocks = rows * ((a.heads + kHeads - 1) / kHeads);
  if (blocks <= 14) return launch<8, 2>(a, rows, stream);  // clusters that an H200 has place for at the same time
  if (blocks <= attend_many_at_once()) return attend_many(a, rows, stream);
  launch<1, 4>(a, rows, stream);
}

}  // namespace deepinfer::ops::cuda
