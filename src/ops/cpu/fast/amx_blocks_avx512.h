// Blocks of AMX's tiles in memory: sixteen rows of 32 words, 1 KiB. Only for files compiled with AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kBlock = 16;  // rows of a tile
constexpr int64_t kBlockWords = kBlock * kStep;
constexpr int64_t kLine = kStep * sizeof(uint16_t);  // bytes of a block's row
constexpr int64_t kGroupRows = 2 * kBlock;
static_assert(kGroupRows == kBlockRows);

// 16 x 16 dwords: dword j of row i becomes dword i of row j.
inline void turn(const __m512i* in, uint16_t* out) {
  __m512i t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      u[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
      u[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
    }
  }
  // u[4 a + b]: dword 4 q + b of rows 4 a .. 4 a + 3 in quarter q.
  for (int b = 0; b < 4; ++b) {
    const __m512i x = _mm512_shuffle_i32x4(u[b], u[4 + b], 0x88), y = _mm512_shuffle_i32x4(u[b], u[4 + b], 0xdd);
    const __m512i z = _mm512_shuffle_i32x4(u[8 + b], u[12 + b], 0x88),
                  v = _mm512_shuffle_i32x4(u[8 + b], u[12 + b], 0xdd);
    const __m512i even_low = _mm512_shuffle_i32x4(x, z, 0x88), even_high = _mm512_shuffle_i32x4(x, z, 0xdd);
    const __m512i odd_low = _mm512_shuffle_i32x4(y, v, 0x88), odd_high = _mm512_shuffle_i32x4(y, v, 0xdd);
    _mm512_store_si512(out + b * kStep, even_low);
    _mm512_store_si512(out + (4 + b) * kStep, odd_low);
    _mm512_store_si512(out + (8 + b) * kStep, even_high);
    _mm512_store_si512(out + (12 + b) * kStep, odd_high);
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
