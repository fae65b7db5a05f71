// Linear layers of few rows, FP4: experts in decode. A warp streams tiles of 16 rows x 128 columns, as arrange_fp4()
// lays them, through a ring in shared memory that bulk copies fill, and expands them in registers: instructions, not
// bytes, are short here.
#include <algorithm>

#include "ops/cuda/problem.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kCtas = 2;  // CTAs of an SM
constexpr int kSharedBytes = (226 << 10) / kCtas - 1024;

__host__ __device__ constexpr int rows_of(int parts, bool cut) { return 16 * parts * kWarps / (cut ? kQuarters : 1); }
__host__ __device__ constexpr int partial_bytes(int parts, int tokens, bool cut) {
  return cut ? kQuarters * tokens * rows_of(parts, cut) * 4 : 0;
}
__host__ __device__ constexpr int slots_of(int parts, int tokens, bool cut) {
  const int slots = (kSharedBytes - partial_bytes(parts, tokens, cut)) / (kWarps * parts * kFp4TileBytes);
  return slots < 8 ? slots : 8;
}

// A warp takes kParts x 16 weight rows of one quarter of K (of all of K where it is not cut); kParts share activations,
// and their chains of sums overlap. CTAs are persistent, and copies run ahead across the borders of their tiles.
template <int kParts, int kTokens, Output kOutput, bool kCut>
__global__ __launch_bounds__(kThreads, kCtas) void stream_fp4_kernel(const Problem p) {
  extern __shared__ __align__(128) uint8_t shared[];
  using F = Fragment<WeightFormat::kFp4>;
  constexpr int kSplit = kCut ? kQuarters : 1, kRowWarps = kWarps / kSplit, kRows = rows_of(kParts, kCut),
                kGroups = kTokens / 8, kSlots = slots_of(kParts, kTokens, kCut);
  constexpr int kSlotBytes = kParts * kFp4TileBytes;
  static_assert(kSlots >= 2);
  __shared__ uint64_t full[kWarps][kSlots];
  float* partial = reinterpret_cast<float*>(shared + kWarps * kSlots * kSlotBytes);  // [quarter][token][row]
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32,
            quad = lane % 4;
  const int quarter = warp / kRowWarps, first = quarter * p.quarter, last = min(p.chunks, first + p.quarter),
            blocks = (p.n + 31) / 32 * 2;
  uint8_t* ring = shared + warp * kSlots * kSlotBytes;
  if (lane == 0) {
    for (int i = 0; i < kSlots; ++i) barrier_init(&full[warp][i], 1);
    barrier_init_fence();
  }
  __syncwarp();
  start_next_kernel();
  if (p.tiles != nullptr) wait_for_inputs();
  const int total =
      first < last ? p.row_tiles * (p.tiles != nullptr ? min(*p.tile_count, p.token_tiles) : p.token_tiles) : 0;

  // One lane starts the copies.
  int ahead_tile = blockIdx.x, ahead_chunk = first;
  const uint8_t* from = nullptr;  // of kParts tiles side by side
  const uint64_t policy = read_once();
  const auto find_rows = [&] {
    if (ahead_tile >= total) return;
    const uint8_t* codes = p.codes + p.tile(ahead_tile / p.row_tiles, kTokens).expert * p.codes_stride;
    const int block = ahead_tile % p.row_tiles * (kRows / 16) + warp % kRowWarps * kParts;
    from = codes + fp4_tile(min(block, blocks - kParts), first, p.chunks);
  };
  const auto issue = [&](int slot) {
    if (ahead_tile >= total) return;
    barrier_expect(&full[warp][slot], kSlotBytes);
    bulk_load(shared_address(ring + slot * kSlotBytes), from, kSlotBytes, shared_address(&full[warp][slot]), policy);
    from += 2 * kFp4TileBytes;
    if (++ahead_chunk == last) {
      ahead_chunk = first;
      ahead_tile += gridDim.x;
      find_rows();
    }
  };
  if (lane == 0) {
    find_rows();
    for (int i = 0; i < kSlots - 1; ++i) issue(i);
  }
  if (p.tiles == nullptr) wait_for_inputs();

  // Copies go into the slot that was read last: what was read from it has arrived in registers, since it has been used.
  int slot = 0, free_slot = kSlots - 1, phase = 0;
  for (int tile = blockIdx.x;
       tile < p.row_tiles * (p.tiles != nullptr ? min(*p.tile_count, p.token_tiles) : p.token_tiles);
       tile += gridDim.x) {
    const GroupTile group = p.tile(tile / p.row_tiles, kTokens);
    const uint8_t* x[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int row = group.first_row + min(8 * g + lane / 4, group.rows - 1);
      const int64_t from = p.x_rows != nullptr ? p.x_rows[row] : row;
      x[g] = p.packed + (from * p.chunks + first) * 256 + quad * 16;
    }
    const auto load_activations = [&](uint4 (&to)[kGroups][4]) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[g][i] = *reinterpret_cast<const uint4*>(x[g] + i * 64);
        x[g] += 256;
      }
    };
    uint4 even[kGroups][4], odd[kGroups][4];
    float acc[kParts][kGroups][4] = {};
    // b: the chunk's activations; next: where those of the chunk behind are put meanwhile, if registers allow.
    constexpr bool kAhead = kGroups == 1;
    const auto multiply = [&](const uint4 (&b)[kGroups][4], uint4 (&next)[kGroups][4], bool more) {
      if (kAhead && more) load_activations(next);
      barrier_wait(&full[warp][slot], phase);
      const uint8_t* at = ring + slot * kSlotBytes;
      uint4 v[kParts][2][1];
      uint32_t f[kParts][F::kFactors];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        uint32_t scales[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          v[i][h][0] = *reinterpret_cast<const uint4*>(at + i * kFp4TileBytes + (lane / 4 + 8 * h) * 64 + quad * 16);
          scales[h] = *reinterpret_cast<const uint32_t*>(at + i * kFp4TileBytes + 1024 + (lane / 4 + 8 * h) * 4);
        }
        F::factors(scales[0], scales[1], quad, f[i]);
      }
      __syncwarp();
      if (lane == 0) issue(free_slot);
      free_slot = slot;
      if (++slot == kSlots) slot = 0, phase ^= 1;
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
    };
    if (first < last) load_activations(even);
    for (int chunk = first; chunk < last;) {
      const bool more = ++chunk < last;
      if constexpr (kAhead) {
        multiply(even, odd, more);
        if (!more) break;
        multiply(odd, even, ++chunk < last);
      } else {
        multiply(even, odd, false);
        if (more) load_activations(even);
      }
    }

    const int row0 = tile % p.row_tiles * kRows, row_in_tile = 16 * kParts * (warp % kRowWarps) + lane / 4;
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
      for (int s = threadIdx.x; s < group.rows * kRows; s += kThreads) {
        const int64_t y = p.output(group, s / kRows);
        if (row0 + s % kRows >= p.n || y < 0) continue;
        const float* q = partial + s;
        constexpr int kNext = kTokens * kRows;
        store<kOutput>(p.y, y + row0 + s % kRows, ((q[0] + q[kNext]) + q[2 * kNext]) + q[3 * kNext]);
      }
    }
  }
}

