// The indexer (spec/model.md 8): scores by tensor cores and the bf16 chain of 8.2, candidate blocks, exact top-k by
// radix selection of 16-bit keys. Equal scores prefer the lower index. select_wide.cu has the one for the official
// shape.
#include <algorithm>
#include <bit>

#include "ops/cuda/backend.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/select.cuh"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kScoreWarps = 8;

// For heads of kDim channels. A warp scores 8 entries at a time against all heads. Lane (n, quad) holds dims
// kDim / 4 * quad .. of entry n: one scale block or half of one. q is laid in the same order, so keys need no shuffle.
template <int kDim>
__global__ __launch_bounds__(32 * kScoreWarps) void score_kernel(const ScoreArguments a) {
  constexpr int kLaneDims = kDim / 4, kSteps = kDim / 16, kMaxHeads = 32;
  __shared__ float dots[kScoreWarps][8][kMaxHeads + 1];
  const int row = a.first_row + blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4,
            n = lane / 4;
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
        if (head < a.heads)
          q[m][j][r] =
              *reinterpret_cast<const uint32_t*>(a.q + (static_cast<int64_t>(row) * a.heads + head) * kDim + c);
      }
    }
  }
  const int steps = (scored.count + 7) / 8;
  for (int step = blockIdx.x * kScoreWarps + warp; step < steps; step += gridDim.x * kScoreWarps) {
    const int i = 8 * step + n;
    const int entry = scored.entry(min(i, scored.count - 1), a.candidate_shift);
    const auto* page = reinterpret_cast<const uint8_t*>(
        a.pages + static_cast<int64_t>(a.v.blocks[s.first_block + (entry >> a.page_shift)]) * a.page_stride);
    const int offset = entry & ((1 << a.page_shift) - 1);
    const uint8_t* data = page + a.key_offset + static_cast<int64_t>(offset) * a.key_data_bytes + kLaneDims / 2 * quad;
    const float scale = ue8m0_value(
        page[a.key_scale_offset + static_cast<int64_t>(offset) * a.key_scale_bytes + kLaneDims * quad / 32]);
    uint32_t words[kLaneDims / 8];
#pragma unroll
    for (int w = 0; w < kLaneDims / 8; ++w) words[w] = *reinterpret_cast<const uint32_t*>(data + 4 * w);
    float d[2][4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint32_t word = words[j / 2] >> (16 * (j % 2));  // dims 4 j .. 4 j + 3
      const __nv_bfloat162 b0(rounded(e2m1_value(word & 15) * scale), rounded(e2m1_value(word >> 4 & 15) * scale));
      const __nv_bfloat162 b1(rounded(e2m1_value(word >> 8 & 15) * scale),
                              rounded(e2m1_value(word >> 12 & 15) * scale));
      mma_bf16(d[0], q[0][j], *reinterpret_cast<const uint32_t*>(&b0), *reinterpret_cast<const uint32_t*>(&b1));
      if (a.heads > 16)
        mma_bf16(d[1], q[1][j], *reinterpret_cast<const uint32_t*>(&b0), *reinterpret_cast<const uint32_t*>(&b1));
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
    for (int h = quad; h < a.heads; h += 4)
      chain = __hfma(rounded(fmaxf(dots[warp][n][h], 0.0f)), a.weights[static_cast<int64_t>(row) * a.heads + h], chain);
    const bf16 c0 = __hadd_rn(chain, __shfl_down_sync(0xffffffffu, chain, 2));
    const bf16 total = __hadd_rn(c0, __shfl_down_sync(0xffffffffu, c0, 1));
    if (quad == 0 && i < scored.count) {
      a.keys[static_cast<int64_t>(blockIdx.y) * a.columns + i] = ordered_key(total);
      if (a.scores != nullptr) a.scores[static_cast<int64_t>(row) * a.score_columns + entry] = value(total);
    }
  }
}

// ---- selection
// -----------------------------------------------------------------------------------------------------------------
constexpr int kSelectThreads = 1024, kHighBits = 12, kHighBins = 1 << kHighBits, kLowBins = 1 << (16 - kHighBits),
              kVector = 8;

// Exclusive sum over the block; *total: over all threads. `shared`: 33 ints, free again after the next barrier but one.
__device__ __forceinline__ int block_exclusive(int n, int* shared, int* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = n;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, o);
    if (lane >= o) sum += other;
  }
  __syncthreads();
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int all = shared[lane];
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, all, o);
    if (lane >= o) all += other;
  }
  *total = __shfl_sync(0xffffffffu, all, 31);
  return sum - n + (warp > 0 ? __shfl_sync(0xffffffffu, all, warp - 1) : 0);
}

