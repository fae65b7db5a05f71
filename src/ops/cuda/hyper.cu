// Single-pass mHC (spec/model.md 5.2 - 5.4).
#include <algorithm>
#include <cassert>

#include "ops/cuda/backend.h"
#include "ops/cuda/collapse.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/pack.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256, kSlice = kThreads, kCoefficients = 2 * kStreams + kStreams * kStreams, kMixRows = 2;
constexpr int kEnterCtas = kEnterThreads / 64, kEnterChunks = 8;  // of leave_enter_kernel: up to 8,192 channels

// Sums v[0..31] over the lanes of a warp; lane l ends with the sum of v[l]. The butterfly of warp_sum(), but each step
// halves what is still carried.
template <int kHalf = 16>
__device__ __forceinline__ float warp_sums(float (&v)[32]) {
  const bool upper = threadIdx.x & kHalf;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float send = upper ? v[i] : v[i + kHalf], keep = upper ? v[i + kHalf] : v[i];
    v[i] = keep + __shfl_xor_sync(0xffffffffu, send, kHalf);
  }
  if constexpr (kHalf > 1) {
    return warp_sums<kHalf / 2>(v);
  } else {
    return v[0];
  }
}

__device__ __forceinline__ float dot_of_streams(const float (&a)[kStreams], const float (&b)[kStreams]) {
  return fmaf(a[3], b[3], fmaf(a[2], b[2], fmaf(a[0], b[0], a[1] * b[1])));
}

struct LeaveArguments {
  const bf16* y;  // null: X is mixed as it is
  const float *post, *comb;
};

// X leaves a sublayer, and the partial sums of one slice of 256 channels of all streams: partial[row][slice][24
// products, sum of squares]. Block y takes rows_each rows, kMixRows at a time, and loads its part of fn once. The next
// rows are on their way meanwhile.
__global__ __launch_bounds__(kThreads) void mix_kernel(bf16* x, const LeaveArguments leave, const float* fn, int rows,
                                                       int rows_each, int d, float* partial) {
  constexpr int kLeaving = kStreams + kStreams * kStreams;  // post and comb of a row
  __shared__ float sums[kThreads / 32][kMixRows][32], leaving[2][kMixRows][kLeaving];
  const int slice = blockIdx.x, slices = gridDim.x, i = slice * kSlice + threadIdx.x, warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  start_next_kernel();
  float f[kCoefficients][kStreams];
#pragma unroll
  for (int c = 0; c < kCoefficients; ++c) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s)
      f[c][s] = i < d ? __ldcs(fn + (static_cast<int64_t>(c) * kStreams + s) * d + i) : 0.0f;
  }
  wait_for_inputs();
  const int end = min(rows, (static_cast<int>(blockIdx.y) + 1) * rows_each);
  bf16 next[kMixRows][kStreams] = {}, next_y[kMixRows] = {};
  float next_leaving = 0;
  const auto fetch = [&](int row0) {
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      if (row0 + r >= end || i >= d) continue;
      const int64_t row = row0 + r;
#pragma unroll
      for (int s = 0; s < kStreams; ++s) next[r][s] = x[(row * kStreams + s) * d + i];
      if (leave.y != nullptr) next_y[r] = leave.y[row * d + i];
    }
    const int r = threadIdx.x / kLeaving, c = threadIdx.x % kLeaving;
    if (leave.y == nullptr || r >= kMixRows || row0 + r >= end) return;
    next_leaving = c < kStreams ? leave.post[(row0 + r) * kStreams + c]
                                : leave.comb[(row0 + r) * kStreams * kStreams + c - kStreams];
  };
  const auto place_leaving = [&](int at) {
    if (threadIdx.x < kMixRows * kLeaving) leaving[at][threadIdx.x / kLeaving][threadIdx.x % kLeaving] = next_leaving;
  };
  const int first = blockIdx.y * rows_each;
  fetch(first);
  place_leaving(0);
  __syncthreads();
  int at = 0;
  for (int row0 = first; row0 < end; row0 += kMixRows, at ^= 1) {
    float v[kMixRows][kStreams], y[kMixRows];
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) v[r][s] = value(next[r][s]);
      y[r] = value(next_y[r]);
    }
    fetch(row0 + kMixRows);
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      if (leave.y == nullptr || row0 + r >= end || i >= d) continue;
      const float *post = leaving[at][r], *comb = post + kStreams;
      float left[kStreams];
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        float sum = post[k] * y[r];
#pragma unroll
        for (int j = 0; j < kStreams; ++j) sum = fmaf(comb[j * kStreams + k], v[r][j], sum);
        const bf16 b = rounded(sum);
        x[(static_cast<int64_t>(row0 + r) * kStreams + k) * d + i] = b;
        left[k] = value(b);
      }
