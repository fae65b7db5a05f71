// The indexer (spec/model.md 8): scores by tensor cores and the bf16 chain of 8.2, candidate blocks, exact top-k by radix selection
// of 16-bit keys. Equal scores prefer the lower index.
#include "ops/cuda/backend.h"
#include "ops/cuda/hopper.cuh"

namespace deepinfer::ops::cuda {
namespace {

// A bf16 score as an unsigned key that orders like it; +0 and -0 are one key. 0 stands for "not there".
__device__ __forceinline__ uint16_t ordered_key(bf16 x) {
  const uint16_t b = __bfloat16_as_ushort(x);
  if ((b & 0x7fff) == 0) return 0x8000;
  return b & 0x8000 ? static_cast<uint16_t>(~b) : static_cast<uint16_t>(b | 0x8000);
}
constexpr uint16_t kPinned = 0xff80;                  // +infinity
constexpr uint16_t kLargestFinite = 0x7f7f | 0x8000;  // 8.4: block maxima are capped there

struct ScoreArguments {
  RowView v;
  const bf16 *q, *weights;
  const std::byte* pages;
  const int32_t* candidates;  // null: all visible entries
  uint16_t* keys;             // [rows of this launch][columns]
  float* scores;              // kept scores, or null
  int64_t page_stride, key_offset, key_scale_offset, columns, score_columns;
  int first_row, page_entries, key_data_bytes, key_scale_bytes, heads, ratio, topk, candidate_blocks, candidate_size;
};

// Entries that a row scores: all visible ones, or those of its candidate blocks laid back to back.
struct Scored {
  int visible, count;
  const int32_t* blocks;  // null: identity

  __device__ Scored(const ScoreArguments& a, int row) {
    visible = count = (a.v.positions[row] + 1) / a.ratio;
    blocks = nullptr;
    if (a.candidates == nullptr) return;
    const int32_t* kept = a.candidates + static_cast<int64_t>(row) * a.candidate_blocks;
    if (kept[0] < 0) return;
    blocks = kept;
    // The newest block is always kept and may be a partial one.
    count = (a.candidate_blocks - 1) * a.candidate_size + visible - kept[a.candidate_blocks - 1] * a.candidate_size;
    count = min(count, a.candidate_blocks * a.candidate_size);
  }
  __device__ int entry(int i, int size) const { return blocks == nullptr ? i : blocks[i / size] * size + i % size; }
};

constexpr int kScoreWarps = 8;

// A warp scores 8 entries at a time against all heads. Lane (n, quad) holds dims kDim / 4 * quad .. of entry n: one scale block or
// half of one. q is laid in the same order, so keys need no shuffle.
template <int kDim>
__global__ __launch_bounds__(32 * kScoreWarps) void score_kernel(const ScoreArguments a) {
  constexpr int kLaneDims = kDim / 4, kSteps = kDim / 16, kMaxHeads = 32;
  __shared__ float dots[kScoreWarps][8][kMaxHeads + 1];
  const int row = a.first_row + blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4, n = lane / 4;
  const SequenceRows s = a.v.sequences[a.v.sequence[row]];
  const Scored scored(a, row);
  if (a.scores == nullptr && scored.visible <= a.topk) return;  // every entry is taken

  uint32_t q[2][kSteps][4] = {};
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {  // register r: head n + 8 (r mod 2), pair r / 2
        const int head = 16 * m + n + 8 * (r % 2), c = kLaneDims * quad + 4 * j + 2 * (r / 2);
        if (head < a.heads) q[m][j][r] = *reinterpret_cast<const uint32_t*>(a.q + (static_cast<int64_t>(row) * a.heads + head) * kDim + c);
      }
    }
  }
  const int steps = (scored.count + 7) / 8;
  for (int step = blockIdx.x * kScoreWarps + warp; step < steps; step += gridDim.x * kScoreWarps) {
    const int i = 8 * step + n;
    const int entry = scored.entry(min(i, scored.count - 1), a.candidate_size);
    const auto* page = reinterpret_cast<const uint8_t*>(a.pages + static_cast<int64_t>(a.v.blocks[s.first_block + entry / a.page_entries]) * a.page_stride);
    const int offset = entry % a.page_entries;
    const uint8_t* data = page + a.key_offset + static_cast<int64_t>(offset) * a.key_data_bytes + kLaneDims / 2 * quad;
    const float scale = ue8m0_value(page[a.key_scale_offset + static_cast<int64_t>(offset) * a.key_scale_bytes + kLaneDims * quad / 32]);
    uint32_t words[kLaneDims / 8];
#pragma unroll
    for (int w = 0; w < kLaneDims / 8; ++w) words[w] = *reinterpret_cast<const uint32_t*>(data + 4 * w);
    float d[2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint32_t word = words[j / 2] >> (16 * (j % 2));  // dims 4 j .. 4 j + 3
      const __nv_bfloat162 b0(rounded(e2m1_value(word & 15) * scale), rounded(e2m1_value(word >> 4 & 15) * scale));
      const __nv_bfloat162 b1(rounded(e2m1_value(word >> 8 & 15) * scale), rounded(e2m1_value(word >> 12 & 15) * scale));
      mma_bf16(d[0], q[0][j], *reinterpret_cast<const uint32_t*>(&b0), *reinterpret_cast<const uint32_t*>(&b1));
      if (a.heads > 16) mma_bf16(d[1], q[1][j], *reinterpret_cast<const uint32_t*>(&b0), *reinterpret_cast<const uint32_t*>(&b1));
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dots[warp][2 * quad + e % 2][16 * m + n + 8 * (e / 2)] = d[m][e];
    }
    __syncwarp();
    // Lane (n, quad): chain `quad` of entry n (8.2).
    bf16 chain = rounded(0.0f);
    for (int h = quad; h < a.heads; h += 4) chain = __hfma(rounded(fmaxf(dots[warp][n][h], 0.0f)), a.weights[static_cast<int64_t>(row) * a.heads + h], chain);
    const bf16 c0 = __hadd_rn(chain, __shfl_down_sync(0xffffffffu, chain, 2));
    const bf16 total = __hadd_rn(c0, __shfl_down_sync(0xffffffffu, c0, 1));
    if (quad == 0 && i < scored.count) {
      a.keys[static_cast<int64_t>(blockIdx.y) * a.columns + i] = ordered_key(total);
      if (a.scores != nullptr) a.scores[static_cast<int64_t>(row) * a.score_columns + entry] = value(total);
    }
  }
}