template <int kParts, Output kOutput, int kTokens, bool kCut>
void launch_parts(Problem p, cudaStream_t stream) {
  constexpr int kRows = rows_of(kParts, kCut),
                kBytes = slots_of(kParts, kTokens, kCut) * kWarps * kParts * kFp4TileBytes +
                         partial_bytes(kParts, kTokens, kCut);
  p.row_tiles = (p.n + kRows - 1) / kRows;
  launch_problem(stream_fp4_kernel<kParts, kTokens, kOutput, kCut>,
                 dim3(std::min(p.row_tiles * p.token_tiles, kCtas * multiprocessors())), kThreads, kBytes, 1, p,
                 stream);
}

template <Output kOutput, int kTokens>
void launch_tokens(const Problem& p, cudaStream_t stream) {
  if (p.quarter < p.chunks) return launch_parts<2, kOutput, kTokens, true>(p, stream);
  // Where tiles are few, more warps get work.
  (p.n + 255) / 256 * p.token_tiles <= multiprocessors() ? launch_parts<1, kOutput, kTokens, false>(p, stream)
                                                         : launch_parts<2, kOutput, kTokens, false>(p, stream);
}

}  // namespace

void multiply_few_fp4(Output output, int tokens, const Problem& p, cudaStream_t stream) {
  if (output == Output::kBf16)
    return tokens == 8 ? launch_tokens<Output::kBf16, 8>(p, stream) : launch_tokens<Output::kBf16, 16>(p, stream);
  tokens == 8 ? launch_tokens<Output::kFp32, 8>(p, stream) : launch_tokens<Output::kFp32, 16>(p, stream);
}

}  // namespace deepinfer::ops::cuda
