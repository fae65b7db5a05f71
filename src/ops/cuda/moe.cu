// Mixture of experts (spec/model.md 9). Grouping happens on the device: pairs (row, slot) are sorted by expert, each
// expert's rows padded to 8, and cut into tiles; nothing waits for the host. A single row needs no groups
// (experts_few.h).
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/experts_few.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/swiglu.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kRouteThreads = 128, kMaxExperts = 1024, kMaxChoices = 8, kGroupThreads = 512;

// Keys in the order of the values; zeros of both signs are equal.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// sqrt(softplus(gate)), top-k of the biased scores in descending order (lower id on ties), weights from the unbiased
// ones. A thread holds kEach experts at most.
template <int kEach>
__global__ __launch_bounds__(kRouteThreads) void route_kernel(RowView v, const float* gate, const float* bias,
                                                              const float* bias_vl, int experts, int k, int columns,
                                                              float scaling, int32_t* ids, float* weights) {
  extern __shared__ float scores[];  // [experts] unbiased
  __shared__ uint32_t best_key[2][kRouteThreads / 32], best_id[2][kRouteThreads / 32];
  const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* b = v.image(row) ? bias_vl : bias;
  float biases[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int e = threadIdx.x + n * kRouteThreads;
    biases[n] = e < experts ? b[e] : 0.0f;
  }
  wait_for_inputs();
  start_next_kernel();
  uint32_t keys[kEach];  // 0: none, or chosen
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int e = threadIdx.x + n * kRouteThreads;
    keys[n] = 0;
    if (e >= experts) continue;
    const float z = gate[static_cast<int64_t>(row) * experts + e], score = sqrtf(z > 20.0f ? z : log1pf(expf(z)));
    scores[e] = score;
    keys[n] = ordered(score + biases[n]);
  }
  int chosen[kMaxChoices];
  constexpr unsigned kAll = 0xffffffffu;
#pragma unroll
  for (int i = 0; i < kMaxChoices; ++i) {
    if (i >= k) break;
    uint32_t top = keys[0], id = threadIdx.x;
#pragma unroll
    for (int n = 1; n < kEach; ++n) {
      if (keys[n] > top) top = keys[n], id = threadIdx.x + n * kRouteThreads;
    }
    const auto of_warp = [&] {
      const uint32_t all = __reduce_max_sync(kAll, top);
      id = __reduce_min_sync(kAll, top == all ? id : ~0u);
      top = all;
    };
    of_warp();
    if (lane == 0) best_key[i % 2][warp] = top, best_id[i % 2][warp] = id;
    __syncthreads();
    top = lane < kRouteThreads / 32 ? best_key[i % 2][lane] : 0;
    id = lane < kRouteThreads / 32 ? best_id[i % 2][lane] : ~0u;
    of_warp();
    chosen[i] = static_cast<int>(id);
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      if (static_cast<int>(threadIdx.x) + n * kRouteThreads == chosen[i]) keys[n] = 0;
    }
  }
  if (threadIdx.x >= columns) return;
  float sum = 0;
  int mine = -1;
#pragma unroll
  for (int i = 0; i < kMaxChoices; ++i) {
    if (i >= k) break;
    sum += scores[chosen[i]];
    if (i == static_cast<int>(threadIdx.x)) mine = chosen[i];
  }
  ids[static_cast<int64_t>(row) * columns + threadIdx.x] = mine;
  if (mine >= 0) weights[static_cast<int64_t>(row) * columns + threadIdx.x] = scores[mine] / (sum + 1e-20f) * scaling;
}

