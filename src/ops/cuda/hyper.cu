// Single-pass mHC (spec/model.md 5.2 - 5.4).
#include "ops/cuda/backend.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256, kSlice = 1024, kStreams = 4, kCoefficients = 2 * kStreams + kStreams * kStreams, kMixRows = 4;

// Partial sums of one slice of 1,024 columns for kMixRows rows: partial[row][slice][24 products, sum of squares].
__global__ __launch_bounds__(kThreads) void mix_kernel(const bf16* x, const float* fn, int rows, int width, float* partial) {
  __shared__ float warp_sums[kThreads / 32][kMixRows][kCoefficients + 1];
  const int slice = blockIdx.x, row0 = blockIdx.y * kMixRows, slices = gridDim.x, column = slice * kSlice + threadIdx.x * 4;
  float v[kMixRows][4];
#pragma unroll
  for (int r = 0; r < kMixRows; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[r][i] = row0 + r < rows && column + i < width ? value(x[static_cast<int64_t>(row0 + r) * width + column + i]) : 0.0f;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int c = 0; c <= kCoefficients; ++c) {
    float4 f{};
    if (c < kCoefficients && column < width) f = *reinterpret_cast<const float4*>(fn + static_cast<int64_t>(c) * width + column);
#pragma unroll
    for (int r = 0; r < kMixRows; ++r) {
      float s = c < kCoefficients ? ((f.x * v[r][0] + f.y * v[r][1]) + f.z * v[r][2]) + f.w * v[r][3]
                                  : ((v[r][0] * v[r][0] + v[r][1] * v[r][1]) + v[r][2] * v[r][2]) + v[r][3] * v[r][3];
      s = warp_sum(s);
      if (lane == 0) warp_sums[warp][r][c] = s;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kMixRows * (kCoefficients + 1); i += kThreads) {
    const int r = i / (kCoefficients + 1), c = i % (kCoefficients + 1);
    if (row0 + r >= rows) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) sum += warp_sums[w][r][c];
    partial[(static_cast<int64_t>(row0 + r) * slices + slice) * (kCoefficients + 1) + c] = sum;
  }
}

__device__ void sinkhorn(float* m, int iterations, float eps) {
  const auto columns = [&] {
    for (int k = 0; k < kStreams; ++k) {
      float sum = 0;
      for (int j = 0; j < kStreams; ++j) sum += m[j * kStreams + k];
      for (int j = 0; j < kStreams; ++j) m[j * kStreams + k] /= sum + eps;
    }
  };
  for (int j = 0; j < kStreams; ++j) {
    float* row = m + j * kStreams;
    const float top = fmaxf(fmaxf(row[0], row[1]), fmaxf(row[2], row[3]));
    float sum = 0;
    for (int k = 0; k < kStreams; ++k) sum += row[k] = expf(row[k] - top);
    for (int k = 0; k < kStreams; ++k) row[k] = row[k] / sum + eps;
  }
  columns();
  for (int it = 1; it < iterations; ++it) {
    for (int j = 0; j < kStreams; ++j) {
      float sum = 0;
      for (int k = 0; k < kStreams; ++k) sum += m[j * kStreams + k];
      for (int k = 0; k < kStreams; ++k) m[j * kStreams + k] /= sum + eps;
    }
    columns();
  }
}

// collapse with `pre`, then norm: out. collapsed, if given, keeps the vector before the norm.
__device__ void collapse_and_norm(const bf16* x, const float* pre, const float* norm, int d, float eps, bf16* collapsed, bf16* out, float* shared) {
  for (int i = threadIdx.x; i < d; i += kThreads) {
    float sum = pre[0] * value(x[i]);
#pragma unroll
    for (int s = 1; s < kStreams; ++s) sum = fmaf(pre[s], value(x[s * d + i]), sum);
    collapsed[i] = rounded(sum);
  }
  __syncthreads();
  rms_norm<kThreads>(collapsed, norm, d, eps, out, shared);
}

