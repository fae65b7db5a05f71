#include "ops/cuda/linear.h"

#include <algorithm>
#include <cassert>
#include <type_traits>

#include <cuda_bf16.h>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kCoreBytes = 128;                              // 8 rows x 16 bytes
constexpr int kGroupChunkBytes = kChunk / 8 * kCoreBytes;    // 8 packed rows of one chunk
constexpr int kPackedGroups = kPackedRows / 8;
constexpr int kQuarters = 4;
constexpr int kWholeChunks = 18;                             // up to this many chunks K is not cut

struct Problem {
  const uint8_t* codes;
  const uint8_t* scales;
  int n, k, chunks;
  int quarter;                   // chunks in each quarter (the last ones may hold fewer); all chunks where K is not cut
  int64_t codes_stride, scales_stride;
  const uint8_t* packed;
  void* y;
  int64_t y_stride;
  int rows;                      // plain and batched: rows of each matrix
  int row_tiles, token_tiles;
  int tiles_each, group_rows;    // batched: token tiles and packed rows of each matrix
  int64_t y_group;               // elements between the outputs of two matrices
  const int32_t* y_rows;         // output row of each packed row, or nullptr
  const GroupTile* tiles;        // grouped: else nullptr
  const int32_t* tile_count;
  Shifts shifts;

  __device__ __forceinline__ GroupTile tile(int index, int tokens) const {
    if (tiles != nullptr) return tiles[index];
    const int group = index / tiles_each, first = index % tiles_each * tokens;
    return {group, group * group_rows + first, min(tokens, rows - first)};
  }
  // Where the output of a packed row begins; -1: nowhere.
  __device__ __forceinline__ int64_t output(const GroupTile& g, int token) const {
    const int row = g.first_row + token;
    if (y_rows != nullptr) return y_rows[row] < 0 ? -1 : y_rows[row] * y_stride;
    return tiles != nullptr ? row * y_stride : (row - g.expert * group_rows) * y_stride + g.expert * y_group;
  }
};

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

// Starts the copy of one chunk of the tile's tokens to shared memory: [group][16 cores][8 rows][16 bytes], in one piece where the
// tile does not cross packed tiles. kShare: half of it, into both CTAs of a pair.
template <bool kShare>
__device__ __forceinline__ void load_tokens(const uint8_t* packed, const GroupTile& t, int chunks, int chunk, int rank, uint8_t* to, uint64_t* barrier) {
  const int groups = (t.rows + 7) / 8, half = (groups + 1) / 2;
  barrier_expect(barrier, groups * kGroupChunkBytes);
  int g = kShare && rank == 1 ? half : 0;
  const int end = kShare && rank == 0 ? half : groups;
  while (g < end) {
    const int at = t.first_row / 8 + g, run = min(end - g, kPackedGroups - at % kPackedGroups);
    const uint8_t* from = packed + ((static_cast<int64_t>(at / kPackedGroups) * chunks + chunk) * kPackedGroups + at % kPackedGroups) * kGroupChunkBytes;
    if constexpr (kShare) {
      bulk_load_multicast(to + g * kGroupChunkBytes, from, run * kGroupChunkBytes, barrier, 3);
    } else {
      bulk_load(to + g * kGroupChunkBytes, from, run * kGroupChunkBytes, barrier);
    }
    g += run;
  }
}

// A stage's weights in shared memory: kRows rows of one chunk as stored, odd rows with neighbouring 64 bytes swapped so that
// eight lanes read different banks; then the scales, a word a scale row.
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
  // One of 128 producing threads starts its copies.
  __device__ __forceinline__ static void issue(uint32_t stage, const uint8_t* codes, const uint8_t* scales, int n, int k, int row0, int chunk, int thread) {
    const int64_t row_stride = static_cast<int64_t>(k / kChunk) * F::kRowBytes;
#pragma unroll
    for (int i = 0; i < kRows * kRowVectors / kWarpgroup; ++i) {
      const int at = i * kWarpgroup + thread, row = at / kRowVectors, v = at % kRowVectors;
      async_load<16>(stage + place(row, v), codes + min(row0 + row, n - 1) * row_stride + static_cast<int64_t>(chunk) * F::kRowBytes + v * 16);
    }
    if constexpr (kScaleRows > 0) {
      if (thread >= kScaleRows) return;
      const int64_t row = min(row0 + thread * F::kScaleRows, n - 1) / F::kScaleRows;
      async_load<4>(stage + kCodeBytes + thread * 4, scales + row * (k / 32) + chunk * 4);
    }
  }
};

