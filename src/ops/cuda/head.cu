// What leaves the streams of mHC: the collapse in front of the decoder's global KV, rows that go on, taps, and the head
// (spec/model.md 5.3, 15.3).
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/collapse.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kEnterThreads) void collapse_kernel(const bf16* x, const float* pre, const float* norm,
                                                                 int d, float eps, bf16* out) {
  __shared__ float shared[kEnterThreads / 32];
  const int64_t row = blockIdx.x;
  collapse_and_norm(x + row * kStreams * d, pre + row * kStreams, norm, d, eps, out + row * d, out + row * d, shared,
                    [] { __syncthreads(); });
}

__global__ __launch_bounds__(kThreads) void gather_kernel(const bf16* x, const float* pre, const int32_t* source,
                                                          int width, bf16* x_to, float* pre_to) {
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
__global__ __launch_bounds__(kEnterThreads) void final_kernel(const bf16* x, const float* pre, const int32_t* outputs,
                                                              const int32_t* counts, const float* norm, int d,
                                                              float eps, bf16* collapsed, bf16* out) {
  __shared__ float shared[kEnterThreads / 32];
  const int64_t i = blockIdx.x;
  if (outputs != nullptr && i >= counts[1]) return;
  const int64_t row = outputs != nullptr ? outputs[i] : i;
  collapse_and_norm(x + row * kStreams * d, pre + row * kStreams, norm, d, eps, collapsed + i * d, out + i * d, shared,
                    [] { __syncthreads(); });
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

void Backend::hc_collapse(At where) {
  join();
  packed_in_ = {};
  if (const int rows = row_count(where.rows); rows > 0) {
    collapse_kernel<<<rows, kEnterThreads, 0, stream_>>>(
        at<bf16>(Role::kResidual), at<float>(Role::kPre), layers_[where.layer].attn_norm,
        static_cast<int>(c_.hidden_size), eps(), at<bf16>(Role::kSublayerIn));
  }
}

void Backend::keep_decoder_rows() {
  const RowSet& to = set_of(Rows::kDecoder);
  if (to.rows == 0) return;
  join();
  const int width = static_cast<int>(c_.hc_width());
  // Through scratch, since rows move in parallel.
  gather_kernel<<<dim3(blocks(width), to.rows), kThreads, 0, stream_>>>(
      at<bf16>(Role::kResidual), at<float>(Role::kPre), to.view.source, width, wide_, mix_);
  note(cudaMemcpyAsync(at<bf16>(Role::kResidual), wide_, static_cast<size_t>(to.rows) * width * 2,
                       cudaMemcpyDeviceToDevice, stream_));
  note(cudaMemcpyAsync(at<float>(Role::kPre), mix_, static_cast<size_t>(to.rows) * kStreams * 4,
                       cudaMemcpyDeviceToDevice, stream_));
}

void Backend::tap(At where, int index) {
  if (const int rows = row_count(where.rows); rows > 0) {
    const int d = static_cast<int>(c_.hidden_size);
    tap_kernel<<<dim3(blocks(d), rows), kThreads, 0, stream_>>>(at<bf16>(Role::kResidual), d,
                                                                static_cast<int>(c_.dspark_target_layer_ids.size()),
                                                                index, at<bf16>(Role::kTaps));
  }
}

void Backend::head() {
  const RowSet& set = set_of(Rows::kDecoder);
  // A recorded decode step serves any outputs of that many rows.
  const int n = recording_ ? std::min<int>(set.rows, static_cast<int>(buffer(Role::kLogits).rows)) : set.outputs,
            d = static_cast<int>(c_.hidden_size);
  if (n == 0) return;
  join();
  final_kernel<<<n, kEnterThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<float>(Role::kPre), set.view.outputs,
                                                 set.view.counts, norm_, d, eps(), at<bf16>(Role::kFinalHidden),
                                                 at<bf16>(Role::kFinalHidden));
  project(head_, at<bf16>(Role::kFinalHidden), d, n, {at<float>(Role::kLogits), Output::kFp32, c_.vocab_size});
}

void Backend::draft_base() {
  const RowSet& set = set_of(Rows::kDraft);
  const int d = static_cast<int>(c_.hidden_size);
  if (set.rows == 0) return;
  join();
  packed_in_ = {};
  final_kernel<<<set.rows, kEnterThreads, 0, stream_>>>(at<bf16>(Role::kResidual), at<float>(Role::kPre), nullptr,
                                                        set.view.counts, draft_norm_, d, eps(),
                                                        at<bf16>(Role::kDraftHidden), at<bf16>(Role::kSublayerIn));
  project(head_, at<bf16>(Role::kSublayerIn), d, set.rows, {at<float>(Role::kDraftBase), Output::kFp32, c_.vocab_size});
  start_drafts();
}

}  // namespace deepinfer::ops::cuda
