// The attention core for head_dim 512 (spec/model.md 6.3, 6.4, 11.3). A cluster of kSplit CTAs takes 64 heads of a row: its CTAs share
// out tiles of 64 keys for the scores and channels for the values, so one row fills many SMs and many rows one each, with the same
// sums. Each CTA has two warpgroups that take turns: one expands records to bf16 in shared memory while the tensor cores work for
// the other.
//
// Shared memory is in core matrices of 8 rows x 16 bytes. In a group of 8 channels they stand in the order 0 4 1 5 2 6 3 7, in which
// FP4 words unpack; queries are stored alike. Keys are held at 2^-8 of their value, so that a factor on FP4 codes stays finite in
// bf16; powers of two change no rounding.
#include "ops/cuda/attend.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/weights.cuh"
#include "ops/cuda/wgmma.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kThreads = 256, kGroup = 128, kHeads = 64, kTile = 64, kDim = kWideDim, kMaxTiles = kWideKeys / kTile;
constexpr int kCore = 128;                             // bytes of a core matrix
constexpr int kQueryStride = kDim / 8 * kCore;         // from one group of 8 heads or keys to the next
constexpr int kProbabilityStride = kWideKeys / 8 * kCore;
constexpr int kTileBytes = kTile * kDim * 2;

// Bytes in shared memory.
constexpr int kProbabilities = 0;                       // [64 heads][640 keys] bf16; before: queries [64][512]
constexpr int kBuffers = kHeads * kWideKeys * 2;        // a tile for each warpgroup
constexpr int kRecords = kBuffers + 2 * kTileBytes;     // address of each key's record
constexpr int kSums = kRecords + kWideKeys * 8;         // [tile][head] sums of probabilities
constexpr int kMaxima = kSums + kMaxTiles * kHeads * 4; // [warpgroup of the cluster][head]
constexpr int kSharedBytes = kMaxima + 16 * kHeads * 4;
static_assert(kSharedBytes <= 227 << 10);

__device__ __forceinline__ uint32_t both(float x) {
  const __nv_bfloat162 p = __float2bfloat162_rn(x);
  return *reinterpret_cast<const uint32_t*>(&p);
}

// 32 channels of a key as they are stored: FP4 codes in a and two e4m3 scales, or FP8 codes in a and b and one ue8m0 scale.
struct Raw {
  uint4 a, b;
  uint32_t scale;
};

// As four vectors of 8 channels.
__device__ __forceinline__ void expand_entry(const Raw& raw, const Shifts& s, uint4 (&out)[4]) {
  const float2 f = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(raw.scale), __NV_E4M3)));
  // Codes in exponent and mantissa fields are 2^-126 of their value.
  const uint32_t factors[2] = {both(f.x * 0x1p118f), both(f.y * 0x1p118f)};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t word = word_of(raw.a, w), factor = factors[w / 2];
    out[w].x = scale_pair(((word * s.by12) & 0x80008000u) | ((word * s.by6) & 0x01c001c0u), factor);
    out[w].y = scale_pair(((word * s.by8) & 0x80008000u) | ((word * s.by2) & 0x01c001c0u), factor);
    out[w].z = scale_pair(((word * s.by4) & 0x80008000u) | ((word >> 2) & 0x01c001c0u), factor);
    out[w].w = scale_pair((word & 0x80008000u) | ((word >> 6) & 0x01c001c0u), factor);
  }
}
__device__ __forceinline__ void expand_window(const Raw& raw, uint4 (&out)[4]) {
  const uint32_t factor = both(ue8m0_value(static_cast<uint8_t>(raw.scale))), base = both(0x1p112f);
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const uint4& codes = v < 2 ? raw.a : raw.b;
    const uint32_t low = word_of(codes, v % 2 * 2), high = word_of(codes, v % 2 * 2 + 1);
    uint32_t r[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {  // channels b and b + 4: their codes in the upper bytes of both halves
      const uint32_t u = __byte_perm(low, high, b << 4 | (4 + b) << 12);
      r[b] = scale_pair(scale_pair((u & 0x80008000u) | ((u >> 4) & 0x07f007f0u), base), factor);
    }
    out[v] = {r[0], r[1], r[2], r[3]};
  }
}

// A row's keys in tiles: those of the window, padded to whole tiles, then those of the selected entries.
struct Tiles {
  int in_window, entries, window_tiles, count;
  uint32_t records;  // shared address of the records' addresses, by place in the tiles