// Half a chunk's A operand. wgmma reads these registers after it was issued, which the compiler does not know: keep_alive() stands
// behind the wait that ends the reading.
template <WeightFormat kFormat>
struct Operand {
  using F = Fragment<kFormat>;
  uint32_t a[4][4];

  // row: this lane's first row of the stage (the second is 8 further).
  template <int kRows>
  __device__ __forceinline__ void expand(uint32_t stage, int row, int quad, int half, const Shifts& shifts) {
    using S = WeightStage<kFormat, kRows>;
    constexpr int kHalfVectors = F::kVectors > 1 ? F::kVectors / 2 : 1;
    uint4 v[2][F::kVectors];
    uint32_t scales[2] = {}, f[F::kFactors];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < kHalfVectors; ++i) {
        const int vector = F::kVectors > 1 ? half * kHalfVectors + i : 0;
        v[h][vector] = shared_load(stage + S::place(row + 8 * h, vector * 4 + quad));
      }
      if constexpr (F::kScaleRows > 0) scales[h] = shared_load_word(stage + S::kCodeBytes + (row + 8 * h) / F::kScaleRows * 4);
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

// Starts acc (+)= half a chunk of weights x tokens.
template <WeightFormat kFormat, int kTokens>
__device__ __forceinline__ void multiply_half(const Operand<kFormat>& w, int half, const uint8_t* tokens, bool first, float (&acc)[kTokens / 2]) {
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint8_t* b = tokens + 2 * (4 * half + j) * kCoreBytes;
    wgmma_bf16<kTokens>(acc, w.a[j], matrix_descriptor(b, kCoreBytes, kGroupChunkBytes), !first || half + j > 0);
  }
  wgmma_commit();
}

template <Output kOutput>
__device__ __forceinline__ void store(void* y, int64_t index, float v) {
  if constexpr (kOutput == Output::kBf16) {
    static_cast<__nv_bfloat16*>(y)[index] = __float2bfloat16_rn(v);
  } else {
    static_cast<float*>(y)[index] = v;
  }
}

// The same value for all threads of a warp as far as the compiler can see; without that it serialises wgmma.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0); }

constexpr int kStreamWarps = 8, kStreamThreads = 32 * kStreamWarps;

// What a warp of stream_kernel takes, by format: kParts sets of 16 weight rows at once (two for FP4, whose expansion costs most: they
// share activations and addresses and their chains of sums overlap), and CTAs on an SM.
template <WeightFormat kFormat>
struct StreamShape {
  static constexpr int kParts = kFormat == WeightFormat::kFp4 ? 2 : 1, kCtas = kFormat == WeightFormat::kFp4 ? 2 : 3;
};

// Where a thread keeps the weight chunks on their way: a ring of private slots in shared memory, each vector of a slot contiguous
// over the threads. Copies need no registers and no scoreboard, so consuming one chunk never waits for a later one.
template <WeightFormat kFormat, int kParts>
struct Slot {
  using F = Fragment<kFormat>;
  static constexpr int kScales = F::kScaleRows == 0 ? 0 : F::kScaleRows >= 16 ? 1 : 2;  // words a chunk and part
  static constexpr int kVectorBytes = 2 * F::kVectors * 16 * kStreamThreads;             // of a part
  static constexpr int kBytes = kParts * (kVectorBytes + kScales * 4 * kStreamThreads);

