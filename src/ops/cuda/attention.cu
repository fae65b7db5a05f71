// Projections, window records and the output projection (spec/model.md 6, 8.2, 11.2, 16.1).
#include <algorithm>
#include <cassert>

#include "ops/cuda/backend.h"
#include "ops/cuda/chain_few.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/low.cuh"
#include "ops/cuda/pack.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = kLowThreads;

__global__ __launch_bounds__(kThreads) void norm_kernel(bf16* x, const float* w, int n, int64_t stride, float eps) {
  __shared__ float shared[kThreads / 32];
  bf16* row = x + blockIdx.x * stride;
  rms_norm<kThreads>(row, w, n, eps, row, shared);
}

// RoPE on the last channels of every head, in place. One thread a pair.
__global__ __launch_bounds__(256) void rotate_kernel(bf16* x, int heads, int d, int half, const float* cos,
                                                     const float* sin) {
  wait_for_inputs();
  start_next_kernel();
  const int64_t row = blockIdx.x;
  const int i = blockIdx.y * 256 + threadIdx.x, h = i / half, j = i % half;
  if (h < heads)
    rotate_pair(x + (row * heads + h) * d + d - 2 * half + 2 * j, cos[row * half + j], sin[row * half + j]);
}

// The conjugate rotation of a row's heads, packed for wo_a (bf16 values, 4.5): block y packs output group y, whose
// input is `width` channels. Warps take chunks.
__global__ __launch_bounds__(256) void unrotate_kernel(const bf16* heads, int width, int all, int d, int half,
                                                       const float* cos, const float* sin, Packing packing,
                                                       uint8_t* packed, int rows_between) {
  wait_for_inputs();
  start_next_kernel();
  const int64_t row = blockIdx.x, packed_row = static_cast<int64_t>(blockIdx.y) * rows_between + row;
  const int lane = threadIdx.x % 32, chunks = (width + kChunk - 1) / kChunk;
  for (int chunk = threadIdx.x / 32; chunk < chunks; chunk += 8) {
    // two pairs a lane: j and j + 1
    const int i = kChunk * chunk + 4 * lane, in_head = i % d, j = (in_head - (d - 2 * half)) / 2;
    uint2 u{};
    if (i < width) u = *reinterpret_cast<const uint2*>(heads + row * all + blockIdx.y * width + i);
    if (i < width && in_head >= d - 2 * half) {
      const float2 c = *reinterpret_cast<const float2*>(cos + row * half + j),
                   s = *reinterpret_cast<const float2*>(sin + row * half + j);
      bf16* x = reinterpret_cast<bf16*>(&u);
      rotate_pair(x, c.x, -s.x);
      rotate_pair(x + 2, c.y, -s.y);
    }
    pack_chunk(u, packing, packed, packed_row, chunks, chunk);
  }
}

struct LowArguments {
  bf16* low_kv;  // [rows][low + d]; null q_norm: [rows][d], window records only
  const float *q_norm, *kv_norm, *cos, *sin;
  bf16* low_out;
  uint8_t *packed, *records;
  bool stream;
  int low, d, half, record_bytes;
  float eps;
};

// Block y = 0: the window record of a row: kv_norm, RoPE and FQ8, codes, then scales. 1: q_norm of its qr, also packed
// for wq_b.
__global__ __launch_bounds__(kThreads) void low_kernel(const LowArguments a) {
  extern __shared__ __align__(16) bf16 normed[];  // the longer of the two
  __shared__ float shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto sync = [] { __syncthreads(); };
  if (blockIdx.y == 0) {
    const NormedRow norm(a.kv_norm, a.d);
    const int j = min(static_cast<int>(threadIdx.x), a.half - 1);
    const float cos = a.cos[row * a.half + j], sin = a.sin[row * a.half + j];
    wait_for_inputs();
    start_next_kernel();
    norm.put(a.low_kv + row * (a.low + a.d) + a.low, a.eps, normed, shared, sync);
    window_record(normed, a.d, a.half, a.cos + row * a.half, a.sin + row * a.half, cos, sin,
                  a.records + row * a.record_bytes, sync);
    return;
  }
  const NormedRow norm(a.q_norm, a.low);
  wait_for_inputs();
  start_next_kernel();
  norm.put(a.low_kv + row * (a.low + a.d), a.eps, normed, shared, sync);
  const int chunks = (a.low + kChunk - 1) / kChunk;
  for (int chunk = warp; chunk < chunks; chunk += kThreads / 32) {
    const int i = kChunk * chunk + 4 * lane;
    const uint2 u = i < a.low ? *reinterpret_cast<const uint2*>(normed + i) : uint2{};
    if (i < a.low) *reinterpret_cast<uint2*>(a.low_out + row * a.low + i) = u;
    pack_chunk(u, {WeightFormat::kFp8, a.stream}, a.packed, row, chunks, chunk);
  }
}

