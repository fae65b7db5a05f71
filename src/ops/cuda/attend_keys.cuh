// The keys of the attention core for head_dim 512 as the A operand of wgmma: expanded in registers from the records,
// for the scores (RawKeys, score_tile()) and for the values (Values). Internal to attend_wide.cu, which says how they
// lie; attend_many.cu shares what expands two values.
#pragma once

#include "ops/cuda/attend.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kGroup = 128, kHeads = 64, kTile = 64, kDim = kWideDim, kMaxTiles = kWideKeys / kTile;
inline constexpr int kCore = 128;                      // bytes of a core matrix
inline constexpr int kQueryStride = kDim / 8 * kCore;  // from one group of 8 heads to the next
inline constexpr int kProbabilityStride = kWideKeys / 8 * kCore;
inline constexpr int kScoreBytes = kTile * kHeads * 4;  // of one tile

__device__ __forceinline__ uint32_t both(float x) {
  const __nv_bfloat162 p = __float2bfloat162_rn(x);
  return *reinterpret_cast<const uint32_t*>(&p);
}
__device__ __forceinline__ float exponential(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}
// Place i of a group of 8 keys (as of channels) holds key 0 4 1 5 2 6 3 7 of it.
__device__ __forceinline__ int key_at(int place) { return place / 2 + place % 2 * 4; }

// Two e2m1 values: nibble `nibble` of both halves of a word, times the factors of both. Codes in exponent and mantissa
// fields are 2^-126 of their value: one multiplication brings two copies of a nibble, the sign of one and the rest of
// the other into their fields.
__device__ __forceinline__ uint32_t entry_pair(uint32_t word, int nibble, uint32_t factor) {
  const uint32_t w = nibble < 2 ? word : word >> 8, code = nibble % 2 == 0 ? (w & 0x000f000fu) * ((1 << 12) + (1 << 6))
                                                                           : (w & 0x00f000f0u) * ((1 << 8) + (1 << 2));
  return scale_pair(code & 0x81c081c0u, factor);
}
// Factors for two e4m3 scales in bytes 0 and 2.
__device__ __forceinline__ uint32_t entry_factor(uint32_t scales) {
  return scale_pair(scale_pair(scales << 4, both(0x1p120f)), both(0x1p118f));
}
// Two e4m3 values: byte b of both words, times the factors of both.
__device__ __forceinline__ uint32_t window_pair(uint32_t low, uint32_t high, int b, uint32_t factor) {
  const uint32_t u = __byte_perm(low, high, b << 4 | (4 + b) << 12);  // codes in the upper bytes of both halves
  return scale_pair(scale_pair((u & 0x80008000u) | ((u >> 4) & 0x07f007f0u), both(0x1p112f)), factor);
}
// Factors for two ue8m0 scales in bytes 0 and 2.
__device__ __forceinline__ uint32_t window_factor(uint32_t scales) { return scales << 7; }

// A row's keys in tiles: those of the window, padded to whole tiles, then those of the selected entries.
struct Tiles {
  int in_window, entries, window_tiles, count;

  // The tile that is scored as number i: the window's, which take longer, go to units that have fewer.
  __device__ __forceinline__ int scored(int i) const { return count <= 2 ? i : i < 2 ? count - 2 + i : i - 2; }
  __device__ __forceinline__ bool is_window(int t) const { return t < window_tiles; }
  __device__ __forceinline__ bool whole(int t) const {
    return is_window(t) ? (t + 1) * kTile <= in_window : (t - window_tiles + 1) * kTile <= entries;
  }
  __device__ __forceinline__ bool there(int t, int key) const {
    return is_window(t) ? t * kTile + key < in_window : (t - window_tiles) * kTile + key < entries;
  }
};

// The share of one thread in 64 channels of the window's keys, or in 128 of the entries', for the scores: of two keys,
// as stored.
template <bool kWindow>
struct RawKeys {
  static constexpr int kGroups = kWindow ? 8 : 4;  // that make all channels
  uint4 code[2];
  uint32_t scale[2];