  __device__ __forceinline__ static void issue(uint32_t slot, const Rows16<kFormat>& rows, int part, int chunk) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < F::kVectors; ++i) {
        async_load<16>(slot + part * kVectorBytes + (h * F::kVectors + i) * kStreamThreads * 16 + threadIdx.x * 16, rows.code[h] + chunk * F::kRowBytes + i * F::kVectorStep);
      }
      if (h < kScales) async_load<4>(slot + kParts * kVectorBytes + (part * kScales + h) * kStreamThreads * 4 + threadIdx.x * 4, rows.scale[h] + chunk * 4);
    }
  }
  __device__ __forceinline__ static void read(uint32_t slot, int part, uint4 (&v)[2][F::kVectors], uint32_t (&scales)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < F::kVectors; ++i) v[h][i] = shared_load(slot + part * kVectorBytes + (h * F::kVectors + i) * kStreamThreads * 16 + threadIdx.x * 16);
      if (h < kScales) scales[h] = shared_load_word(slot + kParts * kVectorBytes + (part * kScales + h) * kStreamThreads * 4 + threadIdx.x * 4);
    }
  }
};

// Bytes of activations that a CTA of stream_kernel holds in shared memory: one row of the widest matrix, eight of the narrowest.
// bf16 weights need the room themselves; experts have other activations in every tile.
__host__ __device__ constexpr int activation_bytes(WeightFormat format, int tokens, int ctas) {
  return format == WeightFormat::kFp8 && tokens == 8 && ctas <= 2 ? 21 << 10 : 0;
}

