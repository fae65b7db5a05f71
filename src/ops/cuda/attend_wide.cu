// The attention core for head_dim 512 (spec/model.md 6.3, 6.4, 11.3). A cluster of kSplit CTAs takes 64 heads of a row:
// its CTAs share out tiles of 64 keys for the scores and channels for the values, so one row fills many SMs and many
// rows one each, with the same sums.
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

namespace deepinfer::ops::cuda {
namespace {

// Bytes in shared memory.
constexpr int kProbabilities = 0;                          // [64 heads][640 keys] bf16; before: queries [64][512]
constexpr int kScores = kHeads * kWideKeys * 2;            // of each warpgroup; then its ring of records
constexpr int kRecords = kScores + 2 * kKept * kScoreBytes;  // address of each key's record
constexpr int kSums = kRecords + kWideKeys * 8;            // [tile][warp][head] sums of probabilities
constexpr int kMaxima = kSums + 4 * kMaxTiles * kHeads * 4;  // of each head, as ordered_bits()
constexpr int kInverse = kMaxima + kHeads * 4;
constexpr int kSharedBytes = kInverse + kHeads * 4;
constexpr int kSlots = 3;
static_assert(kSharedBytes <= 227 << 10 && kSlots * kSlotBytes <= kKept * kScoreBytes);

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

// Queries of 64 heads on their way into shared memory, heads that are not there as zeros: load() starts, store() ends.
// Place 2 q + half of core e of step j of a chunk holds channel packed_column(FP4, q, j, e, half).
struct Queries {
  static constexpr int kEach = kHeads * kDim / 8 / kThreads;
  uint4 u[kEach];  // 8 channels of a head: 128 chunk + 32 q + 8 g

  __device__ __forceinline__ void load(const AttendArguments& a, int row, int head0) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + threadIdx.x, q = i / 8 % 4, g = i / 32 % 4, chunk = i / 128 % 4,
                head = i / 512 * 8 + i % 8;
      u[n] = head0 + head < a.heads
                 ? *reinterpret_cast<const uint4*>(a.q + (static_cast<int64_t>(row) * a.heads + head0 + head) * kDim +
                                                   128 * chunk + 32 * q + 8 * g)
                 : uint4{};
    }
  }
  __device__ __forceinline__ void store(uint8_t* to) const {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + threadIdx.x, q = i / 8 % 4, g = i / 32 % 4, chunk = i / 128 % 4;
      const uint32_t pairs[4] = {__byte_perm(u[n].x, u[n].z, 0x5410), __byte_perm(u[n].x, u[n].z, 0x7632),
                                 __byte_perm(u[n].y, u[n].w, 0x5410), __byte_perm(u[n].y, u[n].w, 0x7632)};
#pragma unroll
      for (int b = 0; b < 4; ++b)
        *reinterpret_cast<uint32_t*>(to + i / 512 * kQueryStride + (16 * chunk + 4 * g + b) * kCore + i % 8 * 16 +
                                     q * 4) = pairs[b];
    }
  }
};

__device__ __forceinline__ float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

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

__device__ __forceinline__ Tiles make_tiles(const KeyList& list) {
  const int entries = list.total - list.in_window, window_tiles = (list.in_window + kTile - 1) / kTile;
  return {list.in_window, entries, window_tiles, window_tiles + (entries + kTile - 1) / kTile};
}

// The addresses of all records of the tiles. Places without a key get the record of another one of their kind: their
// probability is 0. What the places of a thread need is loaded step by step for all of them.
__device__ __forceinline__ void place_records(const AttendArguments& a, const KeyList& list, const Tiles& tiles,
                                              uint64_t* records) {
  constexpr int kEach = (kWideKeys + kThreads - 1) / kThreads;
  int entry[kEach];
  const uint8_t* record[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int at = n * kThreads + threadIdx.x - tiles.window_tiles * kTile;
    entry[n] = at >= 0 && tiles.entries > 0 ? list.selected[at < tiles.entries ? at : 0] : -1;
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int place = n * kThreads + threadIdx.x;
    record[n] =
        entry[n] >= 0 ? list.entry_record(a, entry[n]) : list.window_record(a, place < list.in_window ? place : 0);
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int place = n * kThreads + threadIdx.x;
    if (place >= tiles.count * kTile) continue;
    records[place] = reinterpret_cast<uint64_t>(record[n]);
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      if (i < 3 || entry[n] < 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(record[n] + 128 * i));
    }
  }
}