  __device__ __forceinline__ bool is_window(int t) const { return t < window_tiles; }
  __device__ __forceinline__ bool there(int t, int key) const { return is_window(t) ? t * kTile + key < in_window : (t - window_tiles) * kTile + key < entries; }
};

// One warpgroup expands channels 32 c0 .. + 32 kGroups - 1 of a tile into core matrices [8 keys][8 channels], kGroups * 4 of them a
// group of keys. A thread keeps to its channels; fetch() loads the first pieces of a tile long before tile() expands it.
template <int kGroups>
struct Expander {
  static constexpr int kKeyGroups = kTile / 8, kAtOnce = 16 / kGroups, kEach = kAtOnce >= kKeyGroups ? 1 : kKeyGroups / kAtOnce, kBatch = kEach < 2 ? kEach : 2;
  const Tiles& tiles;
  int channels, key0;  // the thread's first key of a tile; kAtOnce groups of keys to the next
  uint32_t place;
  Raw raw[kBatch];

  __device__ __forceinline__ Expander(const Tiles& t, int c0) : tiles(t) {
    const int thread = threadIdx.x % kGroup, c = thread / 8 % kGroups;
    channels = c0 + c;
    key0 = thread / (8 * kGroups) * 8 + thread % 8;
    place = (key0 / 8 * kGroups + c) * 4 * kCore + key0 % 8 * 16;
  }
  __device__ __forceinline__ void load(int t, int batch, Raw (&to)[kBatch]) const {
    const bool window = tiles.is_window(t);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int key = key0 + (batch * kBatch + i) * kAtOnce * 8;
      to[i] = {};
      if (key >= kTile || !tiles.there(t, key)) continue;
      uint64_t address;
      asm volatile("ld.shared.u64 %0, [%1];" : "=l"(address) : "r"(tiles.records + (t * kTile + key) * 8));
      const auto* record = reinterpret_cast<const uint8_t*>(address);
      if (window) {
        to[i].a = *reinterpret_cast<const uint4*>(record + 32 * channels);
        to[i].b = *reinterpret_cast<const uint4*>(record + 32 * channels + 16);
        to[i].scale = record[kDim + channels];
      } else {
        to[i].a = *reinterpret_cast<const uint4*>(record + 16 * channels);
        to[i].scale = *reinterpret_cast<const uint16_t*>(record + kDim / 2 + 2 * channels);
      }
    }
  }
  __device__ __forceinline__ void fetch(int t) {
    if (t < tiles.count) load(t, 0, raw);
  }
  __device__ __forceinline__ void tile(int t, const Shifts& s, uint32_t to) {
#pragma unroll 1
    for (int batch = 0; batch < kEach / kBatch; ++batch) {
      Raw now[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) now[i] = raw[i];
      if (batch + 1 < kEach / kBatch) load(t, batch + 1, raw);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (kAtOnce > kKeyGroups && key0 >= kTile) continue;
        uint4 v[4];
        tiles.is_window(t) ? expand_window(now[i], v) : expand_entry(now[i], s, v);  // keys that are not there: codes 0
        const uint32_t at = to + place + (batch * kBatch + i) * kAtOnce * kGroups * 4 * kCore;
#pragma unroll
        for (int w = 0; w < 4; ++w) asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at + w * kCore), "r"(v[w].x), "r"(v[w].y), "r"(v[w].z), "r"(v[w].w) : "memory");
      }
    }
  }
};

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

template <int kSplit>
__device__ __forceinline__ void meet() {
  kSplit > 1 ? cluster_sync() : __syncthreads();
}

template <int kSplit>
__global__ __launch_bounds__(kThreads, 1) void attend_wide_kernel(const AttendArguments a, const Shifts shifts) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kUnits = 2 * kSplit, kUnitTiles = (kMaxTiles + kUnits - 1) / kUnits, kChannels = kDim / kUnits;
  wait_for_inputs();
  start_next_kernel();
  const int row = blockIdx.x / kSplit, rank = blockIdx.x % kSplit, head0 = blockIdx.y * kHeads;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroup, 0), unit = 2 * rank + group, warp = threadIdx.x % kGroup / 32, lane = threadIdx.x % 32, quad = lane % 4;
  const KeyList list(a, row);
  const int entries = list.total - list.in_window, window_tiles = (list.in_window + kTile - 1) / kTile;
  const Tiles tiles{list.in_window, entries, window_tiles, window_tiles + (entries + kTile - 1) / kTile, shared_address(shared + kRecords)};
  auto *sums = reinterpret_cast<float*>(shared + kSums), *maxima = reinterpret_cast<float*>(shared + kMaxima);
  const uint32_t base = shared_address(shared), buffer = base + kBuffers + group * kTileBytes;

  for (int k = threadIdx.x; k < list.total; k += kThreads) {
    const uint8_t* record = list.record(a, k);
    reinterpret_cast<uint64_t*>(shared + kRecords)[k < list.in_window ? k : window_tiles * kTile + k - list.in_window] = reinterpret_cast<uint64_t>(record);
    for (int i = 0; i < (k < list.in_window ? a.record_bytes : a.entry_bytes); i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(record + i));
  }
