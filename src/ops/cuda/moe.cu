// Mixture of experts (spec/model.md 9). Grouping happens on the device: pairs (row, slot) are sorted by expert, each expert's rows
// padded to 8, and cut into tiles; nothing waits for the host.
#include "ops/cuda/backend.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kRouteThreads = 128, kMaxChoices = 8, kGroupThreads = 512;

// sqrt(softplus(gate)), top-k of the biased scores in descending order (lower id on ties), weights from the unbiased ones.
__global__ __launch_bounds__(kRouteThreads) void route_kernel(RowView v, const float* gate, const float* bias, const float* bias_vl, int experts, int k, int columns, float scaling,
                                                              int32_t* ids, float* weights) {
  extern __shared__ float scores[];  // [experts] unbiased, [experts] biased
  __shared__ float best_value[kRouteThreads / 32];
  __shared__ int best_id[kRouteThreads / 32], chosen[kMaxChoices];
  const int row = blockIdx.x;
  float* biased = scores + experts;
  const float* b = v.image(row) ? bias_vl : bias;
  for (int e = threadIdx.x; e < experts; e += kRouteThreads) {
    const float z = gate[static_cast<int64_t>(row) * experts + e];
    scores[e] = sqrtf(z > 20.0f ? z : log1pf(expf(z)));
    biased[e] = scores[e] + b[e];
  }
  __syncthreads();
  for (int i = 0; i < k; ++i) {
    float top = -INFINITY;
    int id = experts;
    for (int e = threadIdx.x; e < experts; e += kRouteThreads) {
      if (biased[e] > top) top = biased[e], id = e;
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, top, o);
      const int other_id = __shfl_xor_sync(0xffffffffu, id, o);
      if (other > top || (other == top && other_id < id)) top = other, id = other_id;
    }
    if (threadIdx.x % 32 == 0) best_value[threadIdx.x / 32] = top, best_id[threadIdx.x / 32] = id;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kRouteThreads / 32; ++w) {
        if (best_value[w] > top || (best_value[w] == top && best_id[w] < id)) top = best_value[w], id = best_id[w];
      }
      chosen[i] = id;
      biased[id] = -INFINITY;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < k; ++i) sum += scores[chosen[i]];
    for (int i = 0; i < columns; ++i) {
      ids[static_cast<int64_t>(row) * columns + i] = i < k ? chosen[i] : -1;
      if (i < k) weights[static_cast<int64_t>(row) * columns + i] = scores[chosen[i]] / (sum + 1e-20f) * scaling;
    }
  }
}

// One CTA: counts, places and tiles. Pairs of an expert keep their order, so every list is the same on every run.
__global__ __launch_bounds__(kGroupThreads) void group_kernel(const int32_t* ids, int rows, int columns, int per_row, int experts, int rows_per_tile, int32_t* source, int32_t* pair,
                                                              int capacity, GroupTile* tiles, int32_t* tile_count) {
  extern __shared__ int32_t table[];  // [experts] count, then first packed row; [experts] first tile
  int32_t *count = table, *first_tile = table + experts;
  for (int e = threadIdx.x; e < experts; e += kGroupThreads) count[e] = 0;
  for (int i = threadIdx.x; i < capacity; i += kGroupThreads) source[i] = pair[i] = -1;
  __syncthreads();
  const int pairs = rows * per_row;
  for (int i = threadIdx.x; i < pairs; i += kGroupThreads) {
    const int e = ids[static_cast<int64_t>(i / per_row) * columns + i % per_row];
    if (e >= 0) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int row = 0, tile = 0;
    for (int e = 0; e < experts; ++e) {
      const int n = count[e];
      first_tile[e] = tile;
      for (int i = 0; i < n; i += rows_per_tile) tiles[tile++] = {e, row + i, min(rows_per_tile, n - i)};
      count[e] = row;
      row += (n + 7) / 8 * 8;
    }
    *tile_count = tile;
  }
  __syncthreads();
  // A warp an expert, in pair order.
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e < experts; e += kGroupThreads / 32) {
    int next = count[e];
    for (int i0 = 0; i0 < pairs; i0 += 32) {
      const int i = i0 + lane, at = i < pairs ? (i / per_row) * columns + i % per_row : 0;
      const bool mine = i < pairs && ids[at] == e;
      const unsigned all = __ballot_sync(0xffffffffu, mine);
      if (mine) {
        const int to = next + __popc(all & ((1u << lane) - 1));
        source[to] = i / per_row;
        pair[to] = at;
      }
      next += __popc(all);
    }
  }
}

// hidden = bf16(silu(min(g, limit)) * clamp(u) * weight); in place of g.
__global__ void swiglu_kernel(bf16* gate, const bf16* up, int inter, float limit, const float* weights, const int32_t* pair) {
  const int64_t row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float weight = 1.0f;
  if (pair != nullptr) {
    if (pair[row] < 0) return;
    weight = weights[pair[row]];
  }
  if (i >= inter) return;
  const float g = fminf(value(gate[row * inter + i]), limit), u = fminf(fmaxf(value(up[row * inter + i]), -limit), limit);
  const float h = g / (1.0f + expf(-g)) * u;
  gate[row * inter + i] = rounded(pair != nullptr ? h * weight : h);
}

