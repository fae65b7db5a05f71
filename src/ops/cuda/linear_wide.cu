// Linear layers of prefill, FP8: tiles of 128 weight rows x up to 256 tokens, so that expanding a weight and copying
// it in are shared by many tokens.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/many.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kGroups = 2;  // multiplying warpgroups of a CTA, 64 weight rows each
constexpr int kRows = 64 * kGroups, kPairRows = 2 * kRows, kThreads = (kGroups + 1) * kWarpgroup;
constexpr int kWeightThreads = 64, kCopies = kRows * 4 / kWeightThreads;  // that copy weights in, 16 bytes at a time
constexpr int kHalf = kChunk / 2;                                         // columns of a stage
constexpr int kCodeBytes = kRows * kHalf, kScaleRows = kRows / 32;
constexpr int kBand = 8;  // token tiles whose CTAs run side by side, over as many weight rows as fill the GPU
constexpr int kStoreBytes = 64 * (64 + 8) * 2;  // of a warpgroup, for a piece of its outputs
constexpr int kSharedBytes = 227 << 10;

// kKept of a thread's sums of the finished quarters of K stay in registers, the others lie in shared memory.
template <int kTokens, bool kCut>
struct Layout {
  static constexpr int kSums = kTokens / 2, kKept = kCut ? 64 : kSums;
  // Registers for a second operand; else a warpgroup expands while the products of the other one are under way.
  static constexpr bool kTwo = kSums + (kCut ? kKept : 0) <= 160;
  static constexpr int kTotalBytes = (kSums - kKept) * 4 * kWarpgroup;  // of a warpgroup
  static constexpr int kTokenBytes = kTokens * 2 * kHalf;
  static constexpr int kStageBytes = kTokenBytes + kCodeBytes + 128;
  static constexpr int kSpareBytes = std::max(kTotalBytes, kStoreBytes);  // of a warpgroup: totals, later outputs
  static constexpr int kStages = std::min(8, (kSharedBytes - kGroups * kSpareBytes) / (kStageBytes + 16));
  static constexpr int kBytes = kStages * (kStageBytes + 16) + kGroups * kSpareBytes;
  static_assert(kStages >= 3 && kKept % 4 == 0);
};

// Tile `index` of a pair of CTAs.
struct PairTile {
  GroupTile group;
  int row0;
};
template <int kTokens>
__device__ __forceinline__ PairTile pair_tile(const Problem& p, int index) {
  const int band = index / (p.row_tiles * kBand), first = band * kBand, width = min(kBand, p.token_tiles - first),
            rest = index - band * p.row_tiles * kBand;
  return {p.tile(first + rest % width, kTokens), rest / width * kPairRows};
}

// The A operand of half a chunk. wgmma reads these registers after it was issued, which the compiler does not know:
// keep_alive() stands behind the wait that ends the reading.
struct Operand {
  using F = Fragment<WeightFormat::kFp8>;
  uint32_t a[4][4];

  // codes: this lane's vector of its first row; scales: the word of the row's block.
  template <int kPart>
  __device__ __forceinline__ void expand(uint32_t codes, uint32_t scales, int quad, const Shifts& shifts) {
    uint4 v[2][F::kVectors];
    uint32_t f[F::kFactors];
    v[0][kPart] = shared_load(codes);
    v[1][kPart] = shared_load(codes + 8 * kHalf);
    F::factors(shared_load_word(scales), 0, quad, f);
#pragma unroll
    for (int j = 0; j < 4; ++j) F::expand(v, 4 * kPart + j, f, shifts, a[j]);
  }
  __device__ __forceinline__ void keep_alive() const {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" ::"r"(a[j][0]), "r"(a[j][1]), "r"(a[j][2]), "r"(a[j][3]));
  }
};

template <int kTokens>
__device__ __forceinline__ void multiply(const Operand& w, uint64_t tokens, bool first, float (&acc)[kTokens / 2]) {
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) wgmma_bf16<kTokens>(acc, w.a[j], tokens + j * (2 * kCoreBytes >> 4), !first || j > 0);
  wgmma_commit();
}