  // From a slot of KeyStream.
  __device__ __forceinline__ void read(const uint8_t* slot, int group, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int place = 8 * h + lane / 4;
      code[h] = *reinterpret_cast<const uint4*>(slot + place * 64 + lane % 4 * 16);
      if constexpr (kWindow) {
        scale[h] = slot[1024 + place * 8 + group / 2 % 2 * 4 + lane % 4];
      } else {
        scale[h] = *reinterpret_cast<const uint16_t*>(slot + 1024 + place * 8 + lane % 4 * 2);
      }
    }
  }
  // Four steps of 16 channels: the A operand. kHalf: of the entries' 128 channels.
  template <int kHalf>
  __device__ __forceinline__ void expand(uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t scales = __byte_perm(scale[h], 0, kWindow || kHalf == 0 ? 0x4040 : 0x4141),
                     factor = kWindow ? window_factor(scales) : entry_factor(scales);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int b = 2 * (j % 2) + e;  // channels b and b + 4 of 8
          if constexpr (kWindow) {
            a[j][h + 2 * e] = window_pair(word_of(code[h], j / 2 * 2), word_of(code[h], j / 2 * 2 + 1), b, factor);
          } else {
            a[j][h + 2 * e] = entry_pair(word_of(code[h], 2 * kHalf + j / 2), b, factor);
          }
        }
      }
    }
  }
};

// wgmma reads these registers after it was issued, which the compiler does not know: stands behind the wait that ends
// the reading.
template <int kSteps>
__device__ __forceinline__ void keep_alive(const uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) asm volatile("" ::"r"(a[j][0]), "r"(a[j][1]), "r"(a[j][2]), "r"(a[j][3]));
}

// The matrix `by` units of 16 bytes further on.
__device__ __forceinline__ uint64_t moved(uint64_t descriptor, uint32_t by) {
  return (descriptor & 0xffffffff00000000u) | (static_cast<uint32_t>(descriptor) + by);
}

// Products of the four steps of 64 channels.
__device__ __forceinline__ void score_steps(float (&score)[kHeads / 2], const uint32_t (&a)[4][4], uint64_t queries,
                                            bool first) {
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) wgmma_bf16<kHeads>(score, a[j], moved(queries, j * (2 * kCore / 16)), !first || j > 0);
  wgmma_commit();
  wgmma_wait<1>();
}

inline constexpr int kScoreSlots = 3, kScoreSlotBytes = 16 * (64 + 8), kScoreRingBytes = kScoreSlots * kScoreSlotBytes;

// A warp's keys on their way into its ring, two slots ahead of the products: groups of channels of 16 keys of the tiles
// number first, first + step, ... A slot: 64 bytes of codes a key, then 8 of scales. Keys lie by place, so that lanes
// read different banks; four lanes copy for the keys of two places.
struct KeyStream {
  const uint64_t* records;
  const Tiles& tiles;
  const uint8_t *codes[2], *scales;  // this lane's part of two keys and of one
  uint32_t ring;
  int number, step, group, to, from, lane;
  bool window;

  __device__ __forceinline__ KeyStream(const uint64_t* all, const Tiles& t, int first, int step_, const uint8_t* ring_,
                                       int warp, int lane_)
      : records(all + 16 * warp + key_at(lane_ / 4)),
        tiles(t),
        ring(shared_address(ring_)),
        number(first),
        step(step_),
        group(0),
        to(0),
        from(0),
        lane(lane_) {
    find();
    issue(), issue();
  }
  __device__ __forceinline__ void find() {
    if (number >= tiles.count) return;
    const int tile = tiles.scored(number);
    window = tiles.is_window(tile);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto* record = reinterpret_cast<const uint8_t*>(records[tile * kTile + 8 * h]);
      codes[h] = record + lane % 4 * (window ? 32 : 16);
      if (h == 0 || lane % 4 == 1) scales = record + (window ? kDim : kDim / 2);
    }
  }
  __device__ __forceinline__ void issue() {
    if (number < tiles.count) {
      const int at = window ? group / 2 * 128 + group % 2 * 16 : group * 64;
      const uint32_t slot = ring + to;
      async_load<16>(slot + lane * 16, codes[0] + at);
      async_load<16>(slot + 512 + lane * 16, codes[1] + at);
      if (lane % 4 < 2)
        async_load<8>(slot + 1024 + lane % 4 * 64 + lane / 4 * 8, scales + 8 * (window ? group / 4 : group));
      if (++group == (window ? RawKeys<true>::kGroups : RawKeys<false>::kGroups)) group = 0, number += step, find();
    }
    to = to == (kScoreSlots - 1) * kScoreSlotBytes ? 0 : to + kScoreSlotBytes;
    async_commit();
  }
  // Group g of a tile, the next one. What was read from the slot that is filled meanwhile has been used by all lanes.
  template <bool kWindow>
  __device__ __forceinline__ RawKeys<kWindow> next(const uint8_t* ring_bytes, int g) {
    async_wait<1>();
    __syncwarp();
    RawKeys<kWindow> raw;
    raw.read(ring_bytes + from, g, lane);
    from = from == (kScoreSlots - 1) * kScoreSlotBytes ? 0 : from + kScoreSlotBytes;
    issue();
    return raw;
  }
};