// Counts, places and tiles. Pairs of an expert keep their order, so every list is the same on every run. Every CTA
// counts; CTA b places the rows of experts b, b + gridDim.x, ..: a warp an expert. Experts from `mine` on are the
// host's. slot_of: where the weights of an expert are (null: in order).
__global__ __launch_bounds__(kGroupThreads) void group_kernel(const int32_t* ids, int rows, int columns, int per_row,
                                                              int experts, int mine, int rows_per_tile,
                                                              int32_t* source,
                                                              int32_t* pair, int capacity, const int32_t* slot_of,
                                                              GroupTile* tiles, int32_t* tile_count) {
  extern __shared__ int32_t table[];  // [experts] count, [experts] first packed row, [experts] first tile
  __shared__ int warp_rows[kGroupThreads / 32], warp_tiles[kGroupThreads / 32];
  int32_t *count = table, *first_row = table + experts, *first_tile = table + 2 * experts;
  wait_for_inputs();
  start_next_kernel();
  for (int e = threadIdx.x; e < experts; e += kGroupThreads) count[e] = 0;
  __syncthreads();
  const int pairs = rows * per_row, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < pairs; i += kGroupThreads) {
    const int e = ids[static_cast<int64_t>(i / per_row) * columns + i % per_row];
    if (e >= 0 && e < mine) atomicAdd(&count[e], 1);
  }
  __syncthreads();
  // Exclusive sums of padded rows and of tiles, kGroupThreads experts at a time.
  int row_base = 0, tile_base = 0;
  for (int e0 = 0; e0 < experts; e0 += kGroupThreads) {
    const int e = e0 + threadIdx.x, n = e < experts ? count[e] : 0, my_rows = (n + 7) / 8 * 8,
              my_tiles = (n + rows_per_tile - 1) / rows_per_tile;
    int row_sum = my_rows, tile_sum = my_tiles;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int r = __shfl_up_sync(0xffffffffu, row_sum, o), t = __shfl_up_sync(0xffffffffu, tile_sum, o);
      if (lane >= o) row_sum += r, tile_sum += t;
    }
    __syncthreads();
    if (lane == 31) warp_rows[warp] = row_sum, warp_tiles[warp] = tile_sum;
    __syncthreads();
    int before_rows = row_base, before_tiles = tile_base;
    for (int w = 0; w < kGroupThreads / 32; ++w) {
      if (w < warp) before_rows += warp_rows[w], before_tiles += warp_tiles[w];
      row_base += warp_rows[w], tile_base += warp_tiles[w];
    }
    if (e < experts) first_row[e] = before_rows + row_sum - my_rows, first_tile[e] = before_tiles + tile_sum - my_tiles;
  }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) *tile_count = tile_base;
  for (int i = row_base + blockIdx.x * kGroupThreads + threadIdx.x; i < capacity; i += gridDim.x * kGroupThreads)
    source[i] = pair[i] = -1;
  for (int e = blockIdx.x + gridDim.x * warp; e < experts; e += gridDim.x * (kGroupThreads / 32)) {
    const int n = count[e], first = first_row[e];
    if (n == 0) continue;
    const int slot = slot_of != nullptr ? slot_of[e] : e;
    for (int i = lane; i * rows_per_tile < n; i += 32)
      tiles[first_tile[e] + i] = {slot, first + i * rows_per_tile, min(rows_per_tile, n - i * rows_per_tile)};
    if (lane < (n + 7) / 8 * 8 - n) source[first + n + lane] = pair[first + n + lane] = -1;
    int next = first;
    for (int i0 = 0; next < first + n; i0 += 32) {
      const int i = i0 + lane, at = i < pairs ? (i / per_row) * columns + i % per_row : 0;
      const bool here = i < pairs && ids[at] == e;
      const unsigned all = __ballot_sync(0xffffffffu, here);
      if (here) {
        const int to = next + __popc(all & ((1u << lane) - 1));
        source[to] = i / per_row;
        pair[to] = at;
      }
      next += __popc(all);
    }
  }
}

constexpr int kSwigluWarps = 4;

// hidden = bf16(silu(min(g, limit)) * clamp(u) * weight) of [rows][gate | up], packed for the matrix behind. Block x: a
// row; its chunks are shared out to the warps of all blocks y.
__global__ __launch_bounds__(32 * kSwigluWarps) void swiglu_kernel(const bf16* gate_up, int inter, int chunks,
                                                                   float limit, const float* weights,
                                                                   const int32_t* pair, Packing packing,
                                                                   uint8_t* packed) {
  wait_for_inputs();
  start_next_kernel();
  const int row = blockIdx.x;
  float weight = 1.0f;
  if (pair != nullptr) {
    if (pair[row] < 0) return;
    weight = weights[pair[row]];
  }
  for (int chunk = blockIdx.y * kSwigluWarps + threadIdx.x / 32; chunk < chunks; chunk += gridDim.y * kSwigluWarps) {
    const int i = kChunk * chunk + 4 * (threadIdx.x % 32);
    uint2 out{};
    if (i < inter) {
      const bf16* x = gate_up + static_cast<int64_t>(row) * 2 * inter + i;
      const uint2 gates = *reinterpret_cast<const uint2*>(x), ups = *reinterpret_cast<const uint2*>(x + inter);
      const auto *gate = reinterpret_cast<const bf16*>(&gates), *up = reinterpret_cast<const bf16*>(&ups);
      bf16* h = reinterpret_cast<bf16*>(&out);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float v = swiglu(value(gate[e]), value(up[e]), limit);
        h[e] = rounded(pair != nullptr ? v * weight : v);
      }
    }
    pack_chunk(out, packing, packed, row, chunks, chunk);
  }
}