struct MixArguments {
  const bf16* x;
  const float *partial, *base, *scale, *norm;
  float *pre, *post, *comb;
  bf16* out;
  int d, slices, iterations;
  float eps, hc_eps;
};

// Finishes the mix of a row and enters the sublayer.
__global__ __launch_bounds__(kThreads) void enter_kernel(MixArguments a) {
  __shared__ float m[kCoefficients + 1], old_pre[kStreams], shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  if (threadIdx.x <= kCoefficients) {
    const float* p = a.partial + row * a.slices * (kCoefficients + 1) + threadIdx.x;
    float sum = 0;
    for (int s = 0; s < a.slices; ++s) sum += p[s * (kCoefficients + 1)];
    m[threadIdx.x] = sum;
  }
  if (threadIdx.x < kStreams) old_pre[threadIdx.x] = a.pre[row * kStreams + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    const float statistic = 1.0f / sqrtf(m[kCoefficients] / static_cast<float>(kStreams * a.d) + a.eps);
    float comb[kStreams * kStreams];
    for (int j = 0; j < kStreams; ++j) {
      a.pre[row * kStreams + j] = sigmoid(m[j] * statistic * a.scale[0] + a.base[j]) + a.hc_eps;
      a.post[row * kStreams + j] = 2.0f * sigmoid(m[kStreams + j] * statistic * a.scale[1] + a.base[kStreams + j]);
    }
    for (int i = 0; i < kStreams * kStreams; ++i) comb[i] = m[2 * kStreams + i] * statistic * a.scale[2] + a.base[2 * kStreams + i];
    sinkhorn(comb, a.iterations, a.hc_eps);
    for (int i = 0; i < kStreams * kStreams; ++i) a.comb[row * kStreams * kStreams + i] = comb[i];
  }
  collapse_and_norm(a.x + row * kStreams * a.d, old_pre, a.norm, a.d, a.eps, a.out + row * a.d, a.out + row * a.d, shared);
}

__global__ __launch_bounds__(kThreads) void leave_kernel(bf16* x, const bf16* y, const float* post, const float* comb, int d) {
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

__global__ __launch_bounds__(kThreads) void collapse_kernel(const bf16* x, const float* pre, const float* norm, int d, float eps, bf16* out) {
  __shared__ float shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  collapse_and_norm(x + row * kStreams * d, pre + row * kStreams, norm, d, eps, out + row * d, out + row * d, shared);
}

__global__ __launch_bounds__(kThreads) void gather_kernel(const bf16* x, const float* pre, const int32_t* source, int width, bf16* x_to, float* pre_to) {
  const int64_t row = blockIdx.y, from = source[row];
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < width) x_to[row * width + i] = x[from * width + i];
  if (i < kStreams) pre_to[row * kStreams + i] = pre[from * kStreams + i];
}

__global__ __launch_bounds__(kThreads) void tap_kernel(const bf16* x, int d, int taps, int index, bf16* out) {
  const int64_t row = blockIdx.y;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= d) return;
  x += row * kStreams * d;
  const float sum = ((value(x[i]) + value(x[d + i])) + value(x[2 * d + i])) + value(x[3 * d + i]);
  out[(row * taps + index) * d + i] = rounded(sum / kStreams);
}

// Final collapse and norm of the output rows (or of all draft rows, where `outputs` is null).
__global__ __launch_bounds__(kThreads) void final_kernel(const bf16* x, const float* pre, const int32_t* outputs, const int32_t* counts, const float* norm, int d, float eps,
                                                         bf16* collapsed, bf16* out) {
  __shared__ float shared[kThreads / 32];
  const int64_t i = blockIdx.x;
  if (outputs != nullptr && i >= counts[1]) return;
  const int64_t row = outputs != nullptr ? outputs[i] : i;
  collapse_and_norm(x + row * kStreams * d, pre + row * kStreams, norm, d, eps, collapsed + i * d, out + i * d, shared);
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void Backend::hc_enter(At where, Sublayer which) {
  const int rows = row_count(where.rows), width = static_cast<int>(c_.hc_width()), slices = (width + kSlice - 1) / kSlice, s = which == Sublayer::kFfn;
  const Layer& l = layers_[where.layer];
  if (rows == 0) return;
  mix_kernel<<<dim3(slices, (rows + kMixRows - 1) / kMixRows), kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), l.hc_fn[s], rows, width, mix_);
  enter_kernel<<<rows, kThreads, 0, stream_>>>(MixArguments{at<bf16>(Role::kResidual), mix_, l.hc_base[s], l.hc_scale[s], s ? l.ffn_norm : l.attn_norm, at<float>(Role::kPre),
                                                            at<float>(Role::kPost), at<float>(Role::kComb), at<bf16>(Role::kSublayerIn), static_cast<int>(c_.hidden_size), slices,
                                                            static_cast<int>(c_.hc_sinkhorn_iters), eps(), static_cast<float>(c_.hc_eps)});
}