// ---- selection -----------------------------------------------------------------------------------------------------------------
constexpr int kSelectThreads = 256;

// The `keep` best of n keys (keep < n): calls take(i) for their indices, ascending positions: take(index, position).
template <class Take>
__device__ void select_best(const uint16_t* keys, int n, int keep, Take take) {
  __shared__ int histogram[256], bin_shared, above_shared, offsets[2][kSelectThreads / 32], base[2];
  int above = 0, high = 0;
  // Two passes over 8 bits give the key of the last one kept, and how many are above it.
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
      const int k = keys[i];
      if (pass == 0) {
        atomicAdd(&histogram[k >> 8], 1);
      } else if (k >> 8 == high) {
        atomicAdd(&histogram[k & 255], 1);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = 255, seen = above;
      while (bin > 0 && seen + histogram[bin] < keep) seen += histogram[bin--];
      bin_shared = bin, above_shared = seen;
    }
    __syncthreads();
    above = above_shared;
    high = pass == 0 ? bin_shared : high << 8 | bin_shared;
    __syncthreads();
  }
  const int threshold = high, ties = keep - above;
  // In index order: everything above, and the first `ties` that equal the threshold.
  if (threadIdx.x == 0) base[0] = base[1] = 0;
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i0 = 0; i0 < n; i0 += kSelectThreads) {
    const int i = i0 + threadIdx.x, k = i < n ? keys[i] : -1;
    const unsigned equal = __ballot_sync(0xffffffffu, k == threshold), greater = __ballot_sync(0xffffffffu, k > threshold);
    if (lane == 0) offsets[0][warp] = __popc(equal), offsets[1][warp] = __popc(greater);
    __syncthreads();
    int equal_before = base[0] + __popc(equal & ((1u << lane) - 1)), greater_before = base[1] + __popc(greater & ((1u << lane) - 1));
    for (int w = 0; w < warp; ++w) equal_before += offsets[0][w], greater_before += offsets[1][w];
    // Position: all greater ones before, and those ties before that are taken.
    if (k > threshold || (k == threshold && equal_before < ties)) take(i, greater_before + min(equal_before, ties));
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 0; w < kSelectThreads / 32; ++w) base[0] += offsets[0][w], base[1] += offsets[1][w];
    }
    __syncthreads();
  }
}