// Four channels a thread.
__global__ void combine_kernel(const bf16* shared, const bf16* routed, int d, int k, int columns, bf16* out) {
  wait_for_inputs();
  start_next_kernel();
  const int64_t row = blockIdx.y;
  const int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= d) return;
  const auto load = [](const bf16* p, float (&v)[4]) {
    const uint2 u = *reinterpret_cast<const uint2*>(p);
    v[0] = __uint_as_float(u.x << 16), v[1] = __uint_as_float(u.x & 0xffff0000u), v[2] = __uint_as_float(u.y << 16),
    v[3] = __uint_as_float(u.y & 0xffff0000u);
  };
  float sum[4], v[4];
  load(shared + row * d + i, sum);
  for (int j = 0; j < k; ++j) {
    load(routed + (row * columns + j) * d + i, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] += v[e];
  }
  *reinterpret_cast<uint2*>(out + row * d + i) = {bf16_pair(sum[0], sum[1]), bf16_pair(sum[2], sum[3])};
}

}  // namespace

void Backend::route(At where) {
  const RowSet& set = set_of(where.rows);
  const Layer& l = layers_[where.layer];
  keep_pace(where.layer);
  if (set.rows == 0) return;
  const int experts = l.gate.n;
  note(cudaEventRecord(forked_, stream_));
  route_forked_ = true;
  shared_done_ = false;
  const int n = set.rows, inter = l.shared_w1_w3.n / 2;
  if (n == 1 && !offload_.experts && offload_.host_experts == 0 && is_packed_in(WeightFormat::kFp8, n) &&
      fits_shared_expert(l.shared_w2)) {
    // Beside the router, not behind what side_ has to do: experts() takes the second product along.
    note(cudaStreamWaitEvent(host_, forked_, 0));
    linear(l.shared_w1_w3, in_fp8_, n, {side_wide_, Output::kBf16, 2 * inter}, host_);
    swiglu(side_wide_, n, inter, packing_of(WeightFormat::kFp8, n), nullptr, nullptr, side_packed_, host_);
    note(cudaEventRecord(hosted_, host_));
    host_works_ = shared_done_ = true;
  }
  project_in(l.gate, set.rows, {gate_scores_, Output::kFp32, experts});
  auto* kernel = experts <= kRouteThreads       ? route_kernel<1>
                 : experts <= 3 * kRouteThreads ? route_kernel<3>
                                                : route_kernel<kMaxExperts / kRouteThreads>;
  launch_next(kernel, set.rows, kRouteThreads, experts * sizeof(float), stream_, set.view, gate_scores_,
              l.bias, l.bias_vl, experts, experts_per_row(where.layer), static_cast<int>(buffer(Role::kExpertIds).cols),
              static_cast<float>(c_.routed_scaling_factor), at<int32_t>(Role::kExpertIds),
              at<float>(Role::kExpertWeights));
}

void Backend::swiglu(const bf16* gate_up, int rows, int inter, Packing packing, const float* weights,
                     const int32_t* pair, uint8_t* packed, cudaStream_t stream) {
  const int chunks = (inter + kChunk - 1) / kChunk;
  // Many rows fill the GPU by themselves; of packed ones most may be padding, whose blocks cost their launch.
  const int blocks = rows >= 256 ? 2 : (chunks + kSwigluWarps - 1) / kSwigluWarps;
  launch_next(swiglu_kernel, dim3(rows, blocks), 32 * kSwigluWarps, 0, stream, gate_up, inter, chunks,
              static_cast<float>(c_.swiglu_limit), weights, pair, packing, packed);
}