// Few tokens. A warp takes 16 weight rows (FP4: 32) of one quarter of K (of all of K where it is not cut) and streams them, kSlots
// chunks ahead, across the borders of its tiles, so that memory never idles. CTAs are persistent. Weights that no other kernel
// chooses are on their way before the kernel in front has ended.
template <WeightFormat kFormat, int kParts, int kTokens, Output kOutput, int kSlots, bool kCut, int kCtas>
__global__ __launch_bounds__(kStreamThreads, kCtas) void stream_kernel(const Problem p) {
  extern __shared__ __align__(128) uint8_t shared[];
  using F = Fragment<kFormat>;
  constexpr int kSplit = kCut ? kQuarters : 1, kRowWarps = kStreamWarps / kSplit, kRows = 16 * kParts * kRowWarps, kGroups = kTokens / 8;
  using Slots = Slot<kFormat, kParts>;
  constexpr int kSlotBytes = Slots::kBytes, kRingBytes = kSlots * kSlotBytes;
  constexpr int kActivationBytes = activation_bytes(kFormat, kTokens, kCtas);
  uint8_t* activations = shared + kRingBytes;
  float* partial = reinterpret_cast<float*>(shared + kRingBytes + kActivationBytes);  // [quarter][token][row]
  __shared__ uint64_t loaded;
  int resident_row = -1, phase = 0;
  if (kActivationBytes > 0 && threadIdx.x == 0) barrier_init(&loaded, 1), barrier_init_fence();
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32, quad = lane % 4;
  const int quarter = warp / kRowWarps, first = quarter * p.quarter, last = min(p.chunks, first + p.quarter);
  const int row_in_tile = 16 * kParts * (warp % kRowWarps) + lane / 4;
  start_next_kernel();
  if (p.tiles != nullptr) wait_for_inputs();
  const int total = p.row_tiles * (p.tiles != nullptr ? min(*p.tile_count, p.token_tiles) : p.token_tiles);

  // Copies run ahead of the sums: into the slot that was read last.
  int ahead_tile = blockIdx.x, ahead_chunk = first;
  Rows16<kFormat> rows[kParts];
  const auto find_rows = [&] {
    if (ahead_tile >= total) return;
    const int expert = p.tile(ahead_tile / p.row_tiles, kTokens).expert;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      rows[i].set(p.codes + expert * p.codes_stride, p.scales + expert * p.scales_stride, p.n, p.k, ahead_tile % p.row_tiles * kRows + row_in_tile + 16 * i, quad);
    }
  };
  const auto issue = [&](uint32_t slot) {
    if (ahead_tile < total) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) Slots::issue(slot, rows[i], i, ahead_chunk);
      if (++ahead_chunk == last) {
        ahead_chunk = first;
        ahead_tile += gridDim.x;
        find_rows();
      }
    }
    async_commit();
  };
  const uint32_t ring = shared_address(shared), ring_end = ring + kRingBytes;
  if (first < last) {
    find_rows();
    for (int i = 0; i < kSlots - 1; ++i) issue(ring + i * kSlotBytes);
  }
  if (p.tiles == nullptr) wait_for_inputs();

  uint32_t slot = ring, free_slot = ring_end - kSlotBytes;
  for (int tile = blockIdx.x; tile < total; tile += gridDim.x) {
    const GroupTile group = p.tile(tile / p.row_tiles, kTokens);
    // Few activations come into shared memory first: a load to registers would wait in line behind the weights on their way, for every
    // chunk. Lanes without a token read the last one's values, which costs nothing: their sums are thrown away.
    const int x_stride = p.chunks * 256 + 64;  // rows begin in different banks
    const bool resident = kActivationBytes > 0 && group.rows * x_stride <= kActivationBytes;
    if (resident && (p.tiles != nullptr || group.first_row != resident_row)) {
      if constexpr (!kCut) __syncthreads();  // nobody reads the ones before any more
      if (threadIdx.x == 0) {
        barrier_expect(&loaded, group.rows * p.chunks * 256);
        for (int r = 0; r < group.rows; ++r) bulk_load(activations + r * x_stride, p.packed + static_cast<int64_t>(group.first_row + r) * p.chunks * 256, p.chunks * 256, &loaded);
      }
      barrier_wait(&loaded, phase);
      phase ^= 1;
      resident_row = group.first_row;
    }
    const uint8_t* x[kGroups];
    uint32_t resident_x = shared_address(activations) + min(lane / 4, group.rows - 1) * x_stride + first * 256 + quad * 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) x[g] = p.packed + (static_cast<int64_t>(group.first_row + min(8 * g + lane / 4, group.rows - 1)) * p.chunks + first) * 256 + quad * 16;
    constexpr bool kAhead = kFormat != WeightFormat::kFp4 && kCtas <= 2 && kGroups == 1;  // registers allow to load a chunk ahead
    uint4 b[kGroups][4], ahead[kGroups][4];
    const auto load_activations = [&](uint4 (&to)[kGroups][4]) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[g][i] = *reinterpret_cast<const uint4*>(x[g] + i * 64);
        x[g] += 256;
      }
    };
    if (kAhead && !resident && first < last) load_activations(ahead);
    float acc[kParts][kGroups][4] = {};
    for (int chunk = first; chunk < last; ++chunk) {
      if (resident) {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[0][i] = shared_load(resident_x + i * 64);
        resident_x += 256;
      } else if constexpr (kAhead) {
#pragma unroll
        for (int i = 0; i < 4; ++i) b[0][i] = ahead[0][i];
        if (chunk + 1 < last) load_activations(ahead);
      } else {
        load_activations(b);
      }
      async_wait<kSlots - 2>();
      uint4 v[kParts][2][F::kVectors];
      uint32_t f[kParts][F::kFactors];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        uint32_t scales[2] = {};
        Slots::read(slot, i, v[i], scales);
        F::factors(scales[0], scales[1], quad, f[i]);
      }
      issue(free_slot);
      free_slot = slot;
      slot += kSlotBytes;
      if (slot == ring_end) slot = ring;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          uint32_t a[4];
          F::expand(v[i], j, f[i], p.shifts, a);
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            const uint4 u = b[g][j / 2];
            mma_bf16(acc[i][g], a, j % 2 ? u.z : u.x, j % 2 ? u.w : u.y);
          }
        }
      }
    }

    const int row0 = tile % p.row_tiles * kRows;
    if constexpr (kCut) __syncthreads();  // the sums before have been read
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int token = 8 * g + 2 * quad + e % 2, r = row_in_tile + 16 * i + 8 * (e / 2);
          if constexpr (kCut) {
            partial[(quarter * kTokens + token) * kRows + r] = acc[i][g][e];
          } else if (token < group.rows && row0 + r < p.n) {
            if (const int64_t y = p.output(group, token); y >= 0) store<kOutput>(p.y, y + row0 + r, acc[i][g][e]);
          }
        }
      }
    }
    if constexpr (kCut) {
      __syncthreads();
      for (int s = threadIdx.x; s < group.rows * kRows; s += kStreamThreads) {
        const int64_t y = p.output(group, s / kRows);
        if (row0 + s % kRows >= p.n || y < 0) continue;
        const float* q = partial + s;
        constexpr int kNext = kTokens * kRows;
        store<kOutput>(p.y, y + row0 + s % kRows, ((q[0] + q[kNext]) + q[2 * kNext]) + q[3 * kNext]);
      }
    }
  }
}