__global__ void scatter_kernel(const bf16* from, const int32_t* pair, int d, bf16* to) {
  const int64_t row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (pair[row] >= 0 && i < d) to[static_cast<int64_t>(pair[row]) * d + i] = from[row * d + i];
}

__global__ void combine_kernel(const bf16* shared, const bf16* routed, int d, int k, int columns, bf16* out) {
  const int64_t row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= d) return;
  float sum = value(shared[row * d + i]);
  for (int j = 0; j < k; ++j) sum += value(routed[(row * columns + j) * d + i]);
  out[row * d + i] = rounded(sum);
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + 255) / 256); }

}  // namespace

void Backend::route(At where) {
  const RowSet& set = set_of(where.rows);
  const Layer& l = layers_[where.layer];
  if (set.rows == 0) return;
  const int experts = l.gate.n;
  project(l.gate, at<bf16>(Role::kSublayerIn), c_.hidden_size, set.rows, {gate_scores_, Output::kFp32, experts});
  route_kernel<<<set.rows, kRouteThreads, 2 * experts * sizeof(float), stream_>>>(set.view, gate_scores_, l.bias, l.bias_vl, experts, experts_per_row(where.layer),
                                                                                  static_cast<int>(buffer(Role::kExpertIds).cols), static_cast<float>(c_.routed_scaling_factor),
                                                                                  at<int32_t>(Role::kExpertIds), at<float>(Role::kExpertWeights));
}

void Backend::experts(At where, const ExpertRows& rows) {
  const Layer& l = layers_[where.layer];
  const int n = static_cast<int>(rows.rows), columns = static_cast<int>(rows.ids.cols), D = static_cast<int>(c_.hidden_size), inter = l.w1.n;
  if (n == 0) return;
  const int pairs = n * rows.per_row, average = (pairs + l.experts - 1) / l.experts;
  const int per_tile = average <= 4 ? 8 : average <= 12 ? 16 : average <= 24 ? 32 : average <= 64 ? 64 : 128;
  const int packed_rows = std::min(expert_rows_max_, pairs + 7 * std::min(l.experts, pairs));
  const int max_tiles = std::min(pairs, pairs / per_tile + l.experts);
  group_kernel<<<1, kGroupThreads, 2 * l.experts * sizeof(int32_t), stream_>>>(static_cast<const int32_t*>(rows.ids.data), n, columns, rows.per_row, l.experts, per_tile, expert_source_,
                                                                               expert_pair_, packed_rows, expert_tiles_, expert_tile_count_);
  const Packing packing = packing_of(WeightFormat::kFp4, per_tile);
  pack_activations(rows.input.data, packed_rows, D, packing, expert_source_, packed_, stream_);
  linear_grouped(l.w1, packed_, expert_tiles_, expert_tile_count_, max_tiles, per_tile, {expert_gate_, Output::kBf16, inter}, stream_);
  linear_grouped(l.w3, packed_, expert_tiles_, expert_tile_count_, max_tiles, per_tile, {expert_up_, Output::kBf16, inter}, stream_);
  swiglu_kernel<<<dim3(blocks(inter), packed_rows), 256, 0, stream_>>>(expert_gate_, expert_up_, inter, static_cast<float>(c_.swiglu_limit), static_cast<const float*>(rows.weights.data),
                                                                       expert_pair_);
  pack_activations(expert_gate_, packed_rows, inter, packing, nullptr, packed_, stream_);
  linear_grouped(l.w2, packed_, expert_tiles_, expert_tile_count_, max_tiles, per_tile, {expert_out_, Output::kBf16, D}, stream_);
  scatter_kernel<<<dim3(blocks(D), packed_rows), 256, 0, stream_>>>(expert_out_, expert_pair_, D, static_cast<bf16*>(rows.output.data));
}

void Backend::shared_expert(At where) {
  const Layer& l = layers_[where.layer];
  const int n = row_count(where.rows), D = static_cast<int>(c_.hidden_size), inter = l.shared_w1.n;
  if (n == 0) return;
  // The routed experts are done with these buffers: one stream.
  project(l.shared_w1, at<bf16>(Role::kSublayerIn), D, n, {wide_, Output::kBf16, inter});
  linear(l.shared_w3, packed_, n, {narrow_, Output::kBf16, inter}, stream_);
  swiglu_kernel<<<dim3(blocks(inter), n), 256, 0, stream_>>>(wide_, narrow_, inter, static_cast<float>(c_.swiglu_limit), nullptr, nullptr);
  project(l.shared_w2, wide_, inter, n, {at<bf16>(Role::kSharedOut), Output::kBf16, D});
}

void Backend::combine(At where) {
  const int n = row_count(where.rows), D = static_cast<int>(c_.hidden_size);
  if (n == 0) return;
  combine_kernel<<<dim3(blocks(D), n), 256, 0, stream_>>>(at<bf16>(Role::kSharedOut), at<bf16>(Role::kExpertOut), D, experts_per_row(where.layer),
                                                          static_cast<int>(buffer(Role::kExpertIds).cols), at<bf16>(Role::kSublayerOut));
}

}  // namespace deepinfer::ops::cuda
