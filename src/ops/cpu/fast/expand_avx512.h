// FP8 and FP4 codes to bf16 in AVX-512 registers, by table look-ups. Only for files compiled with AVX-512 VBMI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace deepinfer::ops::cpu::fast {
namespace {

using Words = __m512i;  // 32 bf16

constexpr int kScaleBias = 127, kScaleLimit = 60;

// bf16 of the 128 magnitudes of e4m3, high and low bytes apart. NaN stays NaN.
struct E4m3Tables {
  alignas(64) uint8_t high[128], low[128];
};

constexpr E4m3Tables make_e4m3_tables() {
  E4m3Tables t{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> 3, mantissa = code & 7, value = 0;
    if (code == 0x7f) {
      value = 0x7fc0;
    } else if (exponent > 0) {
      value = (exponent + 120) << 7 | mantissa << 4;
    } else if (mantissa > 0) {  // mantissa x 2^-9
      int shift = 0;
      while ((mantissa << shift & 8) == 0) ++shift;
      value = (121 - shift) << 7 | (mantissa << shift & 7) << 4;
    }
    t.high[code] = static_cast<uint8_t>(value >> 8);
    t.low[code] = static_cast<uint8_t>(value & 255);
  }
  return t;
}

constexpr E4m3Tables kE4m3 = make_e4m3_tables();

// Byte 0 of every broadcast pair to the words of the lower half, byte 1 to those of the upper.
inline __m512i make_spread() {
  return _mm512_inserti64x4(_mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                            _mm256_set1_epi16(static_cast<int16_t>(0x8001)), 1);
}

// The two clamped scale bytes of a chunk in the exponent's place of each half's words.
[[gnu::always_inline]] inline __m512i scale_words(const uint8_t* scales, __m512i spread) {
  uint16_t s;
  std::memcpy(&s, scales, sizeof s);
  return _mm512_slli_epi16(_mm512_shuffle_epi8(_mm512_set1_epi16(static_cast<int16_t>(s)), spread), 7);
}

struct Fp8Expander {
  __m512i high[2], low[2], sign = _mm512_set1_epi8(static_cast<char>(0x80));

  Fp8Expander() {
    for (int i = 0; i < 2; ++i) {
      high[i] = _mm512_load_si512(kE4m3.high + 64 * i);
      low[i] = _mm512_load_si512(kE4m3.low + 64 * i);
    }
  }
  // Values x 2^(scale - 127) for the two clamped scale bytes of a chunk. Exponents of e4m3 leave room for every such
  // scale.
  [[gnu::always_inline]] static Words scaled(Words x, __m512i exponent) {
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)), one = _mm512_set1_epi16(1);
    // Neither 0, which has no exponent, nor NaN.
    const __mmask32 number = _mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, one), _mm512_set1_epi16(0x7fc0 - 1));
    return _mm512_mask_add_epi16(x, number, x, exponent);
  }
  // 64 codes; a, b: their values in Order::kFp8.
  [[gnu::always_inline]] void expand(__m512i codes, Words& a, Words& b) const {
    __m512i h = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    const __m512i l = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    h = _mm512_ternarylogic_epi32(h, codes, sign, 0xf8);  // h | (codes & sign)
    a = _mm512_unpacklo_epi8(l, h);
    b = _mm512_unpackhi_epi8(l, h);
  }
};

// Clamped scale bytes of a chunk of 64 columns: s[0] for the first 32, s[1] for the others.
inline uint32_t clamp_scale(uint32_t s) {
  constexpr uint32_t kLow = kScaleBias - kScaleLimit, kHigh = kScaleBias + kScaleLimit;
  return s < kLow ? kLow : s > kHigh ? kHigh : s;
}

struct E2m1Table {
  alignas(64) int16_t words[32];
  uint32_t nonzero;
};

constexpr E2m1Table make_e2m1_table() {
  constexpr int kMagnitude[8] = {0,        126 << 7,        127 << 7, (127 << 7) + 64,
                                 128 << 7, (128 << 7) + 64, 129 << 7, (129 << 7) + 64};
  E2m1Table t{};
  for (int i = 0; i < 32; ++i) {
    const int magnitude = kMagnitude[i & 7], sign = (i & 8) << 12;
    t.words[i] = static_cast<int16_t>(magnitude == 0 ? sign : (magnitude - (kScaleBias << 7)) ^ sign);
    t.nonzero |= static_cast<uint32_t>(magnitude != 0) << i;
  }
  return t;
}

constexpr E2m1Table kE2m1 = make_e2m1_table();

struct Fp4Expander {
  // Words 0..15 for the lower 32 columns, 16..31 for the upper: magnitude bits of value x 2^-127, without zeros.
  __m512i base, half, spread;
  __mmask32 nonzero;

  Fp4Expander() {
    base = _mm512_load_si512(kE2m1.words);
    nonzero = kE2m1.nonzero;
    half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    spread = make_spread();
  }
  // 32 bytes of codes; scales: two clamped bytes of the chunk.
  [[gnu::always_inline]] void expand(__m256i codes, const uint8_t* scales, Words& a, Words& b) const {
    const __m512i table = _mm512_mask_add_epi16(base, nonzero, base, scale_words(scales, spread));
    const __m512i pairs = _mm512_cvtepu8_epi16(codes), mask = _mm512_set1_epi16(15);
    a = _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(pairs, mask, half, 0xea), table);  // (pairs & mask) | half
    b = _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(pairs, 4), half), table);
  }
};

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
