// Linear layers of many rows: tiles share what they load, and wgmma multiplies.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/many.cuh"

namespace deepinfer::ops::cuda {
namespace {

// What one CTA of rows_kernel works on.
struct Tile {
  GroupTile group;
  const uint8_t* codes;
  const uint8_t* scales;
  int row0;  // first weight row
};

template <int kTokens>
__device__ __forceinline__ bool find_tile(const Problem& p, int row_tile, int token_tile, int rows_per_cta, Tile* t) {
  if (p.tiles != nullptr && token_tile >= *p.tile_count) return false;
  t->group = p.tile(token_tile, kTokens);
  t->row0 = row_tile * rows_per_cta;
  t->codes = p.codes + t->group.expert * p.codes_stride;
  t->scales = p.scales + t->group.expert * p.scales_stride;
  return true;
}

// A stage's weights in shared memory: kRows rows of one chunk as stored, odd rows with neighbouring 64 bytes swapped so
// that eight lanes read different banks; then the scales, a word a scale row.
template <WeightFormat kFormat, int kRows>
struct WeightStage {
  using F = Fragment<kFormat>;
  static constexpr int kCodeBytes = kRows * F::kRowBytes;
  static constexpr int kScaleRows = F::kScaleRows == 0 ? 0 : kRows / std::max(F::kScaleRows, 1);
  static constexpr int kBytes = kCodeBytes + (kScaleRows * 4 + 127) / 128 * 128;
  static constexpr int kRowVectors = F::kRowBytes / 16;

  // Vector v of a row. Rows of 64 bytes (FP4) lie in different banks as they are.
  __device__ __forceinline__ static uint32_t place(int row, int v) {
    if constexpr (F::kRowBytes == 64) return row * 64 + (v * 16);
    return row * F::kRowBytes + ((v ^ (row % 2 * 4)) * 16);
  }
};

// One of 128 producing threads: where its copies of a chunk come from and go to.
template <WeightFormat kFormat, int kRows>
struct Producer {
  using F = Fragment<kFormat>;
  using S = WeightStage<kFormat, kRows>;
  static constexpr bool kTiles = kFormat == WeightFormat::kFp4;  // of 16 rows, with their scales
  static constexpr int kPassRows = kWarpgroup / S::kRowVectors, kPasses = kRows / kPassRows,
                       kChunkBytes = kTiles ? 2 * kFp4TileBytes : F::kRowBytes;
  uint32_t place, offset[kPasses], scale_offset = 0;  // bytes from the codes (scales) of the matrix

  __device__ __forceinline__ Producer(int n, int k, int row0, int thread) {
    const int chunks = k / kChunk, row = thread / S::kRowVectors, v = thread % S::kRowVectors;
    place = S::place(row, v);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int r = row0 + row + i * kPassRows;
      if constexpr (kTiles) {
        offset[i] = static_cast<uint32_t>(fp4_tile(min(r / 16, (n - 1) / 16), 0, chunks)) + r % 16 * 64 + v * 16;
      } else {
        offset[i] = static_cast<uint32_t>(min(r, n - 1)) * static_cast<uint32_t>(chunks * F::kRowBytes) + v * 16;
      }
    }
    if constexpr (kTiles) {
      const int r = row0 + thread;
      scale_offset = static_cast<uint32_t>(fp4_tile(min(r / 16, (n - 1) / 16), 0, chunks)) + 1024 + r % 16 * 4;
    } else if constexpr (S::kScaleRows > 0) {
      scale_offset = static_cast<uint32_t>(min(row0 + thread * F::kScaleRows, n - 1) / F::kScaleRows) * (k / 32);
    }
  }
  __device__ __forceinline__ void issue(uint32_t stage, const uint8_t* codes, const uint8_t* scales, int chunk,
                                        int thread) const {
    codes += static_cast<int64_t>(chunk) * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) async_load<16>(stage + place + i * kPassRows * F::kRowBytes, codes + offset[i]);
    if constexpr (kTiles) {
      async_load<4>(stage + S::kCodeBytes + thread * 4, codes + scale_offset);
    } else if constexpr (S::kScaleRows > 0) {
      if (thread < S::kScaleRows)
        async_load<4>(stage + S::kCodeBytes + thread * 4, scales + scale_offset + chunk * 4);
    }
  }
};