// The sums of a tile go through shared memory (its copies have been consumed), so that whole lines are written.
template <int kTokens, int kRows, Output kOutput>
__device__ __forceinline__ void store_tile(const Problem& p, const Tile& t, int row_in_tile, int quad, const float (&sum)[kTokens / 2], uint8_t* shared) {
  using T = std::conditional_t<kOutput == Output::kBf16, __nv_bfloat16, float>;
  constexpr int kThreads = 2 * kRows, kVector = 16 / sizeof(T), kStride = kRows + kVector;
  T* rows = reinterpret_cast<T*>(shared);  // [token][kStride]
  group_sync(1, kThreads);
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) store<kOutput>(rows, (8 * (i / 4) + 2 * quad + i % 2) * kStride + row_in_tile + 8 * ((i / 2) % 2), sum[i]);
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

constexpr int kRowGroups = 2;  // warpgroups of 64 weight rows in a CTA of rows_kernel

// More tokens: each warpgroup takes 64 weight rows; all share the tokens. A further warpgroup copies weights and tokens in.
// kCluster: the four CTAs of a cluster take the four quarters of K and add up through each other's shared memory;
// otherwise one CTA takes all of K and holds the sum of the finished quarters in `total`, and two CTAs with other weight rows
// share the tokens that they copy in, for the L2 cache is what limits this kernel.
template <WeightFormat kFormat, int kTokens, Output kOutput, int kStages, bool kCluster>
__global__ __launch_bounds__((kRowGroups + 1) * kWarpgroup, 1) void rows_kernel(const Problem p) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kRows = 64 * kRowGroups, kTokenBytes = kTokens * 2 * kChunk;
  using Weights = WeightStage<kFormat, kRows>;
  constexpr int kStageBytes = kTokenBytes + Weights::kBytes;
  const int group = warpgroup_index(), thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  uint64_t* full = reinterpret_cast<uint64_t*>(shared + kStages * kStageBytes);
  uint64_t* empty = full + kStages;
  const int quarter = kCluster ? blockIdx.x % kQuarters : 0;
  const int first = kCluster ? min(p.chunks, quarter * p.quarter) : 0, last = kCluster ? min(p.chunks, first + p.quarter) : p.chunks;

  wait_for_inputs();
  start_next_kernel();
  Tile t;
  if (!find_tile<kTokens>(p, blockIdx.x / (kCluster ? kQuarters : 1), blockIdx.y, kRows, &t)) return;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) barrier_init(full + s, 1 + kWarpgroup), barrier_init(empty + s, kRowGroups * 4 * (kCluster ? 1 : 2));
    barrier_init_fence();
  }
  kCluster ? __syncthreads() : cluster_sync();

  if (group == kRowGroups) {
    registers_down<40>();
    for (int c = first; c < last; ++c) {
      const int stage = (c - first) % kStages, round = (c - first) / kStages;
      uint8_t* to = shared + stage * kStageBytes;
      if (round > 0) barrier_wait(empty + stage, (round - 1) & 1);
      if (thread == 0) load_tokens<!kCluster>(p.packed, t.group, p.chunks, c, blockIdx.x % 2, to, full + stage);
      Weights::issue(shared_address(to) + kTokenBytes, t.codes, t.scales, p.n, p.k, t.row0, c, thread);
      barrier_arrive_after_loads(full + stage);
    }
    cluster_sync();
    if constexpr (kCluster) cluster_sync();
    return;
  }

  registers_up<232>();
  const int row_in_tile = 64 * group + 16 * warp + lane / 4, row = t.row0 + row_in_tile, quad = lane % 4;
  float acc[kTokens / 2], total[kTokens / 2];