// The bin, counted from the largest, in which the keep-th key lies; *above: keys in larger bins. kBins <= 4 x threads.
template <int kBins>
__device__ int find_bin(const int* histogram, int keep, int* shared, int* above) {
  constexpr int kEach = (kBins + kSelectThreads - 1) / kSelectThreads;
  __shared__ int found[2];
  int count[kEach], sum = 0, total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int bin = kBins - 1 - (static_cast<int>(threadIdx.x) * kEach + i);
    sum += count[i] = bin >= 0 ? histogram[bin] : 0;
  }
  int seen = block_exclusive(sum, shared, &total);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (seen < keep && seen + count[i] >= keep)
      found[0] = kBins - 1 - (static_cast<int>(threadIdx.x) * kEach + i), found[1] = seen;
    seen += count[i];
  }
  __syncthreads();
  *above = found[1];
  return found[0];
}

// The `keep` best of n keys (keep < n, keys 16-byte aligned): calls take(index, position), positions ascending with the
// index.
template <class Take>
__device__ void select_best(const uint16_t* keys, int n, int keep, Take take) {
  __shared__ int histogram[kHighBins], low[kLowBins], shared[33];
  const auto load = [&](int i, uint32_t (&w)[4]) {
    const uint4 u = *reinterpret_cast<const uint4*>(keys + i);
    w[0] = u.x, w[1] = u.y, w[2] = u.z, w[3] = u.w;
  };
  const auto key = [](const uint32_t (&w)[4], int e) { return static_cast<int>(w[e / 2] >> (16 * (e % 2)) & 0xffff); };
  for (int i = threadIdx.x; i < kHighBins; i += kSelectThreads) histogram[i] = 0;
  if (threadIdx.x < kLowBins) low[threadIdx.x] = 0;
  if (threadIdx.x < 33) shared[threadIdx.x] = 0;
  __syncthreads();
  for (int i = kVector * threadIdx.x; i < n; i += kVector * kSelectThreads) {
    uint32_t w[4];
    load(i, w);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (i + e < n) atomicAdd(&histogram[key(w, e) >> (16 - kHighBits)], 1);
    }
  }
  __syncthreads();
  int above, above_low;
  const int high = find_bin<kHighBins>(histogram, keep, shared, &above);
  for (int i = kVector * threadIdx.x; i < n; i += kVector * kSelectThreads) {
    uint32_t w[4];
    load(i, w);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if (i + e < n && key(w, e) >> (16 - kHighBits) == high) atomicAdd(&low[key(w, e) % kLowBins], 1);
    }
  }
  __syncthreads();
  const int threshold = high * kLowBins + find_bin<kLowBins>(low, keep - above, shared, &above_low),
            ties = keep - above - above_low;
  // In index order: everything above, and the first `ties` that equal the threshold. Both counts of a round (at most
  // 8,192) in one sum.
  int greater_base = 0, equal_base = 0;
  for (int i0 = 0; i0 < n; i0 += kVector * kSelectThreads) {
    const int i = i0 + kVector * threadIdx.x;
    uint32_t w[4] = {};
    if (i < n) load(i, w);
    int greater = 0, equal = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      greater += i + e < n && key(w, e) > threshold;
      equal += i + e < n && key(w, e) == threshold;
    }
    int total;
    const int before = block_exclusive(greater << 16 | equal, shared, &total);
    int greater_before = greater_base + (before >> 16), equal_before = equal_base + (before & 0xffff);
    greater_base += total >> 16, equal_base += total & 0xffff;
    if (greater + equal == 0) continue;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const int k = key(w, e);
      if (i + e >= n || k < threshold) continue;
      // Position: all greater ones before, and those ties before that are taken.
      if (k > threshold || equal_before < ties) take(i + e, greater_before + min(equal_before, ties));
      k > threshold ? ++greater_before : ++equal_before;
    }
  }
}