#pragma unroll
      for (int k = 0; k < kStreams; ++k) v[r][k] = left[k];
    }
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      if (row0 + r >= end) break;
      float p[32] = {};
#pragma unroll
      for (int c = 0; c < kCoefficients; ++c) p[c] = dot_of_streams(f[c], v[r]);
      p[kCoefficients] = dot_of_streams(v[r], v[r]);
      sums[warp][r][lane] = warp_sums(p);
    }
    place_leaving(at ^ 1);
    __syncthreads();
    for (int k = threadIdx.x; k < kMixRows * 32; k += kThreads) {
      const int r = k / 32, c = k % 32;
      if (row0 + r >= end || c > kCoefficients) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) sum += sums[w][r][c];
      partial[(static_cast<int64_t>(row0 + r) * slices + slice) * (kCoefficients + 1) + c] = sum;
    }
    __syncthreads();
  }
}

// The same sums of rows that have left their sublayer, with few threads and registers: it runs beside kernels that fill
// the SMs. A warp takes two of a slice's groups of 32 channels.
__global__ __launch_bounds__(kThreads / 2, 8) void mix_beside_kernel(const bf16* x, const float* fn, int rows, int d,
                                                                     float* partial) {
  __shared__ float sums[kThreads / 32][32];
  const int slice = blockIdx.x, slices = gridDim.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  wait_for_inputs();
  start_next_kernel();
  for (int row = 0; row < rows; ++row) {
#pragma unroll 1
    for (int group = warp; group < kThreads / 32; group += kThreads / 64) {
      const int i = slice * kSlice + group * 32 + lane;
      const float* from = fn + i;
      asm volatile("" : "+l"(from));  // else all of fn is kept from one row to the next
      float v[kStreams], p[32] = {};
#pragma unroll
      for (int s = 0; s < kStreams; ++s)
        v[s] = i < d ? value(x[(static_cast<int64_t>(row) * kStreams + s) * d + i]) : 0.0f;
#pragma unroll
      for (int c = 0; c < kCoefficients; ++c) {
        float f[kStreams];
#pragma unroll
        for (int s = 0; s < kStreams; ++s)
          f[s] = i < d ? __ldcs(from + (static_cast<int64_t>(c) * kStreams + s) * d) : 0.0f;
        p[c] = dot_of_streams(f, v);
      }
      p[kCoefficients] = dot_of_streams(v, v);
      sums[group][lane] = warp_sums(p);
    }
    __syncthreads();
    if (threadIdx.x <= kCoefficients) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) sum += sums[w][threadIdx.x];
      partial[(static_cast<int64_t>(row) * slices + slice) * (kCoefficients + 1) + threadIdx.x] = sum;
    }
    __syncthreads();
  }
}

// One warp; lane l holds element l mod 16 of the matrix, row-major. Sums in index order.
__device__ float sinkhorn(float m, int iterations, float eps) {
  const int lane = threadIdx.x % 32, j = lane / kStreams % kStreams, k = lane % kStreams;
  const auto of_row = [&](float x, float (&v)[kStreams]) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) v[i] = __shfl_sync(0xffffffffu, x, j * kStreams + i);
  };
  const auto of_column = [&](float x, float (&v)[kStreams]) {
#pragma unroll
    for (int i = 0; i < kStreams; ++i) v[i] = __shfl_sync(0xffffffffu, x, i * kStreams + k);
  };
  const auto sum = [](const float (&v)[kStreams]) { return ((v[0] + v[1]) + v[2]) + v[3]; };
  float v[kStreams];
  of_row(m, v);
  m = expf(m - fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
  of_row(m, v);
  m = m / sum(v) + eps;
  of_column(m, v);
  m /= sum(v) + eps;
  for (int it = 1; it < iterations; ++it) {
    of_row(m, v);
    m /= sum(v) + eps;
    of_column(m, v);
    m /= sum(v) + eps;
  }
  return m;
}