// RoPE and FQ4I of the index queries of a row, values in place. A warp a group of 32 channels.
__global__ __launch_bounds__(kThreads) void index_query_kernel(bf16* q, int heads, int d, int half, const float* cos,
                                                               const float* sin) {
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
__global__ void store_window_kernel(RowView v, const uint8_t* records, int record_bytes, std::byte* slots,
                                    int64_t slot_stride, int64_t ring_offset, int ring_slots) {
  wait_for_inputs();
  start_next_kernel();
  const int row = blockIdx.x;
  const SequenceRows& s = v.sequences[v.sequence[row]];
  if (row < s.first_row + s.rows - ring_slots) return;
  std::byte* to =
      slots + s.slot * slot_stride + ring_offset + static_cast<int64_t>(v.positions[row] % ring_slots) * record_bytes;
  const auto* from = reinterpret_cast<const std::byte*>(records) + static_cast<int64_t>(row) * record_bytes;
  for (int i = 2 * threadIdx.x; i < record_bytes; i += 2 * blockDim.x)
    *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
}

}  // namespace

void Backend::window_rows(int layer, Rows which, const bf16* x) {
  const RowSet& set = set_of(which);
  const int d = static_cast<int>(c_.head_dim), table = ratio_of(layer) > 0;
  const Layer& l = layers_[layer];
  if (set.rows == 0) return;
  const LinearOutput y{narrow_, Output::kBf16, d};
  x == at<bf16>(Role::kSublayerIn) ? project_in(l.wkv, set.rows, y) : project(l.wkv, x, c_.hidden_size, set.rows, y);
  const LowArguments a{.low_kv = narrow_,
                       .kv_norm = l.kv_norm,
                       .cos = set.view.cos[table],
                       .sin = set.view.sin[table],
                       .records = at<uint8_t>(Role::kWindowRecords),
                       .d = d,
                       .half = half(),
                       .record_bytes = static_cast<int>(layout_.window_bytes),
                       .eps = eps()};
  launch_next(low_kernel, set.rows, kThreads, d * sizeof(bf16), stream_, a);
}

// Queries and window records of n rows.
void Backend::query_projections(const Layer& l, int n, const float* cos, const float* sin) {
  const int low = static_cast<int>(c_.q_lora_rank), heads = static_cast<int>(c_.num_attention_heads),
            d = static_cast<int>(c_.head_dim);
  auto* records = at<uint8_t>(Role::kWindowRecords);
  if (n == 1 && is_packed_in(WeightFormat::kFp8, n)) {
    const QueryChain chain{.wq_a_wkv = {l.wq_a_wkv, l.map(l.maps.wq_a_wkv)},
                           .wq_b = {l.wq_b, l.map(l.maps.wq_b)},
                           .packed = in_fp8_,
                           .q_norm = l.q_norm,
                           .kv_norm = l.kv_norm,
                           .cos = cos,
                           .sin = sin,
                           .low_kv = narrow_,
                           .low = at<bf16>(Role::kQueryLow),
                           .queries = at<bf16>(Role::kQuery),
                           .record = records,
                           .d = d,
                           .half = half(),
                           .eps = eps(),
                           .progress = chain_progress_};
    if (fits(chain)) return project_queries(chain, stream_);
  }
  project_in(l.wq_a_wkv, n, {narrow_, Output::kBf16, low + d});
  const LowArguments a{narrow_,
                       l.q_norm,
                       l.kv_norm,
                       cos,
                       sin,
                       at<bf16>(Role::kQueryLow),
                       packed_,
                       records,
                       n <= kStreamRows,
                       low,
                       d,
                       half(),
                       static_cast<int>(layout_.window_bytes),
                       eps()};
  launch_next(low_kernel, dim3(n, 2), kThreads, std::max(low, d) * sizeof(bf16), stream_, a);
  linear(l.wq_b, packed_, n, {at<bf16>(Role::kQuery), Output::kBf16, heads * d}, stream_);
  launch_next(rotate_kernel, dim3(n, (heads * half() + 255) / 256), 256, 0, stream_, at<bf16>(Role::kQuery), heads, d,
              half(), cos, sin);
}