// Half a chunk's A operand. wgmma reads these registers after it was issued, which the compiler does not know:
// keep_alive() stands behind the wait that ends the reading.
template <WeightFormat kFormat>
struct Operand {
  using F = Fragment<kFormat>;
  uint32_t a[4][4];

  // place, scale_place: of this lane's first row in the stage (the second is 8 further).
  template <int kRows>
  __device__ __forceinline__ void expand(uint32_t stage, uint32_t place, uint32_t scale_place, int quad, int half,
                                         const Shifts& shifts) {
    constexpr int kHalfVectors = F::kVectors > 1 ? F::kVectors / 2 : 1;
    uint4 v[2][F::kVectors];
    uint32_t scales[2] = {}, f[F::kFactors];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kHalfVectors; ++i) {
        const int vector = F::kVectors > 1 ? half * kHalfVectors + i : 0;
        v[h][vector] = shared_load(stage + (place ^ (vector * 64)) + 8 * h * F::kRowBytes);
      }
      if constexpr (F::kScaleRows > 0)
        scales[h] = shared_load_word(stage + scale_place + (F::kScaleRows == 1 ? 32 * h : 0));
    }
    F::factors(scales[0], scales[1], quad, f);
#pragma unroll
    for (int j = 0; j < 4; ++j) F::expand(v, 4 * half + j, f, shifts, a[j]);
  }
  __device__ __forceinline__ void keep_alive() const {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" ::"r"(a[j][0]), "r"(a[j][1]), "r"(a[j][2]), "r"(a[j][3]));
  }
};

// Starts acc (+)= half a chunk of weights x tokens (the descriptor of the chunk's first step).
template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void multiply_half(const Operand<kFormat>& w, int half, uint64_t tokens, bool first,
                                              float (&acc)[kTokens / 2]) {
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j)
    wgmma_bf16<kTokens>(acc, w.a[j], tokens + half * (kTokens / 8 * kGroupHalfBytes >> 4) + j * (2 * kCoreBytes >> 4),
                        !first || half + j > 0);
  wgmma_commit();
}

// The sums of a tile go through shared memory (its copies have been consumed), so that whole lines are written.
template <int kTokens, int kRows, Output kOutput>
__device__ __forceinline__ void store_tile(const Problem& p, const Tile& t, int row_in_tile, int quad,
                                           const float (&sum)[kTokens / 2], uint8_t* shared) {
  using T = std::conditional_t<kOutput == Output::kBf16, __nv_bfloat16, float>;
  constexpr int kThreads = 2 * kRows, kVector = 16 / sizeof(T), kStride = kRows + kVector;
  T* rows = reinterpret_cast<T*>(shared);  // [token][kStride]
  group_sync(1, kThreads);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i)
    store<kOutput>(rows, (8 * (i / 4) + 2 * quad + i % 2) * kStride + row_in_tile + 8 * ((i / 2) % 2), sum[i]);
  group_sync(1, kThreads);
  const bool aligned = (reinterpret_cast<uintptr_t>(p.y) | p.y_stride * sizeof(T) | p.y_group * sizeof(T)) % 16 == 0;
  for (int i = threadIdx.x; i < t.group.rows * (kRows / kVector); i += kThreads) {
    const int token = i / (kRows / kVector), r = i % (kRows / kVector) * kVector, left = p.n - t.row0 - r;
    const int64_t y = p.output(t.group, token);
    if (y < 0 || left <= 0) continue;
    const T* from = rows + token * kStride + r;
    T* to = static_cast<T*>(p.y) + y + t.row0 + r;
    if (aligned && left >= kVector) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int e = 0; e < min(kVector, left); ++e) to[e] = from[e];
    }
  }
}

