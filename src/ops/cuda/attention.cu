// Projections, window records and the output projection (spec/model.md 6, 8.2, 11.2, 16.1).
#include "ops/cuda/backend.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 128;

__global__ __launch_bounds__(kThreads) void norm_kernel(bf16* x, const float* w, int n, int64_t stride, float eps) {
  __shared__ float shared[kThreads / 32];
  bf16* row = x + blockIdx.x * stride;
  rms_norm<kThreads>(row, w, n, eps, row, shared);
}

// RoPE on the last channels of every head of a row; sign -1: the conjugate. One thread a pair.
__global__ void rotate_kernel(const bf16* from, bf16* x, int heads, int d, int half, const float* cos, const float* sin, float sign) {
  const int64_t row = blockIdx.x;
  const int64_t base = row * heads * d;
  if (from != x) {
    for (int i = threadIdx.x; i < heads * d; i += blockDim.x) x[base + i] = from[base + i];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
    const int h = i / half, j = i % half;
    rotate_pair(x + base + h * d + d - 2 * half + 2 * j, cos[row * half + j], sign * sin[row * half + j]);
  }
}

// kv_norm, RoPE and FQ8 of a window row: codes, then scales.
__global__ __launch_bounds__(kThreads) void window_kernel(bf16* kv, const float* w, int d, int half, const float* cos, const float* sin, float eps, uint8_t* records, int record_bytes) {
  __shared__ float shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  bf16* x = kv + row * d;
  uint8_t* record = records + row * record_bytes;
  rms_norm<kThreads>(x, w, d, eps, x, shared);
  __syncthreads();
  for (int j = threadIdx.x; j < half; j += kThreads) rotate_pair(x + d - 2 * half + 2 * j, cos[row * half + j], sin[row * half + j]);
  __syncthreads();
  for (int g = threadIdx.x / 32; g < d / 32; g += kThreads / 32) {
    const int i = 32 * g + threadIdx.x % 32;
    const float v = value(x[i]);
    const int e = fq8_exponent(warp_max(fabsf(v)));
    record[i] = fq8_code(v, e);
    if (threadIdx.x % 32 == 0) record[d + g] = static_cast<uint8_t>(e);
  }
}

// RoPE and FQ4I of the index queries of a row, values in place. A warp a group of 32 channels.
__global__ __launch_bounds__(kThreads) void index_query_kernel(bf16* q, int heads, int d, int half, const float* cos, const float* sin) {
  const int64_t row = blockIdx.x;
  bf16* x = q + row * heads * d;
  for (int i = threadIdx.x; i < heads * half; i += kThreads) {
    const int h = i / half, j = i % half;
    rotate_pair(x + h * d + d - 2 * half + 2 * j, cos[row * half + j], sin[row * half + j]);
  }
  __syncthreads();
  for (int g = threadIdx.x / 32; g < heads * d / 32; g += kThreads / 32) {
    const int i = 32 * g + threadIdx.x % 32;
    const float v = value(x[i]);
    const int e = fq4i_exponent(warp_max(fabsf(v)));
    x[i] = rounded(e2m1_value(fq4i_code(v, e)) * __uint_as_float(static_cast<uint32_t>(e) << 23));
  }
}

// Ratio-1 compressor rows: bf16 values kept as fp32 in the first half of the row.
__global__ void widen_kernel(const bf16* from, int d, float* to) {
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < d; i += blockDim.x) to[row * 2 * d + i] = value(from[row * d + i]);
}

// The last ring-size rows of each sequence go into its window ring.
__global__ void store_window_kernel(RowView v, const uint8_t* records, int record_bytes, std::byte* slots, int64_t slot_stride, int64_t ring_offset, int ring_slots) {
  const int row = blockIdx.x;
  const SequenceRows& s = v.sequences[v.sequence[row]];
  if (row < s.first_row + s.rows - ring_slots) return;
  std::byte* to = slots + s.slot * slot_stride + ring_offset + static_cast<int64_t>(v.positions[row] % ring_slots) * record_bytes;
  const auto* from = reinterpret_cast<const std::byte*>(records) + static_cast<int64_t>(row) * record_bytes;
  for (int i = threadIdx.x; i < record_bytes; i += blockDim.x) to[i] = from[i];
}

}  // namespace

void Backend::window_rows(int layer, Rows which, const bf16* x) {
  const RowSet& set = set_of(which);
  const int d = static_cast<int>(c_.head_dim), table = ratio_of(layer) > 0;
  const Layer& l = layers_[layer];
  if (set.rows == 0) return;
  project(l.wkv, x, c_.hidden_size, set.rows, {narrow_, Output::kBf16, d});
  window_kernel<<<set.rows, kThreads, 0, stream_>>>(narrow_, l.kv_norm, d, half(), set.view.cos[table], set.view.sin[table], eps(), at<uint8_t>(Role::kWindowRecords),
                                                    static_cast<int>(layout_.window_bytes));
}

