// The compressor, index keys and what they write to pages and rings (spec/model.md 7, 8.1, 16).
#include "ops/cuda/backend.h"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 128;

struct GlobalArguments {
  RowView v;
  std::byte *pages, *slots;
  int64_t page_stride, slot_stride, compressor_offset, key_offset, key_scale_offset, entry_offset;
  int ratio, page_entries, compressor_slots, compressor_slot_bytes, d, di, half, entry_bytes, key_data_bytes,
      key_scale_bytes;
  float eps;

  __device__ float* ring(const SequenceRows& s, int position) const {
    return reinterpret_cast<float*>(slots + s.slot * slot_stride + compressor_offset +
                                    static_cast<int64_t>(position % compressor_slots) * compressor_slot_bytes);
  }
  // Rows below `cached` and rows that end no group write nothing.
  __device__ bool completes(int row) const {
    const int p = v.positions[row];
    return p >= v.sequences[v.sequence[row]].cached && (p + 1) % ratio == 0;
  }
};

// Pools the group that a row completes, and norms: latent.
__global__ __launch_bounds__(kThreads) void pool_kernel(GlobalArguments a, const float* rows, const float* norm,
                                                        bf16* latents) {
  __shared__ float shared[kThreads / 32];
  const int row = blockIdx.x, d = a.d;
  if (!a.completes(row)) return;
  const SequenceRows& s = a.v.sequences[a.v.sequence[row]];
  const float* newer = rows + static_cast<int64_t>(row) * 2 * d;
  bf16* latent = latents + static_cast<int64_t>(row) * d;
  if (a.ratio == 1) {
    for (int i = threadIdx.x; i < d; i += kThreads) latent[i] = rounded(newer[i]);
  } else {
    const int before = a.v.positions[row] - 1;
    const float* older = before >= s.first_position ? newer - 2 * d : a.ring(s, before);
    for (int i = threadIdx.x; i < d; i += kThreads) {
      const float top = fmaxf(older[i], newer[i]), e0 = expf(older[i] - top), e1 = expf(newer[i] - top), sum = e0 + e1;
      latent[i] = rounded((e0 / sum) * older[d + i] + (e1 / sum) * newer[d + i]);
    }
  }
  __syncthreads();
  rms_norm<kThreads>(latent, norm, d, a.eps, latent, shared);
}

