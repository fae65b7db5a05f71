// Linear layers of few rows, FP8 and bf16: weights are the traffic, and stream through registers.
#include <algorithm>

#include "ops/cuda/problem.cuh"

namespace deepinfer::ops::cuda {
namespace {

// Where a thread keeps the weight chunks on their way: a ring of private slots in shared memory, each vector of a slot
// contiguous over the threads. Copies need no registers and no scoreboard, so consuming one chunk never waits for a
// later one.
template <WeightFormat kFormat, int kThreads>
struct Slot {
  using F = Fragment<kFormat>;
  static constexpr int kScales = F::kScaleRows == 0 ? 0 : F::kScaleRows >= 16 ? 1 : 2;  // words a chunk
  static constexpr int kVectorBytes = 2 * F::kVectors * 16 * kThreads;
  static constexpr int kBytes = kVectorBytes + kScales * 4 * kThreads;

  __device__ __forceinline__ static void issue(uint32_t slot, const Rows16<kFormat>& rows, int chunk,
                                               uint64_t policy) {
    // In assembly, so that it is one register: nvcc 13.0 emits an invalid instruction for a policy together with an
    // address of two.
    uint32_t to;
    asm volatile("mad.lo.u32 %0, %1, 16, %2;" : "=r"(to) : "r"(threadIdx.x), "r"(slot));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < F::kVectors; ++i) {
        async_load_16(to + (h * F::kVectors + i) * kThreads * 16,
                      rows.code[h] + chunk * F::kRowBytes + i * F::kVectorStep, policy);
      }
      if (h < kScales)
        async_load<4>(slot + kVectorBytes + h * kThreads * 4 + threadIdx.x * 4, rows.scale[h] + chunk * 4);
    }
  }
  __device__ __forceinline__ static void read(uint32_t slot, uint4 (&v)[2][F::kVectors], uint32_t (&scales)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < F::kVectors; ++i)
        v[h][i] = shared_load(slot + (h * F::kVectors + i) * kThreads * 16 + threadIdx.x * 16);
      if (h < kScales) scales[h] = shared_load_word(slot + kVectorBytes + h * kThreads * 4 + threadIdx.x * 4);
    }
  }
};

// Bytes of activations that a CTA of stream_kernel holds in shared memory: one row of the widest matrix, eight of the
// narrowest. bf16 weights need the room themselves.
__host__ __device__ constexpr int activation_bytes(WeightFormat format, int tokens, int warps_each_sm) {
  return format == WeightFormat::kFp8 && tokens == 8 && warps_each_sm <= 16 ? 21 << 10 : 0;
}

