// A thread's share of a 16-row (mma) or 64-row (wgmma) x 128-column weight tile: loading it as stored, and expanding it
// to the registers of the A operand.
//
// Lane l holds rows l / 4 and l / 4 + 8 of its warp's 16 and 32 columns of the chunk, in 16-byte vectors so placed that
// the four lanes of a row read whole sectors. Step j of 8 multiplies four of the 32, packed_column() says which: the
// order in which the cheapest instructions unpack each format. Packed activations (pack.cu) hold their columns in the
// same order, so no lane exchanges data.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/linear.h"

namespace deepinfer::ops::cuda {

__device__ __forceinline__ uint32_t scale_pair(uint32_t bits, uint32_t factor) {
  __nv_bfloat162 v = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&bits), *reinterpret_cast<__nv_bfloat162*>(&factor));
  return *reinterpret_cast<uint32_t*>(&v);
}

// Word `i` of four.
__device__ __forceinline__ uint32_t word_of(const uint4& u, int i) {
  return i == 0 ? u.x : i == 1 ? u.y : i == 2 ? u.z : u.w;
}

// Left shifts as multiplications by numbers that the compiler does not know: they go to the multipliers, while the
// logic unit, which expansion keeps busiest, is left with the masks.
struct Shifts {
  uint32_t by2 = 1 << 2, by4 = 1 << 4, by6 = 1 << 6, by8 = 1 << 8, by12 = 1 << 12;
};

// kVectors: 16-byte vectors a row; kVectorStep: bytes between a lane's vectors in a row; kRowBytes: bytes of a chunk in
// a row; kScaleRows: weight rows that share a scale. expand(v, j, f, shifts, a): the A registers of step j from the
// vectors v[row half][kVectors]; f: factors() of the chunk's scales.
template <WeightFormat kFormat>
struct Fragment;

// Codes spread to exponent and mantissa fields are the value times 2^-120 (FP8) or 2^-126 (FP4); the factor undoes
// that.
// FP8 weights lie row by row as published, but the bits of each word of four codes (arrange_fp8(), linear.h) are where
// few shifts bring them to the fields of bf16 (bits 15 and 10 .. 4: s e3 .. e0 m2 .. m0). Codes 0 and 2, in the low and
// in the high half: in place. Codes 1 and 3: s, e0 and m four to the right of their fields, e3 .. e1 four to the left.
//   bit    15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
//   code    0  1  1  1  1  0  0  0  0  0  0  0  1  1  1  1
//   part    s e3 e2 e1  s e3 e2 e1 e0 m2 m1 m0 e0 m2 m1 m0
__host__ __device__ constexpr uint32_t spread_fp8(uint32_t word) {
  constexpr int kPlace[2][8] = {{4, 5, 6, 7, 8, 9, 10, 15}, {0, 1, 2, 3, 12, 13, 14, 11}};  // of bits m0 .. s
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    for (int bit = 0; bit < 8; ++bit) out |= (word >> (8 * i + bit) & 1) << (kPlace[i % 2][bit] + i / 2 * 16);
  }
  return out;
}

template <>
struct Fragment<WeightFormat::kFp8> {
  static constexpr int kVectors = 2, kVectorStep = 64, kRowBytes = 128, kScaleRows = 32, kFactors = 2;

  // Columns 64 v + 16 quad ..: scale 2 v + quad / 2 of the chunk's four, both rows alike.
  __device__ __forceinline__ static void factors(uint32_t scales, uint32_t, int quad, uint32_t (&f)[kFactors]) {
    f[0] = __byte_perm(scales, 0, 0x4440 + quad / 2) * 0x00800080u + 120 * 0x00800080u;
    f[1] = __byte_perm(scales, 0, 0x4442 + quad / 2) * 0x00800080u + 120 * 0x00800080u;
  }
  __device__ __forceinline__ static void expand(const uint4 (&v)[2][kVectors], int j, const uint32_t (&f)[kFactors],
                                                const Shifts& s, uint32_t (&a)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = word_of(v[h][j / 4], j % 4);
      a[h] = scale_pair(word & 0x87f087f0u, f[j / 4]);
      a[2 + h] = scale_pair(((word * s.by4) & 0x80f080f0u) | ((word >> 4) & 0x07000700u), f[j / 4]);
    }
  }
};

// FP4 weights lie in tiles of 16 rows x 128 columns (arrange_fp4(), linear.h): 16 x 64 bytes of codes, then four scales
// a row; the tiles of 32 rows side by side. A word holds 8 codes; those of columns b and b + 4 have their bits in the
// low and in the high half, where few shifts bring them to the fields of bf16 (bits 15, 8, 7, 6: s e e' m). Code 0: all
// in place but m; codes 1 and 2: two and six to the right; code 3: rotated, so that a half holds the other one's s.
//   bit    15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
//   code    0  0  1  3  3  3  2  0  0  1  1  1  3  2  2  2
//   part    s  m  s  e  e' m  s  e  e' e  e' m  s  e  e' m
inline constexpr int kFp4TileBytes = 16 * (64 + 4);