// The scores of one tile; d as of wgmma_bf16 with keys as rows and heads as columns.
template <bool kWindow>
__device__ __forceinline__ void score_tile(KeyStream& keys, const uint8_t* ring, uint64_t queries,
                                           float (&score)[kHeads / 2]) {
  constexpr uint32_t kFour = 4 * 2 * kCore / 16;  // from one 64 channels' queries to the next ones'
  uint32_t even[4][4], odd[4][4];
#pragma unroll(kWindow ? 1 : 4)
  for (int g = 0; g < 8; g += 2) {
    RawKeys<kWindow> raw = keys.template next<kWindow>(ring, g);
    raw.template expand<0>(even);
    score_steps(score, even, moved(queries, g * kFour), g == 0);
    keep_alive(odd);
    if constexpr (kWindow) raw = keys.template next<kWindow>(ring, g + 1);
    raw.template expand<1>(odd);
    score_steps(score, odd, moved(queries, (g + 1) * kFour), false);
    keep_alive(even);
  }
  wgmma_wait<0>();
  keep_alive(odd);
}

// The values of 128 channels of all keys: one warpgroup takes them (kSteps = 2) or two share them, one channels 0 and 1
// of each four, the other 2 and 3 (kSteps = 1). Their part of the records comes in through a ring of slots, a row a
// key: codes, then 16 bytes of scales. kThreads take care of it.
template <int kSteps, int kThreads>
struct Values {
  static constexpr int kChannels = 128;
  template <bool kWindow>
  static constexpr int kCodes = kWindow ? kChannels : kChannels / 2;
  template <bool kWindow>
  static constexpr int kRow = kCodes<kWindow> + (kWindow ? 32 : 16);  // lanes read different banks
  static constexpr int kSlotBytes = kTile * kRow<true>, kEntrySlotBytes = kTile * kRow<false>;

