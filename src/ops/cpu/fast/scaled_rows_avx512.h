// What the linear layers with AVX-512 share: activations times the scales of FP8 blocks, and outputs to bf16. Only for
// files compiled with AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/expand_avx512.h"
#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// x 2^(scale - 127) on words of bf16: what falls below the least exponent becomes (or counts as) zero.
struct WordScale {
  __m512i up, down;  // at most one of them is not zero in a lane
  // s0 for the lower half, s1 for the upper.
  [[gnu::always_inline]] static WordScale make(uint8_t s0, uint8_t s1, __m512i spread) {
    const __m512i bytes = _mm512_set1_epi16(static_cast<int16_t>(s1 << 8 | s0)), bias = _mm512_set1_epi16(kScaleBias);
    const __m512i limit = _mm512_set1_epi16(kScaleLimit), zero = _mm512_setzero_si512();
    const __m512i d = _mm512_sub_epi16(_mm512_shuffle_epi8(bytes, spread), bias);
    const auto side = [&](__m512i x) {
      return _mm512_slli_epi16(_mm512_min_epi16(_mm512_max_epi16(x, zero), limit), 7);
    };
    return {side(d), side(_mm512_sub_epi16(zero, d))};
  }
  [[gnu::always_inline]] Words apply(Words x) const {
    const __m512i magnitude_bits = _mm512_set1_epi16(0x7fff);
    const __m512i m = _mm512_and_si512(x, magnitude_bits);
    __m512i y = _mm512_mask_add_epi16(m, _mm512_test_epi16_mask(x, magnitude_bits), m, up);
    y = _mm512_subs_epu16(y, down);
    return _mm512_ternarylogic_epi32(y, x, magnitude_bits, 0xf4);  // y | (x & ~magnitude_bits)
  }
};

// Activations of all rows times the scales of one row of FP8 blocks.
inline void scale_activations(const LinearCall& c, const uint8_t* scale, int64_t blocks, uint16_t* out, int64_t ldo) {
  const __m512i spread = make_spread();
  for (int64_t k = 0; k < blocks; k += 2) {
    const WordScale s = WordScale::make(scale[k], k + 1 < blocks ? scale[k + 1] : kScaleBias, spread);
    for (int64_t i = 0; i < c.x.n; ++i) {
      const uint16_t* from = c.x.words + i * c.x.ld + k * 32;
      uint16_t* to = out + i * ldo + k * 32;
      _mm512_storeu_si512(to, s.apply(_mm512_loadu_si512(from)));
      _mm512_storeu_si512(to + 32, s.apply(_mm512_loadu_si512(from + 32)));
    }
  }
}

// Whether every activation is 0 or so far from the ends of the exponents that a scale may be applied to it instead of
// to the weights: the products are the same numbers then.
inline bool may_be_scaled(const PackedRows& x) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), least = _mm512_set1_epi16((kScaleBias - kScaleLimit) << 7),
                span = _mm512_set1_epi16(2 * kScaleLimit << 7);
  for (int64_t i = 0; i < x.n; ++i) {
    for (int64_t k = 0; k < x.ld; k += kStep) {
      const __m512i m = _mm512_and_si512(_mm512_loadu_si512(x.row(i) + k), magnitude);
      const __mmask32 outside = _mm512_cmpge_epu16_mask(_mm512_sub_epi16(m, least), span);
      if (_mm512_mask_test_epi16_mask(outside, m, m) != 0) return false;
    }
  }
  return true;
}

inline __m512 round_to_bf16(__m512 v) {
  const __m512i b = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_or_epi32(rounded, nan, b, _mm512_set1_epi32(0x400000)),
                                              _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