// Norm, RoPE and quantisation of key and entry, into their page. The latent itself is left as it is.
__global__ __launch_bounds__(kThreads) void entry_kernel(GlobalArguments a, bf16* keys, const float* k_norm,
                                                         const bf16* latents, bf16* rotated) {
  __shared__ float shared[kThreads / 32];
  const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (!a.completes(row)) return;
  const SequenceRows& s = a.v.sequences[a.v.sequence[row]];
  const int entry = a.v.positions[row] / a.ratio, offset = entry % a.page_entries;
  std::byte* page = a.pages + static_cast<int64_t>(a.v.blocks[s.first_block + entry / a.page_entries]) * a.page_stride;
  bf16 *key = keys + static_cast<int64_t>(row) * a.di, *x = rotated + static_cast<int64_t>(row) * a.d;
  const float* cos = (a.ratio == 1 ? a.v.cos[1] : a.v.entry_cos) + static_cast<int64_t>(row) * a.half;
  const float* sin = (a.ratio == 1 ? a.v.sin[1] : a.v.entry_sin) + static_cast<int64_t>(row) * a.half;
  for (int i = threadIdx.x; i < a.d; i += kThreads) x[i] = latents[static_cast<int64_t>(row) * a.d + i];
  rms_norm<kThreads>(key, k_norm, a.di, a.eps, key, shared);
  __syncthreads();
  for (int j = threadIdx.x; j < a.half; j += kThreads) {
    rotate_pair(key + a.di - 2 * a.half + 2 * j, cos[j], sin[j]);
    rotate_pair(x + a.d - 2 * a.half + 2 * j, cos[j], sin[j]);
  }
  __syncthreads();
  auto* key_data = reinterpret_cast<uint8_t*>(page + a.key_offset) + offset * a.key_data_bytes;
  auto* key_scales = reinterpret_cast<uint8_t*>(page + a.key_scale_offset) + offset * a.key_scale_bytes;
  for (int g = warp; g < a.di / 32; g += kThreads / 32) {
    const float v = value(key[32 * g + lane]);
    const int e = fq4i_exponent(warp_max(fabsf(v)));
    const int code = fq4i_code(v, e), next = __shfl_down_sync(0xffffffffu, code, 1);
    if (lane % 2 == 0) key_data[16 * g + lane / 2] = static_cast<uint8_t>(code | next << 4);
    if (lane == 0) key_scales[g] = static_cast<uint8_t>(e);
  }
  auto* record = reinterpret_cast<uint8_t*>(page + a.entry_offset) + static_cast<int64_t>(offset) * a.entry_bytes;
  for (int g = warp; g < a.d / 32; g += kThreads / 32) {  // two groups of 16 a warp (FQ4K, 4.3)
    const float v = value(x[32 * g + lane]);
    float amax = fabsf(v);
#pragma unroll
    for (int o = 8; o > 0; o /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
    const uint8_t scale = e4m3_code(fminf(fmaxf(amax, 6 * 0x1p-9f) / 6.0f, 448.0f));
    const int code = e2m1_code(fminf(fmaxf(v / e4m3_value(scale), -6.0f), 6.0f)),
              next = __shfl_down_sync(0xffffffffu, code, 1);
    if (lane % 2 == 0) record[16 * g + lane / 2] = static_cast<uint8_t>(code | next << 4);
    if (lane % 16 == 0) record[a.d / 2 + 2 * g + lane / 16] = scale;
  }
}

__global__ void ring_kernel(GlobalArguments a, const float* rows) {
  const int row = blockIdx.x;
  const SequenceRows& s = a.v.sequences[a.v.sequence[row]];
  if (row < s.first_row + s.rows - a.compressor_slots || a.v.positions[row] < s.cached) return;
  float* to = a.ring(s, a.v.positions[row]);
  for (int i = threadIdx.x; i < 2 * a.d; i += blockDim.x) to[i] = rows[static_cast<int64_t>(row) * 2 * a.d + i];
}

}  // namespace

void Backend::write_global(At where) {
  const RowSet& set = set_of(where.rows);
  if (set.rows == 0) return;
  const Layer& l = layers_[where.layer];
  const KvSource& source = layout_.sources[layout_.source_at(where.layer)];
  GlobalArguments a{};
  a.v = set.view;
  a.pages = kv_.pages, a.slots = kv_.slots;
  a.page_stride = static_cast<int64_t>(layout_.page_stride), a.slot_stride = static_cast<int64_t>(layout_.slot_stride);
  a.compressor_offset = static_cast<int64_t>(source.compressor_offset);
  a.key_offset = static_cast<int64_t>(source.key_offset),
  a.key_scale_offset = static_cast<int64_t>(source.key_scale_offset),
  a.entry_offset = static_cast<int64_t>(source.entry_offset);
  a.ratio = source.ratio, a.page_entries = source.page_entries;
  a.compressor_slots = layout_.compressor_slots,
  a.compressor_slot_bytes = static_cast<int>(layout_.compressor_slot_bytes);
  a.d = static_cast<int>(c_.head_dim), a.di = static_cast<int>(c_.index_head_dim), a.half = half();
  a.entry_bytes = static_cast<int>(layout_.entry_bytes), a.key_data_bytes = static_cast<int>(layout_.key_data_bytes),
  a.key_scale_bytes = static_cast<int>(layout_.key_scale_bytes);
  a.eps = eps();
  const float* rows = at<float>(Role::kCompressorRows);
  bf16* latents = at<bf16>(Role::kLatent);
  pool_kernel<<<set.rows, kThreads, 0, stream_>>>(a, rows, l.compressor_norm, latents);
  // Rows that complete nothing are multiplied too and thrown away.
  project(l.index_wk, latents, a.d, set.rows, {narrow_, Output::kBf16, a.di});
  entry_kernel<<<set.rows, kThreads, 0, stream_>>>(a, narrow_, l.k_norm, latents, wide_);
  if (source.ratio > 1) ring_kernel<<<set.rows, kThreads, 0, stream_>>>(a, rows);
}

}  // namespace deepinfer::ops::cuda