#pragma unroll 8
  for (int i = threadIdx.x; i < kHeads * kDim / 8; i += kThreads) {
    const int head = i / 8 / (kDim / 8) * 8 + i % 8, c = i / 8 % (kDim / 8);
    uint4 u{};
    if (head0 + head < a.heads) u = *reinterpret_cast<const uint4*>(a.q + (static_cast<int64_t>(row) * a.heads + head0 + head) * kDim + 8 * c);
    *reinterpret_cast<uint4*>(shared + head / 8 * kQueryStride + c * kCore + head % 8 * 16) = {__byte_perm(u.x, u.z, 0x5410), __byte_perm(u.x, u.z, 0x7632), __byte_perm(u.y, u.w, 0x5410),
                                                                                                __byte_perm(u.y, u.w, 0x7632)};
  }
  async_proxy_fence();
  meet<kSplit>();  // also: all CTAs of the cluster are there

  Expander<kDim / 32> keys(tiles, 0);
  keys.fetch(unit);
  // Scores. A unit (warpgroup of the cluster) takes tiles unit, unit + kUnits, ..
  float score[kUnitTiles][kTile / 2];
  const uint64_t query_matrix = matrix_descriptor(shared, kCore, kQueryStride), key_matrix = matrix_descriptor(shared + kBuffers + group * kTileBytes, kCore, kQueryStride);
#pragma unroll 1  // one copy of the code, which must stay in the instruction cache
  for (int n = 0; n < kUnitTiles; ++n) {
    const int t = unit + n * kUnits;
    if (t >= tiles.count) break;
    keys.tile(t, shifts, buffer);
    async_proxy_fence();
    group_sync(1 + group, kGroup);
    float now[kTile / 2];
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) wgmma_shared<kTile, false>(now, query_matrix + j * (2 * kCore / 16), key_matrix + j * (2 * kCore / 16), j > 0);
    wgmma_commit();
    keys.fetch(t + kUnits);
    wgmma_wait<0>();
    group_sync(1 + group, kGroup);  // the tile may be overwritten
#pragma unroll
    for (int m = 0; m < kUnitTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) score[m][i] = m == n ? now[i] : score[m][i];
    }
  }
  // Maxima of rows lane / 4 and + 8 of this warp's 16 heads, over all units.
  float top[2] = {-1e30f, -1e30f};
  const float scale = a.scale * 256.0f;
#pragma unroll
  for (int n = 0; n < kUnitTiles; ++n) {
    const int t = unit + n * kUnits;
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) {
      const bool there = t < tiles.count && tiles.there(t, i / 4 * 8 + 2 * quad + i % 2);
      score[n][i] = there ? score[n][i] * scale : -INFINITY;
      top[i / 2 % 2] = fmaxf(top[i / 2 % 2], score[n][i]);
    }
  }
  const int head = 16 * warp + lane / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = quad_max(top[h]);
    if (quad == 0) {
#pragma unroll
      for (int r = 0; r < kSplit; ++r) {
        float* to = maxima + unit * kHeads + head + 8 * h;
        kSplit > 1 ? cluster_store(shared_address(to), r, __float_as_uint(top[h])) : static_cast<void>(*to = top[h]);
      }
    }
  }
  meet<kSplit>();  // nobody reads queries any more
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int u = 0; u < kUnits; ++u) top[h] = fmaxf(top[h], maxima[u * kHeads + head + 8 * h]);
  }