// The four CTAs of a cluster add up their sums of the same tile, each those of a quarter of its rows.
template <int kTokens, int kRows, Output kOutput>
__device__ __forceinline__ void add_quarters(const Problem& p, const Tile& t, int quarter, int row_in_tile, int quad,
                                             const float (&sum)[kTokens / 2], uint8_t* shared) {
  constexpr int kThreads = 2 * kRows, kMine = kRows / kQuarters, kVectors = kMine / 4,
                kRounds = kTokens * kVectors / kThreads, kStride = kRows + 4;  // in banks of their own
  float* partial = reinterpret_cast<float*>(shared);  // [token][kStride]; no copy is in flight any more
  group_sync(1, kThreads);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i)
    partial[(8 * (i / 4) + 2 * quad + i % 2) * kStride + row_in_tile + 8 * (i / 2 % 2)] = sum[i];
  cluster_sync();
  float4 total[kRounds];
  const int first = threadIdx.x / kVectors, r = quarter * kMine + threadIdx.x % kVectors * 4;
  constexpr int kStep = kThreads / kVectors;  // tokens of a round
  static_assert(kThreads % kVectors == 0 && kRounds * kThreads == kTokens * kVectors);
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    float4 q[kQuarters];
#pragma unroll
    for (int c = 0; c < kQuarters; ++c)
      q[c] = *reinterpret_cast<const float4*>(cluster_shared(partial + (first + i * kStep) * kStride + r, c));
    total[i].x = ((q[0].x + q[1].x) + q[2].x) + q[3].x, total[i].y = ((q[0].y + q[1].y) + q[2].y) + q[3].y;
    total[i].z = ((q[0].z + q[1].z) + q[2].z) + q[3].z, total[i].w = ((q[0].w + q[1].w) + q[2].w) + q[3].w;
  }
  cluster_arrive();  // in front of the stores, or it would wait until they are complete
  constexpr int kBytes = kOutput == Output::kBf16 ? 2 : 4;
  const bool aligned =
      (reinterpret_cast<uintptr_t>(p.y) | p.y_stride * kBytes | p.y_group * kBytes) % (4 * kBytes) == 0;
  const int left = p.n - t.row0 - r;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = first + i * kStep;
    const int64_t y = token < t.group.rows ? p.output(t.group, token) : -1, at = y + t.row0 + r;
    if (y < 0 || left <= 0) continue;
    const float x[4] = {total[i].x, total[i].y, total[i].z, total[i].w};
    if (!aligned || left < 4) {
      for (int e = 0; e < min(4, left); ++e) store<kOutput>(p.y, at + e, x[e]);
    } else if constexpr (kOutput == Output::kBf16) {
      const __nv_bfloat162 two[2] = {__floats2bfloat162_rn(x[0], x[1]), __floats2bfloat162_rn(x[2], x[3])};
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.y) + at) = *reinterpret_cast<const uint2*>(two);
    } else {
      *reinterpret_cast<float4*>(static_cast<float*>(p.y) + at) = total[i];
    }
  }
  cluster_wait();  // nobody leaves while its shared memory is being read
}

constexpr int kRowGroups = 2;  // warpgroups of 64 weight rows in a CTA of rows_kernel

