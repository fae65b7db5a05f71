// The attention core (spec/model.md 6.3, 6.4, 11.3): a row's keys are its window, oldest first, then its selected
// entries, read as stored and expanded to bf16 in shared memory, 64 at a time. One pass over the keys for the scores,
// one for the values, so that probabilities are rounded against the maximum over all keys, as the reference does. One
// CTA: 16 heads of a row. This is the core for small heads; attend_wide.cu has the one for head_dim 512, with the same
// trees.
#include <bit>

#include "ops/cuda/attend.cuh"
#include "ops/cuda/backend.h"
#include "ops/cuda/hopper.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTile = 64, kHeads = 16;

__device__ __forceinline__ uint32_t pair_bits(float a, float b) {
  const __nv_bfloat162 p(__float2bfloat16_rn(a), __float2bfloat16_rn(b));
  return *reinterpret_cast<const uint32_t*>(&p);
}

template <bool kTranspose>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const bf16* p) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
  }
}

// Keys t0 .. t0 + 63 as bf16 values, zeros beyond the last; a warp a key.
template <int kDim>
__device__ __forceinline__ void expand_keys(const AttendArguments& a, const KeyList& list, int t0, bf16* keys) {
  constexpr int kStride = kDim + 8;
  const int lane = threadIdx.x % 32;
  for (int t = threadIdx.x / 32; t < kTile; t += kWarps) {
    const int k = t0 + t;
    bf16* to = keys + t * kStride;
    if (k >= list.total) {
      for (int c = lane; c < kDim; c += 32) to[c] = __float2bfloat16_rn(0.0f);
    } else if (k < list.in_window) {
      const uint8_t* record = list.record(a, k);
      for (int c = lane; c < kDim; c += 32) to[c] = rounded(e4m3_value(record[c]) * ue8m0_value(record[kDim + c / 32]));
    } else {
      const uint8_t* record = list.record(a, k);
      for (int c = lane; c < kDim / 2; c += 32) {
        const int codes = record[c];
        const float scale = e4m3_value(record[kDim / 2 + c / 8]);
        const __nv_bfloat162 pair(rounded(e2m1_value(codes & 15) * scale), rounded(e2m1_value(codes >> 4) * scale));
        *reinterpret_cast<__nv_bfloat162*>(to + 2 * c) = pair;
      }
    }
  }
}