  template <bool kWindow>
  __device__ __forceinline__ static void issue_tile(const uint64_t* records, uint32_t slot, int channel0) {
    constexpr int kKeys = kThreads / 4, kTurns = kTile / kKeys;  // four threads a key
    const int piece = threadIdx.x % 4, first = threadIdx.x % kThreads / 4;
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      const int key = n * kKeys + first;
      const auto* record = reinterpret_cast<const uint8_t*>(records[key]);
      const uint8_t* from = record + (kWindow ? channel0 : channel0 / 2) + piece * 16;
      const uint32_t to = slot + key * kRow<kWindow>;
#pragma unroll
      for (int i = 0; i < kCodes<kWindow> / 64; ++i) async_load<16>(to + piece * 16 + 64 * i, from + 64 * i);
      if (piece == n) async_load<16>(to + kCodes<kWindow>, record + (kWindow ? kDim : kDim / 2 + channel0 / 256 * 16));
    }
  }
  // Starts the copies of a tile.
  __device__ __forceinline__ static void issue(const Tiles& tiles, const uint64_t* records, int t, uint32_t slot,
                                               int channel0) {
    if (t < tiles.count) {
      tiles.is_window(t) ? issue_tile<true>(records + t * kTile, slot, channel0)
                         : issue_tile<false>(records + t * kTile, slot, channel0);
    }
    async_commit();
  }

  // Which of the slab's channels are the lane's: 4 of 32 a warp, or two of these.
  struct Lane {
    int warp, lane, first, scale_window, scale_entry;  // first: 0, or with kSteps = 1 perhaps 2
  };

  // The lane's channels of 16 keys as stored: entries: of keys quad and quad + 4, of quad + 8 and + 12 together.
  template <bool kWindow>
  struct Raw {
    uint32_t word[kWindow ? 4 : 2];
  };
  // The lane's factors of keys quad + {0, 4}, quad + {8, 12} of step lane / 4 % 4 of a tile.
  template <bool kWindow>
  __device__ __forceinline__ static void read_factors(const uint8_t* slot, const Lane& l, uint32_t (&factor)[2]) {
    const uint8_t* rows = slot + (l.lane / 4 % 4 * 16 + l.lane % 4) * kRow<kWindow> + kCodes<kWindow> +
                          (kWindow ? l.scale_window : l.scale_entry);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t scales = rows[8 * k * kRow<kWindow>] | rows[(8 * k + 4) * kRow<kWindow>] << 16;
      factor[k] = kWindow ? window_factor(scales) : entry_factor(scales);
    }
  }
  __device__ __forceinline__ static void read_window(const uint8_t* rows, const Lane& l, Raw<true>& r) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint8_t* codes = rows + (l.lane % 4 + 4 * k) * kRow<true> + 32 * l.warp + l.lane / 4 * 4 + l.first;
      if constexpr (kSteps == 2) {
        r.word[k] = *reinterpret_cast<const uint32_t*>(codes);
      } else {
        r.word[k] = *reinterpret_cast<const uint16_t*>(codes);
      }
    }
  }
  // Of two steps: matrices of 8 keys x 16 bytes, transposed.
  __device__ __forceinline__ static void read_entries(const uint8_t* rows, const Lane& l, Raw<false> (&r)[2]) {
    const uint32_t from = shared_address(rows) + (l.lane / 8 * 8 + key_at(l.lane % 8)) * kRow<false> + 16 * l.warp;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0].word[0]), "=r"(r[0].word[1]), "=r"(r[1].word[0]), "=r"(r[1].word[1])
                 : "r"(from)
                 : "memory");
    if constexpr (kSteps == 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r[i / 2].word[i % 2] >>= 4 * l.first;
    }
  }
  // Step `step` of the tile whose factors were read.
  template <bool kWindow>
  __device__ __forceinline__ static void expand(const Raw<kWindow>& r, const uint32_t (&factors)[2], int step,
                                                const Lane& l, uint32_t (&a)[kSteps][4]) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      // lanes of the same keys and the same 16 channels: those of bits 0, 1 and 4
      const uint32_t factor = __shfl_sync(0xffffffffu, factors[k / 2], (l.lane & 0x13) | 4 * step);
#pragma unroll
      for (int i = 0; i < 2 * kSteps; ++i) {
        a[i / 2][i % 2 + k] = kWindow ? window_pair(r.word[k], r.word[(k + 1) % (kWindow ? 4 : 2)], i, factor)
                                      : entry_pair(r.word[k / 2], i, factor);
      }
    }
  }
  __device__ __forceinline__ static void product(float (&acc)[kSteps][kHeads / 2], const uint32_t (&a)[kSteps][4],
                                                 uint64_t probabilities) {
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < kSteps; ++m) wgmma_bf16<kHeads>(acc[m], a[m], probabilities, true);
    wgmma_commit();
    wgmma_wait<1>();
  }

  // Sums of the keys of one tile.
  template <bool kWindow>
  __device__ __forceinline__ static void multiply(const uint8_t* slot, const Lane& l, uint64_t probabilities,
                                                  float (&acc)[kSteps][kHeads / 2], uint32_t (&a)[2][kSteps][4]) {
    constexpr uint32_t kStep = 2 * kCore / 16;
    uint32_t factors[2];
    read_factors<kWindow>(slot, l, factors);
    if constexpr (kWindow) {
#pragma unroll
      for (int j = 0; j < kTile / 16; ++j) {
        Raw<true> raw;
        read_window(slot + 16 * j * kRow<true>, l, raw);
        expand<true>(raw, factors, j, l, a[j % 2]);
        product(acc, a[j % 2], moved(probabilities, j * kStep));
        keep_alive(a[1 - j % 2]);
      }
    } else {
      Raw<false> raw[2][2];
      read_entries(slot, l, raw[0]);
#pragma unroll
      for (int j = 0; j < kTile / 32; ++j) {
        if (j + 1 < kTile / 32) read_entries(slot + 32 * (j + 1) * kRow<false>, l, raw[(j + 1) % 2]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          expand<false>(raw[j % 2][i], factors, 2 * j + i, l, a[i]);
          product(acc, a[i], moved(probabilities, (2 * j + i) * kStep));
          keep_alive(a[1 - i]);
        }
      }
    }
  }
};

}  // namespace deepinfer::ops::cuda