// More tokens: each warpgroup takes 64 weight rows; all share the tokens. A further warpgroup copies weights and tokens
// in. kCluster: the four CTAs of a cluster take the four quarters of K and add up through each other's shared memory;
// otherwise one CTA takes all of K and holds the sum of the finished quarters in `total` (kWhole: K is not cut), and
// two CTAs with other weight rows share the tokens that they copy in, for the L2 cache is what limits this kernel.
// kCtas: CTAs of an SM.
enum class Cut { kWhole, kInTurn, kCluster };
template <WeightFormat kFormat, int kTokens, Output kOutput, int kStages, Cut kCut, int kCtas>
__global__ __launch_bounds__((kRowGroups + 1) * kWarpgroup, kCtas) void rows_kernel(const Problem p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr bool kCluster = kCut == Cut::kCluster;
  constexpr int kRows = 64 * kRowGroups, kTokenBytes = kTokens * 2 * kChunk;
  using Weights = WeightStage<kFormat, kRows>;
  constexpr int kStageBytes = kTokenBytes + Weights::kBytes;
  const int group = warpgroup_index(), thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const uint32_t base = kept_shared_address(shared), full = base + kStages * kStageBytes, empty = full + kStages * 8;
  const int quarter = kCluster ? blockIdx.x % kQuarters : 0;
  const int first = kCluster ? min(p.chunks, quarter * p.quarter) : 0,
            last = kCluster ? min(p.chunks, first + p.quarter) : p.chunks;

  // Weights that no other kernel chooses are on their way before the kernel in front has ended.
  const bool chosen_late = p.tiles != nullptr;
  if (chosen_late) wait_for_inputs();
  start_next_kernel();
  Tile t;
  if (!find_tile<kTokens>(p, blockIdx.x / (kCluster ? kQuarters : 1), blockIdx.y, kRows, &t)) return wait_for_inputs();
  if (threadIdx.x == 0) {
    uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + kStages * kStageBytes);
    for (int s = 0; s < kStages; ++s) {
      barrier_init(barriers + s, 1 + kWarpgroup);
      barrier_init(barriers + kStages + s, kRowGroups * 4 * (kCluster ? 1 : 2));
    }
    barrier_init_fence();
  }
  kCluster ? __syncthreads() : cluster_sync();

  if (group == kRowGroups) {
    if constexpr (kCtas == 1) registers_down<40>();
    const Producer<kFormat, kRows> producer(p.n, p.k, t.row0, thread);
    const auto issue_weights = [&](int c, int stage) {
      producer.issue(base + stage * kStageBytes + kTokenBytes, t.codes, t.scales, c, thread);
      barrier_arrive_after_loads(full + stage * 8);
    };
    const int early = chosen_late ? first : min(last, first + kStages);
    for (int c = first; c < early; ++c) issue_weights(c, c - first);
    if (!chosen_late) wait_for_inputs();
    TokenCopies<!kCluster> tokens(p.packed, t.group, 2 * p.chunks, 2 * first, kCluster ? 0 : blockIdx.x % 2);
    int stage = 0, round = 0;
    for (int c = first; c < last; ++c) {
      if (round > 0) barrier_wait(empty + stage * 8, (round - 1) & 1);
      if (thread == 0) {
        const uint32_t to = base + stage * kStageBytes;
        barrier_expect(full + stage * 8, 2 * tokens.all);
        tokens.start(to, full + stage * 8);
        tokens.start(to + kTokenBytes / 2, full + stage * 8);
      }
      if (c >= early) issue_weights(c, stage);
      if (++stage == kStages) stage = 0, ++round;
    }
    cluster_sync();
    if constexpr (kCluster) cluster_sync();
    return;
  }

  if constexpr (kCtas == 1) registers_up<232>();
  if (!chosen_late) wait_for_inputs();
  const int row_in_tile = 64 * group + 16 * warp + lane / 4, quad = lane % 4;
  float acc[kTokens / 2], total[kTokens / 2];
#pragma unroll
  for (int x = 0; x < kTokens / 2; ++x) acc[x] = total[x] = 0;
  const auto release = [&](uint32_t barrier) {  // the stage may be filled again
    __syncwarp();                               // all lanes have read it
    if (kCluster && lane == 0) barrier_arrive(barrier);
    if (!kCluster && lane < 2) barrier_arrive_remote(barrier, lane);
  };
  constexpr int kScaleRows = Fragment<kFormat>::kScaleRows == 0 ? 1 : Fragment<kFormat>::kScaleRows;
  const uint32_t place = Weights::place(row_in_tile, quad),
                 scale_place = Weights::kCodeBytes + row_in_tile / kScaleRows * 4;
  Operand<kFormat> even, odd;
  int stage = 0, phase = 0;
  const int step = kCluster ? last - first : p.quarter;
  for (int begin = first; begin < last; begin += step) {
    // One quarter. The tensor cores work on one half of a chunk while the other is expanded; sums are not touched in
    // between, or the compiler would wait for them every time.
    const int end = min(last, begin + step);
    for (int chunk = begin; chunk < end; ++chunk) {
      const uint32_t at = base + stage * kStageBytes, weights = at + kTokenBytes;
      const uint64_t tokens = matrix_descriptor(at, kCoreBytes, kGroupHalfBytes);
      barrier_wait(full + stage * 8, phase);
      if constexpr (kCtas > 1) {  // registers are short, and the other CTA keeps the tensor cores busy
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          even.template expand<kRows>(weights, place, scale_place, quad, half, p.shifts);
          multiply_half<kFormat, kTokens>(even, half, tokens, chunk == begin, acc);
          wgmma_wait<0>();
          even.keep_alive();
        }
        release(empty + stage * 8);
        if (++stage == kStages) stage = 0, phase ^= 1;
        continue;
      }
      even.template expand<kRows>(weights, place, scale_place, quad, 0, p.shifts);
      multiply_half<kFormat, kTokens>(even, 0, tokens, chunk == begin, acc);
      wgmma_wait<1>();
      odd.keep_alive();
      if (chunk > begin) release(empty + (stage == 0 ? kStages - 1 : stage - 1) * 8);
      odd.template expand<kRows>(weights, place, scale_place, quad, 1, p.shifts);
      multiply_half<kFormat, kTokens>(odd, 1, tokens, false, acc);
      wgmma_wait<1>();
      even.keep_alive();
      if (++stage == kStages) stage = 0, phase ^= 1;
    }
    if constexpr (kCtas == 1) {
      wgmma_wait<0>();
      odd.keep_alive();
      release(empty + (stage == 0 ? kStages - 1 : stage - 1) * 8);
    }
    if constexpr (kCut == Cut::kInTurn) {
#pragma unroll
      for (int x = 0; x < kTokens / 2; ++x) total[x] = begin == first ? acc[x] : total[x] + acc[x];
    }
  }
  if constexpr (kCluster) {
    add_quarters<kTokens, kRows, kOutput>(p, t, quarter, row_in_tile, quad, acc, shared);
  } else {
    cluster_arrive();  // in front of the stores, or it would wait until they are complete
    store_tile<kTokens, kRows, kOutput>(p, t, row_in_tile, quad, kCut == Cut::kWhole ? acc : total, shared);
    cluster_wait();  // nobody leaves while the other may still write to it
  }
}