template <int kDim>
__global__ __launch_bounds__(kThreads) void attend_kernel(const AttendArguments a, int keys_max) {
  constexpr int kStride = kDim + 8;  // elements: rows start in different banks
  extern __shared__ __align__(128) uint8_t memory[];
  bf16* keys = reinterpret_cast<bf16*>(memory);              // [kTile][kStride]
  bf16* query = keys + kTile * kStride;                      // [kHeads][kStride]
  bf16* probabilities = query + kHeads * kStride;            // [kHeads][kTile + 8]
  float* scores = reinterpret_cast<float*>(probabilities + kHeads * (kTile + 8));  // [kHeads][keys_max]
  __shared__ float inverse[kHeads];
  const int row = blockIdx.x, head0 = blockIdx.y * kHeads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const KeyList list(a, row);

  for (int i = threadIdx.x; i < kHeads * kDim; i += kThreads) {
    const int h = i / kDim, c = i % kDim;
    query[h * kStride + c] = head0 + h < a.heads ? a.q[(static_cast<int64_t>(row) * a.heads + head0 + h) * kDim + c]
                                                 : __float2bfloat16_rn(0.0f);
  }
  // Scores: warp w takes keys 8 w .. + 7 of a tile.
  for (int t0 = 0; t0 < list.total; t0 += kTile) {
    __syncthreads();
    expand_keys<kDim>(a, list, t0, keys);
    __syncthreads();
    float score[4] = {};
    for (int c = 0; c < kDim; c += 32) {
      uint32_t q0[4], q1[4], k[4];
      load_matrices<false>(q0, query + (lane % 16) * kStride + c + lane / 16 * 8);
      load_matrices<false>(q1, query + (lane % 16) * kStride + c + 16 + lane / 16 * 8);
      load_matrices<false>(k, keys + (8 * warp + lane % 8) * kStride + c + lane / 8 * 8);
      mma_bf16(score, q0, k[0], k[1]);
      mma_bf16(score, q1, k[2], k[3]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = t0 + 8 * warp + 2 * (lane % 4) + e % 2;
      scores[(lane / 4 + 8 * (e / 2)) * keys_max + key] = key < list.total ? score[e] * a.scale : -INFINITY;
    }
  }
  __syncthreads();
  // Maximum and denominator: warp w takes heads 2 w, 2 w + 1.
  const int padded = (list.total + kTile - 1) / kTile * kTile;
  for (int h = 2 * warp; h < 2 * warp + 2; ++h) {
    float m = -1e30f, sum = 0;
    for (int t = lane; t < padded; t += 32) m = fmaxf(m, scores[h * keys_max + t]);
    m = warp_max(m);
    for (int t = lane; t < padded; t += 32) scores[h * keys_max + t] = __expf(scores[h * keys_max + t] - m);
    __syncwarp();
    // every lane for itself: lane mod 4 sums keys 8 i + 2 (lane mod 4) + {0, 1}
    for (int t0 = 0; t0 < padded; t0 += kTile) {
      float tile = 0;
      for (int i = 0; i < kTile / 8; ++i) {
        const float* p = scores + h * keys_max + t0 + 8 * i + 2 * (lane % 4);
        tile += p[0];
        tile += p[1];
      }
      tile += __shfl_xor_sync(0xffffffffu, tile, 1);
      tile += __shfl_xor_sync(0xffffffffu, tile, 2);
      sum += tile;
    }
    if (lane == 0) inverse[h] = head0 + h < a.heads ? 1.0f / (sum + __expf(a.sink[head0 + h] - m)) : 0.0f;
  }
  // Values: warp w takes channels kChannels w ...
  constexpr int kChannels = kDim / kWarps, kOut = kChannels / 8;
  float acc[kOut + kOut % 2][4] = {};
  for (int t0 = 0; t0 < list.total; t0 += kTile) {
    __syncthreads();
    if (list.total > kTile) expand_keys<kDim>(a, list, t0, keys);
    for (int i = threadIdx.x; i < kHeads * kTile; i += kThreads) {
      probabilities[i / kTile * (kTile + 8) + i % kTile] = rounded(scores[i / kTile * keys_max + t0 + i % kTile]);
    }
    __syncthreads();
#pragma unroll
    for (int k0 = 0; k0 < kTile; k0 += 16) {
      uint32_t p[4];
      load_matrices<false>(p, probabilities + (lane % 16) * (kTile + 8) + k0 + lane / 16 * 8);
#pragma unroll
      for (int o = 0; o < kOut; o += 2) {
        uint32_t v[4];
        load_matrices<true>(v, keys + (k0 + lane % 16) * kStride + kChannels * warp + 8 * o + lane / 16 * 8);
        mma_bf16(acc[o], p, v[0], v[1]);
        mma_bf16(acc[o + 1], p, v[2], v[3]);  // beyond the warp's channels where kOut is odd: not stored
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int local = lane / 4 + 8 * h, head = head0 + local;
    if (head >= a.heads) continue;
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
      bf16* to =
          a.out + (static_cast<int64_t>(row) * a.heads + head) * kDim + kChannels * warp + 8 * o + 2 * (lane % 4);
      *reinterpret_cast<uint32_t*>(to) =
          list.total == 0 ? 0u : pair_bits(acc[o][2 * h] * inverse[local], acc[o][2 * h + 1] * inverse[local]);
    }
  }
}

template <int kDim>
void launch_attend(const AttendArguments& a, int rows, int keys_max, cudaStream_t stream) {
  const int bytes = ((kTile + kHeads) * (kDim + 8) + kHeads * (kTile + 8)) * 2 + kHeads * keys_max * 4;
  cudaFuncSetAttribute(attend_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  attend_kernel<kDim><<<dim3(rows, (a.heads + kHeads - 1) / kHeads), kThreads, bytes, stream>>>(a, keys_max);
}

}  // namespace

void Backend::attend(At where) {
  const RowSet& set = set_of(where.rows);
  if (set.rows == 0) return;
  const int ratio = ratio_of(where.layer);
  AttendArguments a{};
  a.v = set.view;
  a.q = at<bf16>(Role::kQuery);
  a.records = at<uint8_t>(Role::kWindowRecords);
  a.slots = kv_.slots;
  a.pages = kv_.pages;
  a.selected = at<int32_t>(Role::kSelected);
  a.sink = layers_[where.layer].sink;
  a.out = at<bf16>(Role::kHeads);
  a.slot_stride = static_cast<int64_t>(layout_.slot_stride);
  a.ring_offset = static_cast<int64_t>(layout_.window_offsets[where.layer]);
  a.page_stride = static_cast<int64_t>(layout_.page_stride);
  a.heads = static_cast<int>(c_.num_attention_heads);
  a.window = static_cast<int>(c_.sliding_window);
  a.ring_slots = layout_.window_slots;
  a.record_bytes = static_cast<int>(layout_.window_bytes);
  a.entry_bytes = static_cast<int>(layout_.entry_bytes);
  a.topk = static_cast<int>(c_.index_topk);
  a.ratio = ratio;
  a.draft = where.rows == Rows::kDraft;
  a.scale = static_cast<float>(c_.attention_scale());
  if (ratio > 0) {
    const KvSource& source = layout_.sources[layout_.source_at(c_.layers[where.layer].kv_source)];
    a.entry_offset = static_cast<int64_t>(source.entry_offset);
    a.page_shift = std::countr_zero(static_cast<unsigned>(source.page_entries));
  }
  if (c_.head_dim == kWideDim) return attend_wide(a, set.rows, stream_);
  // Two banks more than a multiple of 32, so that the heads of a warp's stores fall into different banks.
  const int keys_max =
      (a.window + std::max<int>(a.topk, static_cast<int>(c_.dspark_block_size)) + kTile - 1) / kTile * kTile + 2;
  launch_attend<64>(a, set.rows, keys_max, stream_);
}

}  // namespace deepinfer::ops::cuda