struct MixArguments {
  const bf16* x;
  const float *partial, *base, *scale, *norm;
  float *pre, *post, *comb;
  bf16* out;
  uint8_t *packed_fp8, *packed_bf16, *packed_fp4;  // or null
  bool stream;
  int d, slices, iterations;
  float eps, hc_eps;
};

// A lane's coefficient of a row, over the slices.
__device__ __forceinline__ float slice_sum(const MixArguments& a, int64_t row) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
  if (lane > kCoefficients) return sum;
  const float* p = a.partial + row * a.slices * (kCoefficients + 1) + lane;
#pragma unroll 20
  for (int s = 0; s < a.slices; ++s) sum += p[s * (kCoefficients + 1)];
  return sum;
}

__device__ __forceinline__ void pack_entered(const MixArguments& a, uint2 u, int64_t row, int chunks, int chunk) {
  if (a.packed_fp8 != nullptr) pack_chunk(u, {WeightFormat::kFp8, a.stream}, a.packed_fp8, row, chunks, chunk);
  if (a.packed_bf16 != nullptr) pack_chunk(u, {WeightFormat::kBf16, a.stream}, a.packed_bf16, row, chunks, chunk);
  if (a.packed_fp4 != nullptr) pack_chunk(u, {WeightFormat::kFp4, a.stream}, a.packed_fp4, row, chunks, chunk);
}

// Finishes the mix of a row by one warp; sum: of lane's coefficient over the slices. m: 32 floats of shared memory.
__device__ __forceinline__ void finish_mix(const MixArguments& a, int64_t row, float sum, float* m) {
  const int lane = threadIdx.x % 32;
  if (lane <= kCoefficients) m[lane] = sum;
  __syncwarp();
  const float statistic = 1.0f / sqrtf(m[kCoefficients] / static_cast<float>(kStreams * a.d) + a.eps);
  if (lane < kStreams)
    a.pre[row * kStreams + lane] = sigmoid(m[lane] * statistic * a.scale[0] + a.base[lane]) + a.hc_eps;
  if (lane < kStreams)
    a.post[row * kStreams + lane] =
        2.0f * sigmoid(m[kStreams + lane] * statistic * a.scale[1] + a.base[kStreams + lane]);
  const int i = lane % (kStreams * kStreams);
  const float mixed =
      sinkhorn(m[2 * kStreams + i] * statistic * a.scale[2] + a.base[2 * kStreams + i], a.iterations, a.hc_eps);
  if (lane < kStreams * kStreams) a.comb[row * kStreams * kStreams + lane] = mixed;
}

// Enters the sublayer: collapses and norms a row and packs it for the matrices behind; one warp more finishes the row's
// mix meanwhile.
__global__ __launch_bounds__(kEnterThreads + 32) void enter_kernel(MixArguments a) {
  extern __shared__ __align__(16) bf16 row_values[];  // [d up to a multiple of 128]
  __shared__ float m[32], old_pre[kStreams], shared[kEnterThreads / 32];
  wait_for_inputs();
  start_next_kernel();
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < kStreams) old_pre[threadIdx.x] = a.pre[row * kStreams + threadIdx.x];
  const float sum = threadIdx.x >= kEnterThreads ? slice_sum(a, row) : 0.0f;
  __syncthreads();  // the old pre has been read
  if (threadIdx.x >= kEnterThreads) return finish_mix(a, row, sum, m);
  const auto sync = [] { group_sync(1, kEnterThreads); };
  collapse_and_norm(a.x + row * kStreams * a.d, old_pre, a.norm, a.d, a.eps, row_values, row_values, shared, sync);
  sync();
  const int chunks = (a.d + kChunk - 1) / kChunk;
  for (int chunk = threadIdx.x / 32; chunk < chunks; chunk += kEnterThreads / 32) {
    const int i = kChunk * chunk + 4 * lane;
    const uint2 u = i < a.d ? *reinterpret_cast<const uint2*>(row_values + i) : uint2{};
    if (i < a.d) *reinterpret_cast<uint2*>(a.out + row * a.d + i) = u;
    pack_entered(a, u, row, chunks, chunk);
  }
}