#pragma unroll
  for (int n = 0; n < kUnitTiles; ++n) {
    const int t = unit + n * kUnits;
    if (t >= tiles.count) continue;
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < kTile / 8; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float p0 = __expf(score[n][4 * i + 2 * h] - top[h]), p1 = __expf(score[n][4 * i + 2 * h + 1] - top[h]);
        sum[h] += p0;
        sum[h] += p1;
        const __nv_bfloat162 pair(__float2bfloat16_rn(p0), __float2bfloat16_rn(p1));
        const uint32_t at = base + kProbabilities + (head / 8 + h) * kProbabilityStride + (t * (kTile / 8) + i) * kCore + head % 8 * 16 + 4 * quad, bits = *reinterpret_cast<const uint32_t*>(&pair);
#pragma unroll
        for (int r = 0; r < kSplit; ++r) {
          if constexpr (kSplit > 1) {
            cluster_store(at, r, bits);
          } else {
            asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = quad_sum(sum[h]);
      if (quad != 0) continue;
#pragma unroll
      for (int r = 0; r < kSplit; ++r) {
        float* to = sums + t * kHeads + head + 8 * h;
        kSplit > 1 ? cluster_store(shared_address(to), r, __float_as_uint(sum[h])) : static_cast<void>(*to = sum[h]);
      }
    }
  }
  async_proxy_fence();
  meet<kSplit>();
  async_proxy_fence();
  float inverse[2];  // 2^8 over the denominator
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = 0;
    for (int t = 0; t < tiles.count; ++t) sum += sums[t * kHeads + head + 8 * h];
    inverse[h] = head0 + head + 8 * h < a.heads ? 256.0f / (sum + __expf(a.sink[head0 + head + 8 * h] - top[h])) : 0.0f;
  }

  // Values: channels kChannels * unit .. of all keys, two tiles in turn.
  constexpr int kHalfBytes = kTile * kChannels * 2, kKeyStride = kChannels / 8 * kCore;
  float acc[kChannels / 2];
#pragma unroll
  for (int i = 0; i < kChannels / 2; ++i) acc[i] = 0;
  Expander<kChannels / 32> parts(tiles, unit * (kChannels / 32));
  parts.fetch(0);
  const uint64_t probability_matrix = matrix_descriptor(shared + kProbabilities, kCore, kProbabilityStride), value_matrix = matrix_descriptor(shared + kBuffers + group * kTileBytes, kKeyStride, kCore);
#pragma unroll 1
  for (int t = 0; t <= tiles.count; ++t) {  // the tensor cores work on tile t - 1 while tile t is expanded
    if (t > 0) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kTile / 16; ++j) {
        wgmma_shared<kChannels, true>(acc, probability_matrix + ((t - 1) * (kTile / 8) + 2 * j) * (kCore / 16), value_matrix + ((t - 1) % 2 * kHalfBytes + 2 * j * kKeyStride) / 16, t + j > 1);
      }
      wgmma_commit();
    }
    if (t < tiles.count) parts.tile(t, shifts, buffer + t % 2 * kHalfBytes);
    parts.fetch(t + 1);
    async_proxy_fence();
    wgmma_wait<0>();
    group_sync(1 + group, kGroup);
  }
  // Through shared memory, where channels return to their order, to full lines.
  constexpr int kRow = kChannels * 2 + 16;
  uint8_t* out = shared + kBuffers + group * kTileBytes;
#pragma unroll
  for (int i = 0; i < kChannels / 2; ++i) {
    const int h = i / 2 % 2, channel = i / 4 * 8 + quad + 4 * (i % 2);
    *reinterpret_cast<bf16*>(out + (head + 8 * h) * kRow + channel * 2) = rounded(list.total == 0 ? 0.0f : acc[i] * inverse[h]);
  }
  group_sync(1 + group, kGroup);
  for (int i = threadIdx.x % kGroup; i < kHeads * kChannels / 8; i += kGroup) {
    const int h = i / (kChannels / 8), c = i % (kChannels / 8);
    if (head0 + h < a.heads) {
      *reinterpret_cast<uint4*>(a.out + (static_cast<int64_t>(row) * a.heads + head0 + h) * kDim + unit * kChannels + 8 * c) = *reinterpret_cast<const uint4*>(out + h * kRow + c * 16);
    }
  }
}

template <int kSplit>
void launch(const AttendArguments& a, int rows, cudaStream_t stream) {
  cudaFuncSetAttribute(attend_wide_kernel<kSplit>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * kSplit), static_cast<unsigned>((a.heads + kHeads - 1) / kHeads));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = kSplit;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = kSplit > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, attend_wide_kernel<kSplit>, a, Shifts{});
}

}  // namespace

void attend_wide(const AttendArguments& a, int rows, cudaStream_t stream) {
  const int blocks = rows * ((a.heads + kHeads - 1) / kHeads);
  if (blocks <= 16) return launch<8>(a, rows, stream);
  if (blocks <= 32) return launch<4>(a, rows, stream);
  if (blocks <= 64) return launch<2>(a, rows, stream);
  launch<1>(a, rows, stream);
}

}  // namespace deepinfer::ops::cuda