void Backend::experts(At where, const ExpertRows& rows) {
  const Layer& l = layers_[where.layer];
  const int n = static_cast<int>(rows.rows), columns = static_cast<int>(rows.ids.cols),
            D = static_cast<int>(c_.hidden_size), inter = l.w1_w3.n / 2;
  if (n == 0) return;
  const int pairs = n * rows.per_row, average = (pairs + l.experts - 1) / l.experts;
  const int per_tile = average <= 4 ? 8 : average <= 12 ? 16 : average <= 24 ? 32 : average <= 64 ? 64 : 128;
  const int packed_rows = std::min(expert_rows_max_, pairs + 7 * std::min(l.experts, pairs));
  const int max_tiles = std::min(pairs, pairs / per_tile + l.experts),
            ctas = pairs <= 64 ? 1 : std::min(24, (l.experts + 15) / 16);
  start_host_experts(where.layer, rows);
  const int32_t* slot_of = bring_experts(where.layer, rows);
  // One row: its experts are the tiles. With 8 rows, whose weights take long anyway, separate kernels read faster.
  const bool few = n == 1 && fits_few_experts(l.w1_w3, l.w2, rows.per_row);
  if (!few) {
    launch_next(group_kernel, ctas, kGroupThreads, 3 * l.experts * sizeof(int32_t), stream_,
                static_cast<const int32_t*>(rows.ids.data), n, columns, rows.per_row, l.experts,
                first_of_host(where.layer), per_tile, expert_source_, expert_pair_, packed_rows, slot_of, expert_tiles_,
                expert_tile_count_);
  }
  const Packing packing = packing_of(WeightFormat::kFp4, per_tile);
  if (shared_done_) {  // begun by route()
    note(cudaStreamWaitEvent(stream_, hosted_, 0));
    host_works_ = false;
    shared_done_ = few && rows.input.data == buffer(Role::kSublayerIn).data && packed_in_.rows == n;
    if (!shared_done_) route_forked_ = false;  // it is computed anew, in the same places
  }
  const auto pack_input = [&] {
    if (rows.input.data != buffer(Role::kSublayerIn).data || !packed_in_.fp4 || packed_in_.rows != n)
      pack_activations(rows.input.data, n, D, packing, nullptr, in_fp4_, stream_), packed_in_.fp4 = false;
  };
  if (few) {
    pack_input();
    SharedExpert shared{};
    if (shared_done_) shared = {l.shared_w2, side_packed_, at<bf16>(Role::kSharedOut)};
    return few_experts({.w1_w3 = l.w1_w3,
                        .w2 = l.w2,
                        .packed = in_fp4_,
                        .weights = static_cast<const float*>(rows.weights.data),
                        .limit = static_cast<float>(c_.swiglu_limit),
                        .ids = static_cast<const int32_t*>(rows.ids.data),
                        .choices = rows.per_row,
                        .mine = first_of_host(where.layer),
                        .slot_of = slot_of,
                        .hidden = packed_,
                        .out = rows.output.data,
                        .progress = expert_progress_,
                        .shared = shared},
                       stream_);
  }
  const LinearOutput gate_up{expert_gate_up_, Output::kBf16, 2 * inter};
  if (packing.stream && n <= kGatherRows) {  // tiles gather their rows
    pack_input();
    linear_grouped(l.w1_w3, in_fp4_, expert_tiles_, expert_tile_count_, max_tiles, per_tile, gate_up, stream_, nullptr,
                   expert_source_);
  } else {
    pack_activations(rows.input.data, packed_rows, D, packing, expert_source_, packed_, stream_);
    linear_grouped(l.w1_w3, packed_, expert_tiles_, expert_tile_count_, max_tiles, per_tile, gate_up, stream_);
  }
  swiglu(expert_gate_up_, packed_rows, inter, packing, static_cast<const float*>(rows.weights.data), expert_pair_,
         packed_, stream_);
  linear_grouped(l.w2, packed_, expert_tiles_, expert_tile_count_, max_tiles, per_tile,
                 {rows.output.data, Output::kBf16, D}, stream_, expert_pair_);
}

void Backend::shared_expert(At where) {
  const Layer& l = layers_[where.layer];
  const int n = row_count(where.rows), D = static_cast<int>(c_.hidden_size), inter = l.shared_w1_w3.n / 2;
  if (n == 0) return;
  if (shared_done_) {
    const bool computed = !host_works_;  // else experts() has not been called
    if (!computed) join();
    shared_done_ = route_forked_ = false;
    if (computed) return;
  }
  const bool beside = route_forked_;
  cudaStream_t stream = beside ? side_ : stream_;
  if (beside) note(cudaStreamWaitEvent(side_, forked_, 0));
  const Packing packing = packing_of(WeightFormat::kFp8, n);
  const bool packed = is_packed_in(WeightFormat::kFp8, n);
  if (!packed) pack_activations(at<bf16>(Role::kSublayerIn), n, D, packing, nullptr, side_packed_, stream);
  linear(l.shared_w1_w3, packed ? in_fp8_ : side_packed_, n, {side_wide_, Output::kBf16, 2 * inter}, stream);
  swiglu(side_wide_, n, inter, packing, nullptr, nullptr, side_packed_, stream);
  linear(l.shared_w2, side_packed_, n, {at<bf16>(Role::kSharedOut), Output::kBf16, D}, stream);
  if (!beside) return;
  route_forked_ = false;
  side_ends();
}

void Backend::combine(At where) {
  const int n = row_count(where.rows), D = static_cast<int>(c_.hidden_size);
  if (n == 0) return;
  join();
  launch_next(combine_kernel, dim3((D + 1023) / 1024, n), 256, 0, stream_, at<bf16>(Role::kSharedOut),
              at<bf16>(Role::kExpertOut), D, experts_per_row(where.layer),
              static_cast<int>(buffer(Role::kExpertIds).cols), at<bf16>(Role::kSublayerOut));
}

}  // namespace deepinfer::ops::cuda