// A warpgroup's sums of 64 weight rows go through shared memory, in pieces, so that whole lines are written.
template <int kTokens, Output kOutput>
__device__ __forceinline__ void store_rows(const Problem& p, const GroupTile& t, int row0, int thread, int barrier,
                                           const float (&sum)[kTokens / 2], uint8_t* staging) {
  constexpr bool kBf16 = kOutput == Output::kBf16;
  using T = std::conditional_t<kBf16, __nv_bfloat16, float>;
  constexpr int kPiece = kBf16 ? 64 : 32, kVector = 16 / sizeof(T), kStride = 64 + kVector, kRowVectors = 64 / kVector;
  static_assert(kPiece * kStride * sizeof(T) <= kStoreBytes && kTokens % kPiece == 0);
  T* rows = reinterpret_cast<T*>(staging);  // [token][kStride]
  const int warp = thread / 32, lane = thread % 32;
  const bool aligned = (reinterpret_cast<uintptr_t>(p.y) | p.y_stride * sizeof(T) | p.y_group * sizeof(T)) % 16 == 0;
  const int r = thread % kRowVectors * kVector, left = p.n - row0 - r;
  T* to = static_cast<T*>(p.y) + p.output(t, 0) + row0 + r;
#pragma unroll
  for (int first = 0; first < kTokens; first += kPiece) {
    if (first >= t.rows) break;
    group_sync(barrier, kWarpgroup);  // what lay here has been read
    if constexpr (kBf16) {
#pragma unroll
      for (int i = 0; i < kPiece / 8; i += 2) {
        uint32_t m[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float* s = sum + (first / 8 + i) * 4 + 2 * e;
          const __nv_bfloat162 pair(__float2bfloat16_rn(s[0]), __float2bfloat16_rn(s[1]));
          m[e] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        shared_store_transposed(
            shared_address(rows + (8 * (i + lane / 16) + lane % 8) * kStride + 16 * warp + lane / 8 % 2 * 8), m);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPiece / 2; ++i)
        rows[(8 * (i / 4) + 2 * (lane % 4) + i % 2) * kStride + 16 * warp + lane / 4 + 8 * ((i / 2) % 2)] =
            sum[first / 2 + i];
    }
    group_sync(barrier, kWarpgroup);
#pragma unroll
    for (int i = 0; i < kPiece * kRowVectors / kWarpgroup; ++i) {
      const int token = thread / kRowVectors + i * (kWarpgroup / kRowVectors);
      if (first + token >= t.rows || left <= 0) continue;
      const T* from = rows + token * kStride + r;
      T* y = to + (first + token) * p.y_stride;
      if (aligned && left >= kVector) {
        *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(from);
      } else {
        for (int e = 0; e < min(kVector, left); ++e) y[e] = from[e];
      }
    }
  }
}

// Persistent pairs of CTAs: both take the same tokens, of which each copies half in for both, and 128 weight rows each.
// Two warpgroups multiply, a third copies ahead over the borders of tiles: stages of half a chunk.
template <int kTokens, Output kOutput, bool kCut>
__global__ __launch_bounds__(kThreads, 1) __cluster_dims__(2, 1, 1) void wide_kernel(const Problem p) {
  extern __shared__ __align__(128) uint8_t shared[];
  using L = Layout<kTokens, kCut>;
  constexpr int kStages = L::kStages, kStageBytes = L::kStageBytes;
  const int group = warpgroup_index(), thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32,
            rank = blockIdx.x % 2;
  uint8_t* spare = shared + kStages * kStageBytes + group % kGroups * L::kSpareBytes;
  if (threadIdx.x == 0) {
    uint64_t* barriers = reinterpret_cast<uint64_t*>(shared + kStages * kStageBytes + kGroups * L::kSpareBytes);
    for (int s = 0; s < kStages; ++s) {
      barrier_init(barriers + s, 1 + kWeightThreads);
      barrier_init(barriers + kStages + s, kGroups * 4 * 2);
    }
    barrier_init_fence();
  }
  cluster_sync();
  start_next_kernel();
  wait_for_inputs();
  const int total = p.row_tiles * p.token_tiles, step = gridDim.x / 2;

  const uint32_t base = kept_shared_address(shared), full = base + kStages * kStageBytes + kGroups * L::kSpareBytes,
                 empty = full + kStages * 8;
  if (group == kGroups) {
    registers_down<56>();
    int stage = 0, phase = 1;
    uint32_t at = base;
    const auto advance = [&] {
      at += kStageBytes;
      if (++stage == kStages) stage = 0, phase ^= 1, at = base;
    };
    const int halves = 2 * p.chunks;
    for (int index = blockIdx.x / 2; index < total; index += step) {
      const PairTile t = pair_tile<kTokens>(p, index);
      if (thread >= kWeightThreads) {  // one thread: tokens
        if (thread > kWeightThreads) break;
        TokenCopies<true> tokens(p.packed, t.group, halves, 0, rank);
        for (int half = 0; half < halves; ++half) {
          barrier_wait(empty + stage * 8, phase);
          barrier_expect(full + stage * 8, tokens.all);
          tokens.start(at, full + stage * 8);
          advance();
        }
        continue;
      }
      const int row0 = t.row0 + rank * kRows;
      const uint8_t* codes = p.codes + t.group.expert * p.codes_stride + thread % 4 * 16;
      const uint8_t* scales = p.scales + t.group.expert * p.scales_stride +
                              static_cast<uint32_t>(min(row0 + thread * 32, p.n - 1) / 32) * (p.k / 32);
      // Rows beyond the last read the last: their sums are thrown away.
      const uint32_t offset = static_cast<uint32_t>(row0 + thread / 4) * static_cast<uint32_t>(p.k),
                     between = static_cast<uint32_t>(p.k) * (kWeightThreads / 4),
                     last = static_cast<uint32_t>(p.n - 1) * static_cast<uint32_t>(p.k);
      for (int half = 0; half < halves; ++half) {
        barrier_wait(empty + stage * 8, phase);
        const uint32_t to = at + L::kTokenBytes + thread * 16;
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
          async_load<16>(to + i * (kWeightThreads * 16), codes + min(offset + i * between, last));
        if (thread < kScaleRows) async_load<4>(at + L::kTokenBytes + kCodeBytes + thread * 4, scales + half / 2 * 4);
        barrier_arrive_after_loads(full + stage * 8);
        codes += kHalf;
        advance();
      }
    }
    __syncwarp();
    cluster_sync();
    return;
  }

  registers_up<224>();
  const int row_in_tile = 64 * group + 16 * warp + lane / 4, quad = lane % 4;
  const uint32_t place = L::kTokenBytes + row_in_tile * kHalf + quad * 16,
                 scale_place = L::kTokenBytes + kCodeBytes + row_in_tile / 32 * 4;
  const auto release = [&](int stage) {  // it may be filled again, by both CTAs
    __syncwarp();                        // all lanes have read it
    if (lane < 2) barrier_arrive_remote(empty + stage * 8, lane);
  };
  int stage = 0, phase = 0;
  uint32_t at = base;
  const auto advance = [&] {
    const int before = stage;
    at += kStageBytes;
    if (++stage == kStages) stage = 0, phase ^= 1, at = base;
    return before;
  };
  for (int index = blockIdx.x / 2; index < total; index += step) {
    float acc[L::kSums], kept[L::kKept];
    for (int begin = 0; begin < p.chunks; begin += p.quarter) {
      // The tensor cores work on one half of a chunk while the other is expanded; sums are not touched in between, or
      // the compiler would wait for them every time.
      const int end = min(p.chunks, begin + p.quarter);
      Operand even, odd;
      int before = 0;
      for (int chunk = begin; chunk < end; ++chunk) {
        barrier_wait(full + stage * 8, phase);
        even.template expand<0>(at + place, at + scale_place, quad, p.shifts);
        multiply<kTokens>(even, matrix_descriptor(at, kCoreBytes, kGroupHalfBytes), chunk == begin, acc);
        if constexpr (L::kTwo) {
          wgmma_wait<1>();
          odd.keep_alive();
          if (chunk > begin) release(before);
          before = advance();
        } else {
          wgmma_wait<0>();
          even.keep_alive();
          release(advance());
        }
        barrier_wait(full + stage * 8, phase);
        Operand& second = L::kTwo ? odd : even;
        second.template expand<1>(at + place, at + scale_place, quad, p.shifts);
        multiply<kTokens>(second, matrix_descriptor(at, kCoreBytes, kGroupHalfBytes), false, acc);
        if constexpr (L::kTwo) {
          wgmma_wait<1>();
          even.keep_alive();
          release(before);
          before = advance();
        } else {
          wgmma_wait<0>();
          even.keep_alive();
          release(advance());
        }
      }
      if constexpr (L::kTwo) {
        wgmma_wait<0>();
        odd.keep_alive();
        release(before);
      }
      if constexpr (kCut) {
        float4* totals = reinterpret_cast<float4*>(spare) + thread;  // [four sums][thread]
        if (begin == 0) {
          group_sync(1 + group, kWarpgroup);  // the outputs before have been stored
#pragma unroll
          for (int x = 0; x < L::kKept; ++x) kept[x] = acc[x];
#pragma unroll
          for (int x = L::kKept; x < L::kSums; x += 4)
            totals[(x - L::kKept) / 4 * kWarpgroup] = make_float4(acc[x], acc[x + 1], acc[x + 2], acc[x + 3]);
        } else {
          const bool more = end < p.chunks;
#pragma unroll
          for (int x = 0; x < L::kKept; ++x) kept[x] += acc[x];
#pragma unroll
          for (int x = L::kKept; x < L::kSums; x += 4) {
            float4* at = totals + (x - L::kKept) / 4 * kWarpgroup;
            const float4 sum = *at;
            acc[x] = sum.x + acc[x], acc[x + 1] = sum.y + acc[x + 1], acc[x + 2] = sum.z + acc[x + 2],
            acc[x + 3] = sum.w + acc[x + 3];
            if (more) *at = make_float4(acc[x], acc[x + 1], acc[x + 2], acc[x + 3]);
          }
        }
      }
    }
    if constexpr (kCut) {
#pragma unroll
      for (int x = 0; x < L::kKept; ++x) acc[x] = kept[x];
    }
    const PairTile t = pair_tile<kTokens>(p, index);
    store_rows<kTokens, kOutput>(p, t.group, t.row0 + rank * kRows + 64 * group, thread, 1 + group, acc, spare);
  }
  cluster_sync();  // nobody leaves while the other may still write to it
}

template <int kTokens, Output kOutput, bool kCut>
void launch_wide(Problem p, cudaStream_t stream) {
  p.row_tiles = (p.n + kPairRows - 1) / kPairRows;
  launch_problem(wide_kernel<kTokens, kOutput, kCut>,
                 dim3(2 * std::min(p.row_tiles * p.token_tiles, multiprocessors() / 2)), kThreads,
                 Layout<kTokens, kCut>::kBytes, 1, p, stream);
}

template <int kTokens, Output kOutput>
void launch_tokens(const Problem& p, cudaStream_t stream) {
  p.quarter < p.chunks ? launch_wide<kTokens, kOutput, true>(p, stream)
                       : launch_wide<kTokens, kOutput, false>(p, stream);
}

template <Output kOutput>
void launch_output(int tokens, const Problem& p, cudaStream_t stream) {
  tokens == 192 ? launch_tokens<192, kOutput>(p, stream) : launch_tokens<256, kOutput>(p, stream);
}

}  // namespace