void Backend::attention_project(At where, uint32_t parts) {
  const RowSet& set = set_of(where.rows);
  const Layer& l = layers_[where.layer];
  const int n = set.rows, D = static_cast<int>(c_.hidden_size), table = ratio_of(where.layer) > 0;
  if (n == 0) return;
  const bf16* x = at<bf16>(Role::kSublayerIn);
  const float *cos = set.view.cos[table], *sin = set.view.sin[table];
  if (parts & kProjectQueries) {
    const int low = static_cast<int>(c_.q_lora_rank), heads = static_cast<int>(c_.num_attention_heads), d = static_cast<int>(c_.head_dim);
    project(l.wq_a, x, D, n, {at<bf16>(Role::kQueryLow), Output::kBf16, low});
    norm_kernel<<<n, kThreads, 0, stream_>>>(at<bf16>(Role::kQueryLow), l.q_norm, low, low, eps());
    project(l.wq_b, at<bf16>(Role::kQueryLow), low, n, {at<bf16>(Role::kQuery), Output::kBf16, heads * d});
    rotate_kernel<<<n, 256, 0, stream_>>>(at<bf16>(Role::kQuery), at<bf16>(Role::kQuery), heads, d, half(), cos, sin, 1.0f);
  }
  if (parts & kProjectWindow) window_rows(where.layer, where.rows, x);
  if (parts & kProjectIndexQueries) {
    const int heads = static_cast<int>(c_.index_n_heads), d = static_cast<int>(c_.index_head_dim);
    project(l.index_wq_b, at<bf16>(Role::kQueryLow), c_.q_lora_rank, n, {at<bf16>(Role::kIndexQuery), Output::kBf16, heads * d});
    index_query_kernel<<<n, kThreads, 0, stream_>>>(at<bf16>(Role::kIndexQuery), heads, d, half(), cos, sin);
    project(l.weights_proj, x, D, n, {at<bf16>(Role::kIndexWeights), Output::kBf16, heads});
  }
  if (parts & kProjectCompressor) {
    const int d = static_cast<int>(c_.head_dim);
    float* out = at<float>(Role::kCompressorRows);
    if (ratio_of(where.layer) == 1) {
      project(l.compressor_wkv, x, D, n, {narrow_, Output::kBf16, d});
      widen_kernel<<<n, kThreads, 0, stream_>>>(narrow_, d, out);
    } else {
      project(l.compressor_wgate, x, D, n, {out, Output::kFp32, 2 * d});
      project(l.compressor_wkv, x, D, n, {out + d, Output::kFp32, 2 * d});
    }
  }
}

void Backend::store_window(At where) {
  const RowSet& set = set_of(where.rows);
  if (set.rows == 0) return;
  store_window_kernel<<<set.rows, kThreads, 0, stream_>>>(set.view, at<uint8_t>(Role::kWindowRecords), static_cast<int>(layout_.window_bytes), kv_.slots,
                                                          static_cast<int64_t>(layout_.slot_stride), static_cast<int64_t>(layout_.window_offsets[where.layer]), layout_.window_slots);
}

void Backend::attention_output(At where) {
  const RowSet& set = set_of(where.rows);
  const Layer& l = layers_[where.layer];
  const int n = set.rows, heads = static_cast<int>(c_.num_attention_heads), d = static_cast<int>(c_.head_dim), table = ratio_of(where.layer) > 0;
  const int groups = static_cast<int>(c_.o_groups), rank = static_cast<int>(c_.o_lora_rank), width = static_cast<int>(c_.group_input());
  if (n == 0) return;
  rotate_kernel<<<n, 256, 0, stream_>>>(at<bf16>(Role::kHeads), wide_, heads, d, half(), set.view.cos[table], set.view.sin[table], -1.0f);
  // wo_a takes bf16 activations (4.5): its rows g * rank .. read group g of the heads.
  for (int g = 0; g < groups; ++g) {
    LinearWeights w = l.wo_a;
    w.n = rank;
    w.codes = static_cast<const uint8_t*>(w.codes) + static_cast<int64_t>(g) * rank * w.k;
    w.scales += static_cast<int64_t>(g) * (rank / 32) * (w.k / 32);
    Packing packing = packing_of(w.format, n);
    packing.quantise = false;
    pack_activations(wide_ + g * width, n, width, packing, nullptr, packed_, stream_, static_cast<int64_t>(heads) * d);
    linear(w, packed_, n, {narrow_ + g * rank, Output::kBf16, groups * rank}, stream_);
  }
  project(l.wo_b, narrow_, groups * rank, n, {at<bf16>(Role::kSublayerOut), Output::kBf16, c_.hidden_size});
}

void Backend::fill_draft_rings(Rows which) {
  const RowSet& set = set_of(which);
  const int D = static_cast<int>(c_.hidden_size);
  if (set.rows == 0) return;
  bf16* main = at<bf16>(Role::kSublayerIn);
  project(main_proj_, at<bf16>(Role::kTaps), buffer(Role::kTaps).cols, set.rows, {main, Output::kBf16, D});
  norm_kernel<<<set.rows, kThreads, 0, stream_>>>(main, main_norm_, D, D, eps());
  for (int j = 0; j < c_.num_nextn_predict_layers; ++j) {
    const int layer = static_cast<int>(c_.num_hidden_layers) + j;
    window_rows(layer, which, main);
    store_window({layer, which});
  }
}

}  // namespace deepinfer::ops::cuda