template <int kSplit>
__global__ __launch_bounds__(kThreads, 1) void attend_wide_kernel(const AttendArguments a, const Shifts shifts) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kUnits = 2 * kSplit, kSteps = kSplit == 1 ? 4 : kSplit == 2 ? 2 : 1;
  static_assert((kMaxTiles + kUnits - 1) / kUnits <= kKept + 1);
  const int row = blockIdx.x / kSplit, rank = blockIdx.x % kSplit, head0 = blockIdx.y * kHeads;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0), unit = 2 * rank + group,
            warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) % kGroup / 32, 0);
  const int lane = threadIdx.x % 32, quad = lane % 4;
  auto* records = reinterpret_cast<uint64_t*>(shared + kRecords);
  auto* maxima = reinterpret_cast<int*>(shared + kMaxima);
  wait_for_inputs();
  start_next_kernel();
  Queries q;
  q.load(a, row, head0);
  const KeyList list(a, row);
  const Tiles tiles = make_tiles(list);
  place_records(a, list, tiles, records);
  if (threadIdx.x < kHeads) maxima[threadIdx.x] = ordered_bits(-1e30f);
  if constexpr (kSplit > 1) cluster_arrive();  // this CTA is there, and its maxima
  q.store(shared);
  async_proxy_fence();
  __syncthreads();

  // Scores. A unit (warpgroup of the cluster) takes tiles unit, unit + kUnits, ..; the last of kKept + 1 stays in
  // registers.
  const uint64_t queries = matrix_descriptor(shared, kCore, kQueryStride);
  const int key0 = 16 * warp + key_at(lane / 4),
            mine = unit < tiles.count ? (tiles.count - unit + kUnits - 1) / kUnits : 0;
  const float scale = a.scale * 256.0f;
  // [tile][8][thread]
  float4* kept = reinterpret_cast<float4*>(shared + kScores + group * kKept * kScoreBytes) + threadIdx.x % kGroup;
  float score[kHeads / 2];
  float top[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) top[i] = -1e30f;
  const auto keep = [&](int n, int t) {  // scales the scores, -infinity for keys that are not there
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool there = tiles.there(t, key0 + 8 * h);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& x = score[i / 2 * 4 + 2 * h + i % 2];
        x = there ? x * scale : -INFINITY;
        top[i] = fmaxf(top[i], x);
      }
    }
    if (n < kKept) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        kept[(n * 8 + i) * kGroup] = {score[4 * i], score[4 * i + 1], score[4 * i + 2], score[4 * i + 3]};
    }
  };
  const auto keys_of = [&](int n) { return TwoKeys(records + (unit + min(n, mine - 1) * kUnits) * kTile + key0); };
  const int mine_window = unit < tiles.window_tiles ? (tiles.window_tiles - unit + kUnits - 1) / kUnits : 0;
  RawKeys<false> entry[2];
  if (mine_window < mine)
    entry[0].load(keys_of(mine_window).record, 0, quad), entry[1].load(keys_of(mine_window).record, 1, quad);
  if (mine_window > 0) {
    RawKeys<true> window[2];
    window[0].load(keys_of(0).record, 0, quad), window[1].load(keys_of(0).record, 1, quad);
#pragma unroll 1
    for (int n = 0; n < mine_window; ++n) {
      score_tile<true>(keys_of(n), keys_of(min(n + 1, mine_window - 1)), window, quad, queries, shifts, score);
      keep(n, unit + n * kUnits);
    }
  }
#pragma unroll 1
  for (int n = mine_window; n < mine; ++n) {
    score_tile<false>(keys_of(n), keys_of(n + 1), entry, quad, queries, shifts, score);
    keep(n, unit + n * kUnits);
  }
  if constexpr (kSplit > 1) cluster_wait();
  if (mine > 0) {
    int at;
    const float2 best = combine_columns(top, lane, &at, [](float x, float y) { return fmaxf(x, y); });
    raise_maximum<kSplit>(maxima + 8 * at + 2 * quad, best.x);
    raise_maximum<kSplit>(maxima + 8 * at + 2 * quad + 1, best.y);
  }
  meet<kSplit>();  // nobody reads queries any more