__global__ __launch_bounds__(kSelectThreads) void candidate_kernel(const ScoreArguments a, int32_t* out, uint16_t* maxima, int64_t maxima_columns) {
  const int row = a.first_row + blockIdx.x;
  const int visible = (a.v.positions[row] + 1) / a.ratio, blocks = (visible + a.candidate_size - 1) / a.candidate_size;
  int32_t* kept = out + static_cast<int64_t>(row) * a.candidate_blocks;
  if (blocks <= a.candidate_blocks) {
    if (threadIdx.x == 0) kept[0] = -1;
    return;
  }
  const uint16_t* keys = a.keys + static_cast<int64_t>(blockIdx.x) * a.columns;
  uint16_t* top = maxima + static_cast<int64_t>(blockIdx.x) * maxima_columns;
  for (int b = threadIdx.x; b < blocks; b += kSelectThreads) {
    uint16_t m = 0;
    for (int i = b * a.candidate_size; i < min(visible, (b + 1) * a.candidate_size); ++i) m = max(m, keys[i]);
    top[b] = b == blocks - 1 ? kPinned : min(m, kLargestFinite);
  }
  __syncthreads();
  select_best(top, blocks, a.candidate_blocks, [&](int i, int position) { kept[position] = i; });
}

__global__ __launch_bounds__(kSelectThreads) void entries_kernel(const ScoreArguments a, int32_t* out) {
  const int row = a.first_row + blockIdx.x;
  const Scored scored(a, row);
  int32_t* selected = out + static_cast<int64_t>(row) * a.topk;
  if (scored.count <= a.topk) {
    for (int i = threadIdx.x; i < a.topk; i += kSelectThreads) selected[i] = i < scored.count ? scored.entry(i, a.candidate_size) : -1;
    return;
  }
  select_best(a.keys + static_cast<int64_t>(blockIdx.x) * a.columns, scored.count, a.topk, [&](int i, int position) { selected[position] = scored.entry(i, a.candidate_size); });
}

__global__ void clear_scores_kernel(float* scores, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += static_cast<int64_t>(gridDim.x) * blockDim.x) scores[i] = -INFINITY;
}

}  // namespace

void Backend::select(At where) {
  const RowSet& set = set_of(where.rows);
  if (set.rows == 0) return;
  const checkpoint::LayerInfo& layer = c_.layers[where.layer];
  const KvSource& source = layout_.sources[layout_.source_at(layer.index_key_source)];
  ScoreArguments a{};
  a.v = set.view;
  a.q = at<bf16>(Role::kIndexQuery), a.weights = at<bf16>(Role::kIndexWeights);
  a.pages = kv_.pages;
  a.keys = scores_;
  a.page_stride = static_cast<int64_t>(layout_.page_stride);
  a.key_offset = static_cast<int64_t>(source.key_offset), a.key_scale_offset = static_cast<int64_t>(source.key_scale_offset);
  a.columns = score_columns_, a.score_columns = buffer(Role::kIndexScores).cols;
  a.page_entries = source.page_entries;
  a.key_data_bytes = static_cast<int>(layout_.key_data_bytes), a.key_scale_bytes = static_cast<int>(layout_.key_scale_bytes);
  a.heads = static_cast<int>(c_.index_n_heads), a.ratio = layer.ratio, a.topk = static_cast<int>(c_.index_topk);
  a.candidate_blocks = static_cast<int>(c_.candidate_topk_blocks), a.candidate_size = static_cast<int>(c_.candidate_block_size);
  const bool source_of_candidates = where.layer == c_.candidate_source_layer_id, filtered = where.layer > c_.candidate_source_layer_id;
  if (filtered) a.candidates = at<int32_t>(Role::kCandidates);
  if (limits_.keep_scores) {
    a.scores = at<float>(Role::kIndexScores);
    clear_scores_kernel<<<256, 256, 0, stream_>>>(a.scores, static_cast<int64_t>(set.rows) * a.score_columns);
  }
  const int score_ctas = set.rows >= 64 ? 4 : 64;
  for (int first = 0; first < set.rows; first += score_rows_) {
    const int n = std::min(score_rows_, set.rows - first);
    a.first_row = first;
    c_.index_head_dim == 128 ? score_kernel<128><<<dim3(score_ctas, n), 32 * kScoreWarps, 0, stream_>>>(a)
                             : score_kernel<64><<<dim3(score_ctas, n), 32 * kScoreWarps, 0, stream_>>>(a);
    if (source_of_candidates) {
      candidate_kernel<<<n, kSelectThreads, 0, stream_>>>(a, at<int32_t>(Role::kCandidates), block_scores_, score_columns_ / a.candidate_size + 1);
    }
    entries_kernel<<<n, kSelectThreads, 0, stream_>>>(a, at<int32_t>(Role::kSelected));
  }
}

}  // namespace deepinfer::ops::cuda
