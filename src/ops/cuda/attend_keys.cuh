// The keys of the attention core for head_dim 512 as the A operand of wgmma: expanded in registers from the records,
// for the scores (RawKeys, score_tile()) and for the values (Values). Internal to attend_wide.cu, which says how they
// lie.
#pragma once

#include "ops/cuda/attend.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kThreads = 256, kGroup = 128, kHeads = 64, kTile = 64, kDim = kWideDim,
                     kMaxTiles = kWideKeys / kTile;
inline constexpr int kCore = 128;                                 // bytes of a core matrix
inline constexpr int kQueryStride = kDim / 8 * kCore;             // from one group of 8 heads to the next
inline constexpr int kProbabilityStride = kWideKeys / 8 * kCore;
// tiles of a warpgroup whose scores wait in shared memory
inline constexpr int kKept = 4;
inline constexpr int kScoreBytes = kTile * kHeads * 4;            // of one tile
// records of a tile on their way to one warpgroup, the longest
inline constexpr int kSlotBytes = kTile * (kDim / 2 + 32);

__device__ __forceinline__ uint32_t both(float x) {
  const __nv_bfloat162 p = __float2bfloat162_rn(x);
  return *reinterpret_cast<const uint32_t*>(&p);
}
// Place i of a group of 8 keys (as of channels) holds key 0 4 1 5 2 6 3 7 of it.
__device__ __forceinline__ int key_at(int place) { return place / 2 + place % 2 * 4; }

// Two e2m1 values: nibble `nibble` of both halves of a word, times the factors of both. Codes in exponent and mantissa
// fields are 2^-126 of their value.
__device__ __forceinline__ uint32_t entry_pair(uint32_t word, int nibble, uint32_t factor, const Shifts& s) {
  const uint32_t magnitude = nibble == 0 ? word * s.by6 : nibble == 1 ? word * s.by2 : word >> (nibble == 2 ? 2 : 6);
  const uint32_t sign = nibble == 0 ? word * s.by12 : nibble == 1 ? word * s.by8 : nibble == 2 ? word * s.by4 : word;
  return scale_pair((sign & 0x80008000u) | (magnitude & 0x01c001c0u), factor);
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

  __device__ __forceinline__ bool is_window(int t) const { return t < window_tiles; }
  __device__ __forceinline__ bool there(int t, int key) const {
    return is_window(t) ? t * kTile + key < in_window : (t - window_tiles) * kTile + key < entries;
  }
};

// The share of one thread in 128 channels of a tile for the scores: 32 channels of two keys, as stored.
template <bool kWindow>
struct RawKeys {
  uint4 code[2][kWindow ? 2 : 1];
  uint32_t scale[2];

  __device__ __forceinline__ void load(const uint8_t* const (&record)[2], int chunk, int quad) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kWindow) {
        code[h][0] = __ldg(reinterpret_cast<const uint4*>(record[h] + 128 * chunk + 32 * quad));
        code[h][1] = __ldg(reinterpret_cast<const uint4*>(record[h] + 128 * chunk + 32 * quad + 16));
        scale[h] = __ldg(record[h] + kDim + 4 * chunk + quad);
      } else {
        code[h][0] = __ldg(reinterpret_cast<const uint4*>(record[h] + 64 * chunk + 16 * quad));
        scale[h] = __ldg(reinterpret_cast<const uint16_t*>(record[h] + kDim / 2 + 8 * chunk + 2 * quad));
      }
    }
  }
  // Four steps of 16 channels: the A operand.
  template <int kHalf>
  __device__ __forceinline__ void expand(const Shifts& s, uint32_t (&a)[4][4]) const {
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
            a[j][h + 2 * e] =
                window_pair(word_of(code[h][kHalf], j / 2 * 2), word_of(code[h][kHalf], j / 2 * 2 + 1), b, factor);
          } else {
            a[j][h + 2 * e] = entry_pair(word_of(code[h][0], 2 * kHalf + j / 2), b, factor, s);
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

// Where the two keys of a thread in a tile lie.
struct TwoKeys {
  const uint8_t* record[2];

  __device__ __forceinline__ explicit TwoKeys(const uint64_t* records)
      : record{reinterpret_cast<const uint8_t*>(records[0]), reinterpret_cast<const uint8_t*>(records[8])} {}
};

// The scores of one tile; d as of wgmma_bf16 with keys as rows and heads as columns. raw: the first two chunks; then
// those of `next`.
template <bool kWindow>
__device__ __forceinline__ void score_tile(TwoKeys keys, const TwoKeys& next, RawKeys<kWindow> (&raw)[2], int quad,
                                           uint64_t queries, const Shifts& s, float (&score)[kHeads / 2]) {
  uint32_t even[4][4], odd[4][4];
#pragma unroll 1
  for (int chunk = 0; chunk < kDim / 128; chunk += 2) {
    if (chunk == 2) keys = next;
#pragma unroll
    for (int c = 0; c < 2; ++c) {  // two at a time, so that no copy of registers waits for loads
      raw[c].template expand<0>(s, even);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j)
        wgmma_bf16<kHeads>(score, even[j], queries + (8 * (chunk + c) + j) * (2 * kCore / 16), chunk + c + j > 0);
      wgmma_commit();
      wgmma_wait<1>();
      keep_alive(odd);
      raw[c].template expand<1>(s, odd);
      raw[c].load(keys.record, (chunk + c + 2) % (kDim / 128), quad);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j)
        wgmma_bf16<kHeads>(score, odd[j], queries + (8 * (chunk + c) + 4 + j) * (2 * kCore / 16), true);
      wgmma_commit();
      wgmma_wait<1>();
      keep_alive(even);
    }
  }
  wgmma_wait<0>();
  keep_alive(odd);
}