void Backend::hc_leave(At where, Sublayer) {
  if (const int rows = row_count(where.rows); rows > 0) {
    leave_kernel<<<dim3(blocks(c_.hidden_size), rows), kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<bf16>(Role::kSublayerOut), at<float>(Role::kPost), at<float>(Role::kComb),
                                                                               static_cast<int>(c_.hidden_size));
  }
}

void Backend::hc_collapse(At where) {
  if (const int rows = row_count(where.rows); rows > 0) {
    collapse_kernel<<<rows, kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<float>(Role::kPre), layers_[where.layer].attn_norm, static_cast<int>(c_.hidden_size), eps(),
                                                    at<bf16>(Role::kSublayerIn));
  }
}

void Backend::keep_decoder_rows() {
  const RowSet& to = set_of(Rows::kDecoder);
  if (to.rows == 0) return;
  const int width = static_cast<int>(c_.hc_width());
  // Through scratch, since rows move in parallel.
  gather_kernel<<<dim3(blocks(width), to.rows), kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<float>(Role::kPre), to.view.source, width, wide_, mix_);
  note(cudaMemcpyAsync(at<bf16>(Role::kResidual), wide_, static_cast<size_t>(to.rows) * width * 2, cudaMemcpyDeviceToDevice, stream_));
  note(cudaMemcpyAsync(at<float>(Role::kPre), mix_, static_cast<size_t>(to.rows) * kStreams * 4, cudaMemcpyDeviceToDevice, stream_));
}

void Backend::tap(At where, int index) {
  if (const int rows = row_count(where.rows); rows > 0) {
    const int d = static_cast<int>(c_.hidden_size);
    tap_kernel<<<dim3(blocks(d), rows), kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), d, static_cast<int>(c_.dspark_target_layer_ids.size()), index, at<bf16>(Role::kTaps));
  }
}

void Backend::head() {
  const RowSet& set = set_of(Rows::kDecoder);
  // A recorded decode step serves any outputs of that many rows.
  const int n = recording_ ? std::min<int>(set.rows, static_cast<int>(buffer(Role::kLogits).rows)) : set.outputs, d = static_cast<int>(c_.hidden_size);
  if (n == 0) return;
  final_kernel<<<n, kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<float>(Role::kPre), set.view.outputs, set.view.counts, norm_, d, eps(), at<bf16>(Role::kFinalHidden),
                                            at<bf16>(Role::kFinalHidden));
  project(head_, at<bf16>(Role::kFinalHidden), d, n, {at<float>(Role::kLogits), Output::kFp32, c_.vocab_size});
}

void Backend::draft_base() {
  const RowSet& set = set_of(Rows::kDraft);
  const int d = static_cast<int>(c_.hidden_size);
  if (set.rows == 0) return;
  final_kernel<<<set.rows, kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<float>(Role::kPre), nullptr, set.view.counts, draft_norm_, d, eps(), at<bf16>(Role::kDraftHidden),
                                                   at<bf16>(Role::kSublayerIn));
  project(head_, at<bf16>(Role::kSublayerIn), d, set.rows, {at<float>(Role::kDraftBase), Output::kFp32, c_.vocab_size});
  start_drafts();
}

}  // namespace deepinfer::ops::cuda