#pragma unroll
  for (int x = 0; x < kTokens / 2; ++x) acc[x] = total[x] = 0;
  const auto release = [&](uint64_t* barrier) {  // the stage may be filled again
    if (kCluster && lane == 0) barrier_arrive(barrier);
    if (!kCluster && lane < 2) barrier_arrive_remote(barrier, lane);
  };
  Operand<kFormat> even, odd;
  int stage = 0, phase = 0;
  const int step = kCluster ? last - first : p.quarter;
  for (int begin = first; begin < last; begin += step) {
    // One quarter. The tensor cores work on one half of a chunk while the other is expanded; sums are not touched in between, or
    // the compiler would wait for them every time.
    const int end = min(last, begin + step);
    for (int chunk = begin; chunk < end; ++chunk) {
      const uint8_t* tokens = shared + stage * kStageBytes;
      const uint32_t weights = shared_address(tokens) + kTokenBytes;
      barrier_wait(full + stage, phase);
      even.template expand<kRows>(weights, row_in_tile, quad, 0, p.shifts);
      multiply_half<kFormat, kTokens>(even, 0, tokens, chunk == begin, acc);
      wgmma_wait<1>();
      odd.keep_alive();
      if (chunk > begin) release(empty + (stage == 0 ? kStages - 1 : stage - 1));
      odd.template expand<kRows>(weights, row_in_tile, quad, 1, p.shifts);
      multiply_half<kFormat, kTokens>(odd, 1, tokens, false, acc);
      wgmma_wait<1>();
      even.keep_alive();
      if (++stage == kStages) stage = 0, phase ^= 1;
    }
    wgmma_wait<0>();
    odd.keep_alive();
    release(empty + (stage == 0 ? kStages - 1 : stage - 1));
    if constexpr (!kCluster) {
#pragma unroll
      for (int x = 0; x < kTokens / 2; ++x) total[x] = begin == first ? acc[x] : total[x] + acc[x];
    }
  }
  if constexpr (kCluster) {
    float* partial = reinterpret_cast<float*>(shared);  // [token][kRows]; no copy is in flight any more
    asm volatile("bar.sync 1, %0;" ::"n"(kRowGroups * kWarpgroup) : "memory");
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = 8 * (i / 4) + 2 * quad + i % 2, r = row - t.row0 + 8 * ((i / 2) % 2);
      partial[token * kRows + r] = acc[i];
    }
    cluster_sync();
    const float* q[kQuarters];
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) q[i] = cluster_shared(partial, i);
    const int mine = kRows / kQuarters;
    for (int i = threadIdx.x; i < t.group.rows * mine; i += kRowGroups * kWarpgroup) {
      const int token = i / mine, r = quarter * mine + i % mine, at = token * kRows + r;
      const int64_t y = p.output(t.group, token);
      if (t.row0 + r >= p.n || y < 0) continue;
      const float sum = ((q[0][at] + q[1][at]) + q[2][at]) + q[3][at];
      store<kOutput>(p.y, y + t.row0 + r, sum);
    }
    cluster_sync();  // nobody leaves while its shared memory is being read
  } else {
    store_tile<kTokens, kRows, kOutput>(p, t, row_in_tile, quad, total, shared);
    cluster_sync();  // nobody leaves while the other may still write to it
  }
}