void Backend::attention_project(At where, uint32_t parts) {
  const RowSet& set = set_of(where.rows);
  const Layer& l = layers_[where.layer];
  const int n = set.rows, table = ratio_of(where.layer) > 0;
  if (n == 0) return;
  const bf16* x = at<bf16>(Role::kSublayerIn);
  const float *cos = set.view.cos[table], *sin = set.view.sin[table];
  if (parts & kProjectQueries) {  // with the window part
    assert(parts & kProjectWindow);
    query_projections(l, n, cos, sin);
  } else if (parts & kProjectWindow) {
    window_rows(where.layer, where.rows, x);
  }
  if (parts & kProjectIndexQueries) {
    const int heads = static_cast<int>(c_.index_n_heads), d = static_cast<int>(c_.index_head_dim);
    project(l.index_wq_b, at<bf16>(Role::kQueryLow), c_.q_lora_rank, n,
            {at<bf16>(Role::kIndexQuery), Output::kBf16, heads * d});
    index_query_kernel<<<n, kThreads, 0, stream_>>>(at<bf16>(Role::kIndexQuery), heads, d, half(), cos, sin);
    project_in(l.weights_proj, n, {at<bf16>(Role::kIndexWeights), Output::kBf16, heads});
  }
  if (parts & kProjectCompressor) {
    const int d = static_cast<int>(c_.head_dim);
    float* out = at<float>(Role::kCompressorRows);
    if (ratio_of(where.layer) == 1) {
      project_in(l.compressor_wkv, n, {narrow_, Output::kBf16, d});
      widen_kernel<<<n, kThreads, 0, stream_>>>(narrow_, d, out);
    } else {
      project_in(l.compressor_wgate, n, {out, Output::kFp32, 2 * d});
      project_in(l.compressor_wkv, n, {out + d, Output::kFp32, 2 * d});
    }
  }
}

// One row's record goes into the ring beside the output projection, which so follows the attention core at once.
void Backend::store_window(At where) {
  const bool beside = row_count(where.rows) == 1;
  if (beside) fork();
  store_window_rows(where, beside ? side_ : stream_);
  if (beside) side_ends();
}

void Backend::store_window_rows(At where, cudaStream_t stream) {
  const RowSet& set = set_of(where.rows);
  if (set.rows == 0) return;
  launch_next(store_window_kernel, set.rows, kThreads, 0, stream, set.view, at<uint8_t>(Role::kWindowRecords),
              static_cast<int>(layout_.window_bytes), kv_.slots, static_cast<int64_t>(layout_.slot_stride),
              static_cast<int64_t>(layout_.window_offsets[where.layer]), layout_.window_slots);
}

void Backend::attention_output(At where) {
  const RowSet& set = set_of(where.rows);
  const Layer& l = layers_[where.layer];
  const int n = set.rows, heads = static_cast<int>(c_.num_attention_heads), d = static_cast<int>(c_.head_dim),
            table = ratio_of(where.layer) > 0;
  const int groups = static_cast<int>(c_.o_groups), rank = static_cast<int>(c_.o_lora_rank),
            width = static_cast<int>(c_.group_input());
  if (n == 0) return;
  if (n == 1) {
    const OutputChain chain{.wo_a = {l.wo_a, l.map(l.maps.wo_a)},
                            .wo_b = {l.wo_b, l.map(l.maps.wo_b)},
                            .groups = groups,
                            .width = width,
                            .heads = at<bf16>(Role::kHeads),
                            .cos = set.view.cos[table],
                            .sin = set.view.sin[table],
                            .d = d,
                            .half = half(),
                            .low = narrow_,
                            .out = at<bf16>(Role::kSublayerOut),
                            .progress = chain_progress_};
    if (fits(chain)) return project_output(chain, stream_);
  }
  Packing packing = packing_of(WeightFormat::kFp8, n);
  packing.quantise = false;
  launch_next(unrotate_kernel, dim3(n, groups), 256, 0, stream_, at<bf16>(Role::kHeads), width, heads * d, d, half(),
              set.view.cos[table], set.view.sin[table], packing, packed_, group_rows(n));
  // Rows g * rank .. of wo_a read group g of the heads.
  LinearWeights w = l.wo_a;
  w.n = rank;
  w.codes_stride = static_cast<int64_t>(rank) * w.k;
  w.scales_stride = static_cast<int64_t>(rank / 32) * (w.k / 32);
  linear_batched(w, groups, packed_, n, group_rows(n), {narrow_, Output::kBf16, groups * rank}, rank, stream_);
  project(l.wo_b, narrow_, groups * rank, n, {at<bf16>(Role::kSublayerOut), Output::kBf16, c_.hidden_size});
}

void Backend::fill_draft_rings(Rows which) {
  const RowSet& set = set_of(which);
  const int D = static_cast<int>(c_.hidden_size);
  if (set.rows == 0) return;
  bf16* main = at<bf16>(Role::kSublayerIn);
  packed_in_ = {};
  project(main_proj_, at<bf16>(Role::kTaps), buffer(Role::kTaps).cols, set.rows, {main, Output::kBf16, D});
  norm_kernel<<<set.rows, kThreads, 0, stream_>>>(main, main_norm_, D, D, eps());
  for (int j = 0; j < c_.num_nextn_predict_layers; ++j) {
    const int layer = static_cast<int>(c_.num_hidden_layers) + j;
    window_rows(layer, which, main);
    store_window_rows({layer, which}, stream_);
  }
}

}  // namespace deepinfer::ops::cuda