// Finishes the mix of a row alone.
__global__ __launch_bounds__(32) void finish_kernel(MixArguments a) {
  __shared__ float m[32];
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  finish_mix(a, row, slice_sum(a, row), m);
}

// One row: it leaves a sublayer and enters the next one, by a cluster of eight CTAs; its mix, which only the leaving
// after this one needs, is computed beside what follows. The tree of collapse_and_norm(): CTA c holds what its warps
// 2 c and 2 c + 1 sum. A warp takes a chunk of 128 channels.
__global__ __launch_bounds__(32 * kEnterChunks) void leave_enter_kernel(const LeaveArguments leave, MixArguments a,
                                                                         bf16* x) {
  __shared__ float squares[kEnterChunks][kChunk], sums[kEnterThreads / 32];
  const int cta = blockIdx.x % kEnterCtas, warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int64_t row = blockIdx.x / kEnterCtas;
  const int chunk = cta + kEnterCtas * warp, i = kChunk * chunk + 4 * lane, chunks = (a.d + kChunk - 1) / kChunk;
  const bool here = i < a.d;
  float4 w{};
  if (here) w = *reinterpret_cast<const float4*>(a.norm + i);
  cluster_arrive();
  wait_for_inputs();
  start_next_kernel();
  x += row * kStreams * a.d;
  float pre[kStreams], v[kStreams][4] = {};
#pragma unroll
  for (int s = 0; s < kStreams; ++s) pre[s] = a.pre[row * kStreams + s];
  const auto four = [](const bf16* p, float (&to)[4]) {
    const uint2 u = *reinterpret_cast<const uint2*>(p);
    to[0] = __uint_as_float(u.x << 16), to[1] = __uint_as_float(u.x & 0xffff0000u), to[2] = __uint_as_float(u.y << 16),
    to[3] = __uint_as_float(u.y & 0xffff0000u);
  };
  if (here) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) four(x + s * a.d + i, v[s]);
  }
  if (leave.y != nullptr && here) {
    float y[4], comb[kStreams][kStreams], post[kStreams], left[kStreams][4];
    four(leave.y + row * a.d + i, y);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      post[j] = leave.post[row * kStreams + j];
#pragma unroll
      for (int k = 0; k < kStreams; ++k) comb[j][k] = leave.comb[(row * kStreams + j) * kStreams + k];
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float sum = post[k] * y[c];
#pragma unroll
        for (int j = 0; j < kStreams; ++j) sum = fmaf(comb[j][k], v[j][c], sum);
        left[k][c] = sum;
      }
      const uint2 u{bf16_pair(left[k][0], left[k][1]), bf16_pair(left[k][2], left[k][3])};
      *reinterpret_cast<uint2*>(x + k * a.d + i) = u;
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
#pragma unroll
      for (int c = 0; c < 4; ++c) v[k][c] = value(rounded(left[k][c]));
    }
  }
  float collapsed[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    collapsed[c] = pre[0] * v[0][c];
#pragma unroll
    for (int s = 1; s < kStreams; ++s) collapsed[c] = fmaf(pre[s], v[s][c], collapsed[c]);
    collapsed[c] = value(rounded(collapsed[c]));
    squares[warp][4 * lane + c] = here ? collapsed[c] * collapsed[c] : 0.0f;
  }
  __syncthreads();
  cluster_wait();  // all CTAs of the cluster run
  if (warp == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float square = 0;
      for (int k = 0; k < warps; ++k) {
        square += squares[k][64 * half + 2 * lane];
        square += squares[k][64 * half + 2 * lane + 1];
      }
      square = warp_sum(square);
      if (lane < kEnterCtas) cluster_store(shared_address(&sums[2 * cta + half]), lane, __float_as_uint(square));
    }
  }
  cluster_sync();
  float sum = sums[0];
#pragma unroll
  for (int k = 1; k < kEnterThreads / 32; ++k) sum += sums[k];
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(a.d) + a.eps);
  if (chunk >= chunks) return;
  const uint2 u = here ? uint2{bf16_pair(w.x * (collapsed[0] * scale), w.y * (collapsed[1] * scale)),
                               bf16_pair(w.z * (collapsed[2] * scale), w.w * (collapsed[3] * scale))}
                       : uint2{};
  if (here) *reinterpret_cast<uint2*>(a.out + row * a.d + i) = u;
  pack_entered(a, u, row, chunks, chunk);
}