__device__ void select_blocks(const ScoreArguments& a) {
  const int row = a.first_row + blockIdx.x;
  const int visible = (a.v.positions[row] + 1) / a.ratio, blocks = (visible + a.candidate_size - 1) / a.candidate_size;
  int32_t* kept = a.kept + static_cast<int64_t>(row) * a.candidate_blocks;
  if (blocks <= a.candidate_blocks) {
    if (threadIdx.x == 0) kept[0] = -1;
    return;
  }
  const uint16_t* keys = a.keys + static_cast<int64_t>(blockIdx.x) * a.columns;
  uint16_t* top = a.maxima + static_cast<int64_t>(blockIdx.x) * a.maxima_columns;
  for (int b = threadIdx.x; b < blocks; b += kSelectThreads) {
    uint32_t best = 0;  // of even and of odd places
    const int first = b * a.candidate_size;
    if (b == blocks - 1) {  // may be a partial one; always kept
      top[b] = kPinned;
      continue;
    }
    if (a.candidate_size % kVector == 0) {
      for (int i = 0; i < a.candidate_size; i += kVector) {
        const uint4 u = *reinterpret_cast<const uint4*>(keys + first + i);
#pragma unroll
        for (int w = 0; w < 4; ++w) best = __vmaxu2(best, word_of(u, w));
      }
    } else {
      for (int i = 0; i < a.candidate_size; ++i) best = max(best, static_cast<uint32_t>(keys[first + i]));
    }
    top[b] = min(static_cast<uint16_t>(max(best & 0xffff, best >> 16)), kLargestFinite);
  }
  __syncthreads();
  select_best(top, blocks, a.candidate_blocks, [&](int i, int position) { kept[position] = i; });
}

__device__ void select_entries(const ScoreArguments& a) {
  const int row = a.first_row + blockIdx.x;
  const Scored scored(a, row);
  int32_t* selected = a.selected + static_cast<int64_t>(row) * a.topk;
  if (scored.count <= a.topk) {
    for (int i = threadIdx.x; i < a.topk; i += kSelectThreads)
      selected[i] = i < scored.count ? scored.entry(i, a.candidate_shift) : -1;
    return;
  }
  select_best(a.keys + static_cast<int64_t>(blockIdx.x) * a.columns, scored.count, a.topk,
              [&](int i, int position) { selected[position] = scored.entry(i, a.candidate_shift); });
}

// Block y = 0 selects a row's entries; 1 its candidate blocks.
__global__ __launch_bounds__(kSelectThreads) void select_kernel(const ScoreArguments a) {
  wait_for_inputs();
  start_next_kernel();
  blockIdx.y == 0 ? select_entries(a) : select_blocks(a);
}

__global__ void clear_scores_kernel(float* scores, int64_t n) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    scores[i] = -INFINITY;
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
  a.key_offset = static_cast<int64_t>(source.key_offset),
  a.key_scale_offset = static_cast<int64_t>(source.key_scale_offset);
  a.columns = score_columns_, a.score_columns = buffer(Role::kIndexScores).cols;
  a.page_shift = std::countr_zero(static_cast<unsigned>(source.page_entries));
  a.candidate_shift = std::countr_zero(static_cast<unsigned>(c_.candidate_block_size));
  a.key_data_bytes = static_cast<int>(layout_.key_data_bytes),
  a.key_scale_bytes = static_cast<int>(layout_.key_scale_bytes);
  a.heads = static_cast<int>(c_.index_n_heads), a.ratio = layer.ratio, a.topk = static_cast<int>(c_.index_topk);
  a.candidate_blocks = static_cast<int>(c_.candidate_topk_blocks),
  a.candidate_size = static_cast<int>(c_.candidate_block_size);
  a.selected = at<int32_t>(Role::kSelected);
  if (where.layer == c_.candidate_source_layer_id) a.kept = at<int32_t>(Role::kCandidates);
  if (where.layer > c_.candidate_source_layer_id) a.candidates = at<int32_t>(Role::kCandidates);
  if (limits_.keep_scores) {
    a.scores = at<float>(Role::kIndexScores);
    clear_scores_kernel<<<256, 256, 0, stream_>>>(a.scores, static_cast<int64_t>(set.rows) * a.score_columns);
  }
  a.maxima = block_scores_;
  a.maxima_columns = (score_columns_ / a.candidate_size + 8) / 8 * 8;
  for (int first = 0; first < set.rows; first += score_rows_) {
    const int n = std::min(score_rows_, set.rows - first);
    a.first_row = first;
    if (select_wide_fits(a)) {
      select_wide(a, n, multiprocessors_, stream_);
      continue;
    }
    // As many CTAs as the GPU holds at once, spread over the rows.
    const int ctas = std::clamp(2 * multiprocessors_ / n, 1, 256);
    const auto score = c_.index_head_dim == 128 ? score_kernel<128> : score_kernel<64>;
    score<<<dim3(ctas, n), 32 * kScoreWarps, 0, stream_>>>(a);
    launch_next(select_kernel, dim3(n, a.kept != nullptr ? 2 : 1), kSelectThreads, 0, stream_, a);
  }
}

}  // namespace deepinfer::ops::cuda