template <WeightFormat kFormat, Output kOutput, int kTokens, Cut kCut>
void launch_rows(const Problem& p, cudaStream_t stream) {
  // Two CTAs on an SM where registers and stages allow.
  constexpr int kRows = 64 * kRowGroups, kStageBytes = kTokens * 2 * kChunk + WeightStage<kFormat, kRows>::kBytes;
  constexpr int kCtas = kCut != Cut::kInTurn && kTokens <= 64 && kFormat != WeightFormat::kBf16 ? 2 : 1,
                kStages = std::min(8, (220 << 10) / kCtas / kStageBytes);
  static_assert(kStages >= 3 && kStages * kStageBytes >= kTokens * (kRows + 8) * 4);
  const int row_tiles = (p.n + kRows - 1) / kRows,
            ctas = kCut == Cut::kCluster ? row_tiles * kQuarters : (row_tiles + 1) / 2 * 2;
  launch_problem(rows_kernel<kFormat, kTokens, kOutput, kStages, kCut, kCtas>, dim3(ctas, p.token_tiles),
                 (kRowGroups + 1) * kWarpgroup, kStages * (kStageBytes + 16), kCut == Cut::kCluster ? kQuarters : 2, p,
                 stream);
}

template <WeightFormat kFormat, Output kOutput, int kTokens>
void launch_tokens(const Problem& p, cudaStream_t stream) {
  if (p.quarter == p.chunks) return launch_rows<kFormat, kOutput, kTokens, Cut::kWhole>(p, stream);
  if ((p.n + 127) / 128 * p.token_tiles < 2 * multiprocessors())
    return launch_rows<kFormat, kOutput, kTokens, Cut::kCluster>(p, stream);
  launch_rows<kFormat, kOutput, kTokens, Cut::kInTurn>(p, stream);
}

template <WeightFormat kFormat, Output kOutput>
void launch_format(int tokens, const Problem& p, cudaStream_t stream) {
  switch (tokens) {
    case 32: return launch_tokens<kFormat, kOutput, 32>(p, stream);
    case 64: return launch_tokens<kFormat, kOutput, 64>(p, stream);
    default: return launch_tokens<kFormat, kOutput, 128>(p, stream);
  }
}

}  // namespace

void multiply_many(WeightFormat format, Output output, int tokens, const Problem& p, cudaStream_t stream) {
  const bool bf16 = output == Output::kBf16;
  switch (format) {
    case WeightFormat::kFp8:
      return bf16 ? launch_format<WeightFormat::kFp8, Output::kBf16>(tokens, p, stream)
                  : launch_format<WeightFormat::kFp8, Output::kFp32>(tokens, p, stream);
    case WeightFormat::kFp4:
      return bf16 ? launch_format<WeightFormat::kFp4, Output::kBf16>(tokens, p, stream)
                  : launch_format<WeightFormat::kFp4, Output::kFp32>(tokens, p, stream);
    default:
      return bf16 ? launch_format<WeightFormat::kBf16, Output::kBf16>(tokens, p, stream)
                  : launch_format<WeightFormat::kBf16, Output::kFp32>(tokens, p, stream);
  }
}

}  // namespace deepinfer::ops::cuda