// What one warpgroup takes for the values: kSteps x 64 channels of all keys. Its part of the records comes in through a
// ring of slots, a row a key: codes, then 16 bytes of scales.
template <int kSteps>
struct Values {
  static constexpr int kChannels = 64 * kSteps;
  template <bool kWindow>
  static constexpr int kCodes = kWindow ? kChannels : kChannels / 2;
  template <bool kWindow>
  // lanes read different banks
  static constexpr int kRow = kSteps == 4 ? kCodes<kWindow> + (kWindow ? 32 : 32) : kCodes<kWindow> + 16;

  template <bool kWindow>
  __device__ __forceinline__ static void issue_part(uint32_t slot, const uint8_t* record, int channel0, int key,
                                                    int part) {
    constexpr int kPieces = kCodes<kWindow> / 16;
    const uint32_t to = slot + key * kRow<kWindow>;
    const uint8_t* from = record + (kWindow ? channel0 : channel0 / 2);
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) async_load<16>(to + (2 * i + part) * 16, from + (2 * i + part) * 16);
    if (part == 0) async_load<16>(to + kCodes<kWindow>, record + (kWindow ? kDim : kDim / 2 + channel0 / 256 * 16));
  }
  // Starts the copies of a tile: two threads a key.
  __device__ __forceinline__ static void issue(const Tiles& tiles, const uint64_t* records, int t, uint32_t slot,
                                               int channel0) {
    if (t < tiles.count) {
      const int thread = threadIdx.x % kGroup;
      const auto* record = reinterpret_cast<const uint8_t*>(records[t * kTile + thread / 2]);
      tiles.is_window(t) ? issue_part<true>(slot, record, channel0, thread / 2, thread % 2)
                         : issue_part<false>(slot, record, channel0, thread / 2, thread % 2);
    }
    async_commit();
  }

  static constexpr int kBatch = kSteps == 4 ? 1 : 2;  // steps of 16 keys that are expanded and multiplied together

  // The lane's 2 kSteps channels of keys quad + {0, 4, 8, 12} of each step of a batch, as stored, and the scales of
  // these keys.
  template <bool kWindow>
  struct Raw {
    static constexpr int kWords = kWindow && kSteps == 4 ? 2 : 1;
    uint32_t word[4 * kBatch][kWords], scale[4 * kBatch];

    __device__ __forceinline__ void read(const uint8_t* rows, int place, int scale_at) {
      constexpr int kBytes = kWindow ? 2 * kSteps : kSteps;
#pragma unroll
      for (int k = 0; k < 4 * kBatch; ++k) {
        const uint8_t *row = rows + 4 * k * kRow<kWindow>, *codes = row + kBytes * place;
        if constexpr (kBytes == 8) {
          const uint2 u = *reinterpret_cast<const uint2*>(codes);
          word[k][0] = u.x, word[k][kWords - 1] = u.y;
        } else if constexpr (kBytes == 4) {
          word[k][0] = *reinterpret_cast<const uint32_t*>(codes);
        } else if constexpr (kBytes == 2) {
          word[k][0] = *reinterpret_cast<const uint16_t*>(codes);
        } else {
          word[k][0] = *codes;
        }
        scale[k] = row[kCodes<kWindow> + scale_at];
      }
    }
    __device__ __forceinline__ void expand(const Shifts& s, uint32_t (&a)[kBatch * kSteps][4]) const {
#pragma unroll
      for (int k = 0; k < 4 * kBatch; k += 2) {
        const uint32_t scales = scale[k] | scale[k + 1] << 16,
                       factor = kWindow ? window_factor(scales) : entry_factor(scales);
#pragma unroll
        for (int i = 0; i < 2 * kSteps; ++i) {
          uint32_t& to = a[k / 4 * kSteps + i / 2][i % 2 + k % 4];
          if constexpr (kWindow) {
            to = window_pair(word[k][i / 4], word[k + 1][i / 4], i % 4, factor);
          } else {
            to = entry_pair(__byte_perm(word[k][0], word[k + 1][0], i < 4 ? 0x5410 : 0x7632), i % 4, factor, s);
          }
        }
      }
    }
  };

  // Sums of the keys of one tile. place: which 2 kSteps channels of the warpgroup's are the lane's.
  template <bool kWindow>
  __device__ __forceinline__ static void multiply(const uint8_t* slot, int place, int scale_at, int quad,
                                                  uint64_t probabilities, const Shifts& s,
                                                  float (&acc)[kSteps][kHeads / 2],
                                                  uint32_t (&a)[2][kBatch * kSteps][4]) {
    constexpr int kBatches = kTile / 16 / kBatch;
    static_assert(kBatches % 2 == 0);
    Raw<kWindow> now, next;
    const uint8_t* rows = slot + quad * kRow<kWindow>;
    now.read(rows, place, scale_at);
#pragma unroll
    for (int j = 0; j < kBatches; ++j) {
      if (j + 1 < kBatches) next.read(rows + 16 * kBatch * (j + 1) * kRow<kWindow>, place, scale_at);
      now.expand(s, a[j % 2]);
      wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBatch * kSteps; ++m) {
        wgmma_bf16<kHeads>(acc[m % kSteps], a[j % 2][m], probabilities + (j * kBatch + m / kSteps) * (2 * kCore / 16),
                           true);
      }
      wgmma_commit();
      wgmma_wait<1>();
      keep_alive(a[(j + 1) % 2]);
      now = next;
    }
  }
};

}  // namespace deepinfer::ops::cuda