// Few tokens. A warp takes 16 weight rows of one quarter of K (of all of K where it is not cut) and streams them,
// kSlots chunks ahead, across the borders of its tiles, so that memory never idles. CTAs are persistent. Weights that
// no other kernel chooses are on their way before the kernel in front has ended.
template <WeightFormat kFormat, int kTokens, Output kOutput, int kSlots, bool kCut, int kWarps, int kCtas>
__global__ __launch_bounds__(32 * kWarps, kCtas) void stream_kernel(const Problem p) {
  extern __shared__ __align__(128) uint8_t shared[];
  using F = Fragment<kFormat>;
  constexpr int kThreads = 32 * kWarps, kSplit = kCut ? kQuarters : 1, kRowWarps = kWarps / kSplit,
                kRows = 16 * kRowWarps, kGroups = kTokens / 8;
  using Slots = Slot<kFormat, kThreads>;
  constexpr int kSlotBytes = Slots::kBytes, kRingBytes = kSlots * kSlotBytes;
  constexpr int kActivationBytes = activation_bytes(kFormat, kTokens, kWarps * kCtas);
  uint8_t* activations = shared + kRingBytes;
  float* partial = reinterpret_cast<float*>(shared + kRingBytes + kActivationBytes);  // [quarter][token][row]
  __shared__ uint64_t loaded;
  int resident_row = -1, phase = 0;
  if (kActivationBytes > 0 && threadIdx.x == 0) barrier_init(&loaded, 1), barrier_init_fence();
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), lane = threadIdx.x % 32,
            quad = lane % 4;
  const int quarter = warp / kRowWarps, first = quarter * p.quarter, last = min(p.chunks, first + p.quarter);
  const int row_in_tile = 16 * (warp % kRowWarps) + lane / 4;
  start_next_kernel();
  if (p.tiles != nullptr) wait_for_inputs();
  const int total = p.row_tiles * (p.tiles != nullptr ? min(*p.tile_count, p.token_tiles) : p.token_tiles);

  // Copies run ahead of the sums: into the slot that was read last.
  int ahead_tile = blockIdx.x, ahead_chunk = first;
  const uint64_t policy = read_once();
  Rows16<kFormat> rows;
  const auto find_rows = [&] {
    if (ahead_tile >= total) return;
    const int expert = p.tile(ahead_tile / p.row_tiles, kTokens).expert;
    rows.set(p.codes + expert * p.codes_stride, p.scales + expert * p.scales_stride, p.n, p.k,
             ahead_tile % p.row_tiles * kRows + row_in_tile, quad);
  };
  const auto issue = [&](uint32_t slot) {
    if (ahead_tile < total) {
      Slots::issue(slot, rows, ahead_chunk, policy);
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
    // Few activations come into shared memory first: a load to registers would wait in line behind the weights on their
    // way, for every chunk. Lanes without a token read the last one's values, which costs nothing: their sums are
    // thrown away.
    const int x_stride = p.chunks * 256 + 64;  // rows begin in different banks
    const bool resident = kActivationBytes > 0 && group.rows * x_stride <= kActivationBytes;
    if (resident && (p.tiles != nullptr || group.first_row != resident_row)) {
      if constexpr (!kCut) __syncthreads();  // nobody reads the ones before any more
      if (threadIdx.x == 0) {
        barrier_expect(&loaded, group.rows * p.chunks * 256);
        for (int r = 0; r < group.rows; ++r)
          bulk_load(activations + r * x_stride, p.packed + static_cast<int64_t>(group.first_row + r) * p.chunks * 256,
                    p.chunks * 256, &loaded);
      }
      barrier_wait(&loaded, phase);
      phase ^= 1;
      resident_row = group.first_row;
    }
    const uint8_t* x[kGroups];
    uint32_t resident_x =
        shared_address(activations) + min(lane / 4, group.rows - 1) * x_stride + first * 256 + quad * 16;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      x[g] = p.packed +
             (static_cast<int64_t>(group.first_row + min(8 * g + lane / 4, group.rows - 1)) * p.chunks + first) * 256 +
             quad * 16;
    constexpr bool kAhead = kWarps * kCtas <= 16 && kGroups == 1;  // registers allow to load a chunk ahead
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
    float acc[kGroups][4] = {};
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
      uint4 v[2][F::kVectors];
      uint32_t f[F::kFactors], scales[2] = {};
      Slots::read(slot, v, scales);
      F::factors(scales[0], scales[1], quad, f);
      issue(free_slot);
      free_slot = slot;
      slot += kSlotBytes;
      if (slot == ring_end) slot = ring;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uint32_t a[4];
        F::expand(v, j, f, p.shifts, a);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const uint4 u = b[g][j / 2];
          mma_bf16(acc[g], a, j % 2 ? u.z : u.x, j % 2 ? u.w : u.y);
        }
      }
    }

    const int row0 = tile % p.row_tiles * kRows;
    if constexpr (kCut) __syncthreads();  // the sums before have been read
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = 8 * g + 2 * quad + e % 2, r = row_in_tile + 8 * (e / 2);
        if constexpr (kCut) {
          partial[(quarter * kTokens + token) * kRows + r] = acc[g][e];
        } else if (token < group.rows && row0 + r < p.n) {
          if (const int64_t y = p.output(group, token); y >= 0) store<kOutput>(p.y, y + row0 + r, acc[g][e]);
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

// kShare CTAs of kWarps fit into the 227 KB of an SM; at most kShare each in all.
template <WeightFormat kFormat, Output kOutput, int kTokens, bool kCut, int kWarps, int kShare>
void launch_stream(Problem p, cudaStream_t stream) {
  constexpr int kRows = 16 * kWarps / (kCut ? kQuarters : 1), kSlotBytes = Slot<kFormat, 32 * kWarps>::kBytes;
  constexpr int kPartial =
      (kCut ? kQuarters * kTokens * kRows * 4 : 0) + activation_bytes(kFormat, kTokens, kWarps * kShare);
  constexpr int kRoom = (((226 << 10) / kShare) - 1024 - kPartial) / kSlotBytes, kSlots = kRoom < 12 ? kRoom : 12;
  static_assert(kSlots >= 2);
  p.row_tiles = (p.n + kRows - 1) / kRows;
  launch_problem(stream_kernel<kFormat, kTokens, kOutput, kSlots, kCut, kWarps, kShare>,
                 dim3(std::min(p.row_tiles * p.token_tiles, kShare * multiprocessors())), 32 * kWarps,
                 kSlots * kSlotBytes + kPartial, 1, p, stream);
}

// Small matrices: CTAs of four warps, as many as there are, so that all SMs get a like part; the fewer they are, the
// more each keeps on its way, and the next matrix on the stream fetches its weights where room is left. Else eight
// warps.
template <WeightFormat kFormat, Output kOutput, int kTokens, bool kCut>
void launch_shape(const Problem& p, cudaStream_t stream) {
  constexpr int kRows = 16 * 4 / (kCut ? kQuarters : 1);
  const int tiles = (p.n + kRows - 1) / kRows * p.token_tiles, sms = multiprocessors();
  if (p.tiles != nullptr || tiles > 8 * sms) return launch_stream<kFormat, kOutput, kTokens, kCut, 8, 3>(p, stream);
  if (tiles > 3 * sms) return launch_stream<kFormat, kOutput, kTokens, kCut, 4, 4>(p, stream);
  tiles > 2 * sms ? launch_stream<kFormat, kOutput, kTokens, kCut, 4, 3>(p, stream)
                  : launch_stream<kFormat, kOutput, kTokens, kCut, 4, 2>(p, stream);
}

template <WeightFormat kFormat, Output kOutput>
void launch_tokens(int tokens, const Problem& p, cudaStream_t stream) {
  const bool cut = p.quarter < p.chunks;
  if (tokens == 8)
    return cut ? launch_shape<kFormat, kOutput, 8, true>(p, stream)
               : launch_shape<kFormat, kOutput, 8, false>(p, stream);
  cut ? launch_shape<kFormat, kOutput, 16, true>(p, stream) : launch_shape<kFormat, kOutput, 16, false>(p, stream);
}

}  // namespace

void multiply_few(WeightFormat format, Output output, int tokens, const Problem& p, cudaStream_t stream) {
  if (format == WeightFormat::kFp4) return multiply_few_fp4(output, tokens, p, stream);
  const bool fp8 = format == WeightFormat::kFp8;
  if (output == Output::kBf16)
    return fp8 ? launch_tokens<WeightFormat::kFp8, Output::kBf16>(tokens, p, stream)
               : launch_tokens<WeightFormat::kBf16, Output::kBf16>(tokens, p, stream);
  fp8 ? launch_tokens<WeightFormat::kFp8, Output::kFp32>(tokens, p, stream)
      : launch_tokens<WeightFormat::kBf16, Output::kFp32>(tokens, p, stream);
}

}  // namespace deepinfer::ops::cuda