// Where the tile of rows 16 block .. begins.
__host__ __device__ constexpr int64_t fp4_tile(int block, int chunk, int chunks) {
  return (static_cast<int64_t>(block / 2) * chunks + chunk) * 2 * kFp4TileBytes + block % 2 * kFp4TileBytes;
}

// The bits of a word of 8 codes as published (low nibble first), so placed.
__host__ __device__ constexpr uint32_t spread_fp4(uint32_t word) {
  // Of bits m, e', e, s; code 3's s is beyond its half.
  constexpr int kPlace[4][4] = {{14, 7, 8, 15}, {4, 5, 6, 13}, {0, 1, 2, 9}, {10, 11, 12, 3 + 16}};
  uint32_t out = 0;
  for (int i = 0; i < 8; ++i) {
    for (int bit = 0; bit < 4; ++bit) out |= (word >> (4 * i + bit) & 1) << ((kPlace[i % 4][bit] + i / 4 * 16) % 32);
  }
  return out;
}

template <>
struct Fragment<WeightFormat::kFp4> {
  static constexpr int kVectors = 1, kVectorStep = 0, kRowBytes = 64, kScaleRows = 1, kFactors = 2;

  // Columns 32 quad .. + 31: scale `quad`, one a row.
  __device__ __forceinline__ static void factors(uint32_t scales0, uint32_t scales1, int quad,
                                                 uint32_t (&f)[kFactors]) {
    f[0] = __byte_perm(scales0, 0, 0x4440 + quad) * 0x00800080u + 126 * 0x00800080u;
    f[1] = __byte_perm(scales1, 0, 0x4440 + quad) * 0x00800080u + 126 * 0x00800080u;
  }
  __device__ __forceinline__ static void expand(const uint4 (&v)[2][kVectors], int j, const uint32_t (&f)[kFactors],
                                                const Shifts& s, uint32_t (&a)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = word_of(v[h][0], j / 2);
      if (j % 2 == 0) {
        a[h] = scale_pair((word & 0x81808180u) | ((word >> 8) & 0x00400040u), f[h]);
        a[2 + h] = scale_pair((word * s.by2) & 0x81c081c0u, f[h]);
      } else {
        a[h] = scale_pair((word * s.by6) & 0x81c081c0u, f[h]);
        a[2 + h] = scale_pair(__funnelshift_r(word, word, 4) & 0x81c081c0u, f[h]);
      }
    }
  }
};

// FP4 records of the KV memory: words as published.
struct Fp4Record {
  __device__ __forceinline__ static void expand(const uint4 (&v)[2][1], int j, const uint32_t (&f)[2], const Shifts& s,
                                                uint32_t (&a)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = word_of(v[h][0], j / 2);
      const uint32_t low = j % 2 == 0 ? word * s.by6 : word >> 2, high = j % 2 == 0 ? word * s.by2 : word >> 6;
      const uint32_t low_sign = j % 2 == 0 ? word * s.by12 : word * s.by4, high_sign = j % 2 == 0 ? word * s.by8 : word;
      a[h] = scale_pair((low_sign & 0x80008000u) | (low & 0x01c001c0u), f[h]);
      a[2 + h] = scale_pair((high_sign & 0x80008000u) | (high & 0x01c001c0u), f[h]);
    }
  }
};

template <>
struct Fragment<WeightFormat::kBf16> {
  static constexpr int kVectors = 4, kVectorStep = 64, kRowBytes = 256, kScaleRows = 0, kFactors = 1;

  __device__ __forceinline__ static void factors(uint32_t, uint32_t, int, uint32_t (&)[kFactors]) {}
  __device__ __forceinline__ static void expand(const uint4 (&v)[2][kVectors], int j, const uint32_t (&)[kFactors],
                                                const Shifts&, uint32_t (&a)[4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 u = v[h][j / 2];
      a[h] = j % 2 ? u.z : u.x;
      a[2 + h] = j % 2 ? u.w : u.y;
    }
  }
};

// The column of a 128-column chunk that lane `quad` of a row meets in half `half` of register pair `e` (a[0], a[1]: 0;
// a[2], a[3]: 1) of step j.
__host__ __device__ constexpr int packed_column(WeightFormat format, int quad, int j, int e, int half) {
  if (format == WeightFormat::kFp8) return 64 * (j / 4) + 16 * quad + 4 * (j % 4) + e + 2 * half;
  if (format == WeightFormat::kFp4) return 32 * quad + 8 * (j / 2) + 2 * (j % 2) + e + 4 * half;
  return 32 * (j / 2) + 8 * quad + 4 * (j % 2) + 2 * e + half;
}

// Addresses of a lane's two rows in one matrix. Rows beyond the last read the last: their sums are thrown away.
template <WeightFormat kFormat>
struct Rows16 {
  using F = Fragment<kFormat>;
  const uint8_t* code[2];
  const uint8_t* scale[2];

  __device__ __forceinline__ void set(const uint8_t* codes, const uint8_t* scales, int n, int k, int row, int quad) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t r = min(row + 8 * h, n - 1);
      code[h] = codes + r * (k / kChunk) * F::kRowBytes + quad * 16;
      if constexpr (F::kScaleRows > 0) scale[h] = scales + r / F::kScaleRows * (k / 32);
    }
  }
};

}  // namespace deepinfer::ops::cuda