int wide_tokens(int n, int k, int count, int rows) {
  // Time of a tile times rounds of tiles, in columns of this kernel's products; those of linear_many.cu take longer.
  const int pairs = (n + kPairRows - 1) / kPairRows, sms = multiprocessors();
  const auto rounds = [](int tiles, int at_once) { return static_cast<double>((tiles + at_once - 1) / at_once); };
  const int others = count * ((n + 127) / 128) * ((rows + 127) / 128);
  const bool quartered = k / kChunk > kWholeChunks && others < 2 * sms;  // a CTA a quarter of K
  double least = 1.3 * 128 * (quartered ? rounds(kQuarters * others, sms) / kQuarters : rounds(others, sms));
  int best = 0;
  for (int tokens : {192, 256}) {
    const double time =
        (tokens == 256 ? 1.02 : 1) * tokens * rounds(count * pairs * ((rows + tokens - 1) / tokens), sms / 2);
    if (rows > 128 && time < least) best = tokens, least = time;
  }
  return best;
}

void multiply_wide(Output output, int tokens, const Problem& p, cudaStream_t stream) {
  output == Output::kBf16 ? launch_output<Output::kBf16>(tokens, p, stream)
                          : launch_output<Output::kFp32>(tokens, p, stream);
}

}  // namespace deepinfer::ops::cuda