#pragma unroll 1
  for (int n = mine - 1; n >= 0; --n) {
    if (n < kKept) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 v = kept[(n * 8 + i) * kGroup];
        score[4 * i] = v.x, score[4 * i + 1] = v.y, score[4 * i + 2] = v.z, score[4 * i + 3] = v.w;
      }
    }
    soften<kSplit>(unit + n * kUnits, score, shared, warp, lane);
  }
  async_proxy_fence();

  // Values: the unit's channels of all keys. Ahead by two tiles.
  using V = Values<kSteps>;
  const bool active = kSplit < 8 || group == 0;  // 64 channels are the least
  const int channel0 = kSplit < 8 ? unit * V::kChannels : rank * V::kChannels;
  const uint32_t ring = shared_address(shared + kScores + group * kKept * kScoreBytes);
  group_sync(1 + group, kGroup);  // nobody reads kept scores any more
  if (active) V::issue(tiles, records, 0, ring, channel0), V::issue(tiles, records, 1, ring + kSlotBytes, channel0);
  meet<kSplit>();
  async_proxy_fence();
  if (const int head = static_cast<int>(threadIdx.x) - kGroup; head >= 0 && head < kHeads) {
    const float* sums = reinterpret_cast<const float*>(shared + kSums) + head;
    float sum = 0;
#pragma unroll 2
    for (int t = 0; t < tiles.count; ++t) {
#pragma unroll
      for (int w = 0; w < 4; ++w) sum += sums[(4 * t + w) * kHeads];
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
  uint32_t operand[2][V::kBatch * kSteps][4];
  const uint64_t probabilities = matrix_descriptor(shared + kProbabilities, kCore, kProbabilityStride);
  const int place = 8 * warp + lane / 4, channel = channel0 + 2 * kSteps * place;
  const int entry_scale = channel % 256 / 16, window_scale = channel / 32;
  int slot = 0;
  const auto next_tile = [&](int t) {  // the tile is there, and the slot of the one before is free
    async_wait<1>();
    group_sync(1 + group, kGroup);
    V::issue(tiles, records, t + 2, ring + (slot == 0 ? kSlots - 1 : slot - 1) * kSlotBytes, channel0);
    const uint8_t* at = shared + kScores + group * kKept * kScoreBytes + slot * kSlotBytes;
    slot = slot == kSlots - 1 ? 0 : slot + 1;
    return at;
  };
#pragma unroll 1
  for (int t = 0; active && t < tiles.window_tiles; ++t) {
    V::template multiply<true>(next_tile(t), place, window_scale, quad, probabilities + t * (kTile / 8) * (kCore / 16),
                               shifts, acc, operand);
  }
#pragma unroll 1
  for (int t = tiles.window_tiles; active && t < tiles.count; ++t) {
    V::template multiply<false>(next_tile(t), place, entry_scale, quad, probabilities + t * (kTile / 8) * (kCore / 16),
                                shifts, acc, operand);
  }
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
      const __nv_bfloat162 pair(rounded(list.total == 0 ? 0.0f : acc[m][at] * inverse[head]),
                                rounded(list.total == 0 ? 0.0f : acc[m][at + 2] * inverse[head]));
      out[m] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    bf16* to = a.out + (static_cast<int64_t>(row) * a.heads + head0 + head) * kDim + channel;
    if constexpr (kSteps == 4) {
      *reinterpret_cast<uint4*>(to) = {out[0], out[1], out[2], out[3]};
    } else if constexpr (kSteps == 2) {
      *reinterpret_cast<uint2*>(to) = {out[0], out[1]};
    } else {
      *reinterpret_cast<uint32_t*>(to) = out[0];
    }
  }
}

template <int kSplit>
void launch(const AttendArguments& a, int rows, cudaStream_t stream) {
  cudaFuncSetAttribute(attend_wide_kernel<kSplit>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * kSplit), static_cast<unsigned>((a.heads + kHeads - 1) / kHeads));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = kSplit;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = kSplit > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, attend_wide_kernel<kSplit>, a, Shifts{});
}

}  // namespace

void attend_wide(const AttendArguments& a, int rows, cudaStream_t stream) {
  const int blocks = rows * ((a.heads + kHeads - 1) / kHeads);
  if (blocks <= 16) return launch<8>(a, rows, stream);
  if (blocks <= 32) return launch<4>(a, rows, stream);
  if (blocks <= 64) return launch<2>(a, rows, stream);
  launch<1>(a, rows, stream);
}

}  // namespace deepinfer::ops::cuda