template <typename Kernel>
void launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, int cluster, const Problem& p, cudaStream_t stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // launch.h
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, p);
}

int multiprocessors() {
  int device = 0, count = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

constexpr int stream_rows(int parts, bool cut) { return 16 * parts * kStreamWarps / (cut ? kQuarters : 1); }

// kShare such CTAs fit into the 227 KB of an SM; at most `ctas` in all.
template <WeightFormat kFormat, Output kOutput, int kTokens, bool kCut, int kParts, int kShare>
void launch_stream_with(Problem p, int ctas, cudaStream_t stream) {
  constexpr int kRows = stream_rows(kParts, kCut), kPartial = (kCut ? kQuarters * kTokens * kRows * 4 : 0) + activation_bytes(kFormat, kTokens, kShare), kSlotBytes = Slot<kFormat, kParts>::kBytes;
  constexpr int kSlots = (((226 << 10) / kShare) - 1024 - kPartial) / kSlotBytes;
  static_assert(kSlots >= 2);
  p.row_tiles = (p.n + kRows - 1) / kRows;
  launch(stream_kernel<kFormat, kParts, kTokens, kOutput, kSlots, kCut, kShare>, dim3(std::min(p.row_tiles * p.token_tiles, ctas)), kStreamThreads, kSlots * kSlotBytes + kPartial, 1, p, stream);
}

template <WeightFormat kFormat, Output kOutput, int kTokens, bool kCut>
void launch_stream(const Problem& p, cudaStream_t stream) {
  using Shape = StreamShape<kFormat>;
  constexpr int kRows = stream_rows(Shape::kParts, kCut);
  const int sms = multiprocessors(), tiles = (p.n + kRows - 1) / kRows * p.token_tiles;
  if (p.tiles == nullptr && tiles <= 4 * sms) {
    // A small matrix: half of an SM a CTA, so that each keeps more chunks on their way, and the next matrix on the stream fetches its
    // weights in halves that are free.
    return launch_stream_with<kFormat, kOutput, kTokens, kCut, Shape::kParts, 2>(p, 2 * sms, stream);
  }
  if constexpr (Shape::kParts > 1) {
    if (tiles <= sms) return launch_stream_with<kFormat, kOutput, kTokens, kCut, 1, 3>(p, 3 * sms, stream);  // else few warps would have work
  }
  launch_stream_with<kFormat, kOutput, kTokens, kCut, Shape::kParts, Shape::kCtas>(p, Shape::kCtas * sms, stream);
}

template <WeightFormat kFormat, Output kOutput, int kTokens, bool kCluster>
void launch_rows(const Problem& p, cudaStream_t stream) {
  constexpr int kRows = 64 * kRowGroups, kStageBytes = kTokens * 2 * kChunk + WeightStage<kFormat, kRows>::kBytes;
  constexpr int kStages = std::min(8, (220 << 10) / kStageBytes);
  static_assert(kStages * kStageBytes >= kTokens * (kRows + 8) * 4);
  const int row_tiles = (p.n + kRows - 1) / kRows, ctas = kCluster ? row_tiles * kQuarters : (row_tiles + 1) / 2 * 2;
  launch(rows_kernel<kFormat, kTokens, kOutput, kStages, kCluster>, dim3(ctas, p.token_tiles), (kRowGroups + 1) * kWarpgroup, kStages * (kStageBytes + 16), kCluster ? kQuarters : 2, p,
         stream);
}

template <WeightFormat kFormat, Output kOutput, int kTokens>
void launch_tokens(const Problem& p, cudaStream_t stream) {
  const bool cut = p.quarter < p.chunks;
  if constexpr (kTokens <= kStreamRows) {
    cut ? launch_stream<kFormat, kOutput, kTokens, true>(p, stream) : launch_stream<kFormat, kOutput, kTokens, false>(p, stream);
  } else if (cut && (p.n + 127) / 128 * p.token_tiles < 2 * multiprocessors()) {
    launch_rows<kFormat, kOutput, kTokens, true>(p, stream);
  } else {
    launch_rows<kFormat, kOutput, kTokens, false>(p, stream);
  }
}

template <WeightFormat kFormat, Output kOutput>
void launch_format(const Problem& p, int tokens_per_tile, cudaStream_t stream) {
  switch (tokens_per_tile) {
    case 8: return launch_tokens<kFormat, kOutput, 8>(p, stream);
    case 16: return launch_tokens<kFormat, kOutput, 16>(p, stream);
    case 32: return launch_tokens<kFormat, kOutput, 32>(p, stream);
    case 64: return launch_tokens<kFormat, kOutput, 64>(p, stream);
    default: return launch_tokens<kFormat, kOutput, 128>(p, stream);
  }
}

void dispatch(const LinearWeights& w, Problem p, const LinearOutput& y, int tokens_per_tile, int token_tiles, cudaStream_t stream) {
  p.token_tiles = token_tiles;
  p.codes = static_cast<const uint8_t*>(w.codes);
  p.scales = w.scales;
  p.n = w.n;
  p.k = w.k;
  assert(w.k % kChunk == 0);
  p.chunks = w.k / kChunk;
  p.quarter = p.chunks <= kWholeChunks ? p.chunks : (p.chunks + kQuarters - 1) / kQuarters;
  p.codes_stride = w.codes_stride;
  p.scales_stride = w.scales_stride;
  p.y = y.data;
  p.y_stride = y.stride != 0 ? y.stride : w.n;
  const bool bf16 = y.type == Output::kBf16;
  switch (w.format) {
    case WeightFormat::kFp8:
      return bf16 ? launch_format<WeightFormat::kFp8, Output::kBf16>(p, tokens_per_tile, stream)
                  : launch_format<WeightFormat::kFp8, Output::kFp32>(p, tokens_per_tile, stream);
    case WeightFormat::kFp4:
      return bf16 ? launch_format<WeightFormat::kFp4, Output::kBf16>(p, tokens_per_tile, stream)
                  : launch_format<WeightFormat::kFp4, Output::kFp32>(p, tokens_per_tile, stream);
    case WeightFormat::kBf16:
      return bf16 ? launch_format<WeightFormat::kBf16, Output::kBf16>(p, tokens_per_tile, stream)
                  : launch_format<WeightFormat::kBf16, Output::kFp32>(p, tokens_per_tile, stream);
    default: assert(false);
  }
}

int tile_tokens(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128; }

}  // namespace

void linear(const LinearWeights& w, const void* packed, int rows, const LinearOutput& y, cudaStream_t stream) {
  linear_batched(w, 1, packed, rows, 0, y, 0, stream);
}

void linear_batched(const LinearWeights& w, int count, const void* packed, int rows, int packed_rows, const LinearOutput& y, int64_t y_between, cudaStream_t stream) {
  Problem p{};
  p.packed = static_cast<const uint8_t*>(packed);
  p.rows = rows;
  const int tokens = tile_tokens(rows);
  p.tiles_each = (rows + tokens - 1) / tokens;
  p.group_rows = packed_rows;
  p.y_group = y_between;
  dispatch(w, p, y, tokens, count * p.tiles_each, stream);
}

void linear_grouped(const LinearWeights& w, const void* packed, const GroupTile* tiles, const int32_t* tile_count, int max_tiles,
                    int rows_per_tile, const LinearOutput& y, cudaStream_t stream, const int32_t* y_rows) {
  Problem p{};
  p.packed = static_cast<const uint8_t*>(packed);
  p.tiles = tiles;
  p.tile_count = tile_count;
  p.y_rows = y_rows;
  dispatch(w, p, y, rows_per_tile, max_tiles, stream);
}

}  // namespace deepinfer::ops::cuda