__global__ __launch_bounds__(kThreads) void leave_kernel(bf16* x, const bf16* y, const float* post, const float* comb,
                                                         int d) {
  const int64_t row = blockIdx.y;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= d) return;
  x += row * kStreams * d;
  float v[kStreams];
#pragma unroll
  for (int s = 0; s < kStreams; ++s) v[s] = value(x[s * d + i]);
  const float out = value(y[row * d + i]);
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    float sum = post[row * kStreams + k] * out;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) sum = fmaf(comb[row * kStreams * kStreams + j * kStreams + k], v[j], sum);
    x[k * d + i] = rounded(sum);
  }
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void Backend::enter(At where, Sublayer which, bool leave) {
  const int rows = row_count(where.rows), d = static_cast<int>(c_.hidden_size), slices = (d + kSlice - 1) / kSlice,
            s = which == Sublayer::kFfn;
  const Layer& l = layers_[where.layer];
  if (rows == 0) return;
  join();
  const LeaveArguments leaving{leave ? at<bf16>(Role::kSublayerOut) : nullptr, at<float>(Role::kPost),
                               at<float>(Role::kComb)};
  const bool bf16_matrices =
      which == Sublayer::kFfn || l.weights_proj.codes != nullptr || l.compressor_wkv.codes != nullptr;
  const bool fp4_matrices = which == Sublayer::kFfn && rows <= kStreamRows;
  const MixArguments a{at<bf16>(Role::kResidual),
                       mix_,
                       l.hc_base[s],
                       l.hc_scale[s],
                       s ? l.ffn_norm : l.attn_norm,
                       at<float>(Role::kPre),
                       at<float>(Role::kPost),
                       at<float>(Role::kComb),
                       at<bf16>(Role::kSublayerIn),
                       in_fp8_,
                       bf16_matrices ? in_bf16_ : nullptr,
                       fp4_matrices ? in_fp4_ : nullptr,
                       rows <= kStreamRows,
                       d,
                       slices,
                       static_cast<int>(c_.hc_sinkhorn_iters),
                       eps(),
                       static_cast<float>(c_.hc_eps)};
  packed_in_ = {rows, true, bf16_matrices, fp4_matrices};
  if (rows == 1 && d <= kEnterCtas * kEnterChunks * kChunk) {
    const int warps = (d + kEnterCtas * kChunk - 1) / (kEnterCtas * kChunk);
    launch_clusters(kEnterCtas, leave_enter_kernel, rows * kEnterCtas, 32 * warps, 0, stream_, leaving, a,
                    at<bf16>(Role::kResidual));
    fork();
    launch_next(mix_beside_kernel, slices, kThreads / 2, 0, side_, at<bf16>(Role::kResidual), l.hc_fn[s], rows, d,
                mix_);
    launch_next(finish_kernel, rows, 32, 0, side_, a);
    return side_ends();
  }
  // One wave of CTAs, one on an SM: registers hold their part of fn.
  const int blocks_y = std::clamp(multiprocessors_ / slices, 1, rows), rows_each = (rows + blocks_y - 1) / blocks_y;
  launch_next(mix_kernel, dim3(slices, (rows + rows_each - 1) / rows_each), kThreads, 0, stream_,
              at<bf16>(Role::kResidual), leaving, l.hc_fn[s], rows, rows_each, d, mix_);
  launch_next(enter_kernel, rows, kEnterThreads + 32,
              static_cast<size_t>((d + kChunk - 1) / kChunk) * kChunk * sizeof(bf16), stream_, a);
}

void Backend::hc_enter(At where, Sublayer which) { enter(where, which, false); }

void Backend::hc_leave_enter(At leave, Sublayer, At entered, Sublayer which) {
  assert(leave.rows == entered.rows);
  enter(entered, which, true);
}

void Backend::hc_leave(At where, Sublayer) {
  join();
  if (const int rows = row_count(where.rows); rows > 0) {
    leave_kernel<<<dim3(blocks(c_.hidden_size), rows), kThreads, 0, stream_>>>(
        at<bf16>(Role::kResidual), at<bf16>(Role::kSublayerOut), at<float>(Role::kPost), at<float>(Role::kComb),
        static_cast<int>(c_.hidden_size));
  }
}

}  // namespace deepinfer::ops::cuda
