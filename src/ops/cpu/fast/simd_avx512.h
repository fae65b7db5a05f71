// Sixteen fp32 lanes in one register, for rows_body.h. Only for files compiled with AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace deepinfer::ops::cpu::fast {
namespace {

struct F16 {
  __m512 v;

  static F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F16 load(const float* p, int64_t n) {
    return {_mm512_maskz_loadu_ps(n >= 16 ? 0xffff : static_cast<__mmask16>((1 << n) - 1), p)};
  }
  static F16 all(float x) { return {_mm512_set1_ps(x)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, int64_t n) const {
    _mm512_mask_storeu_ps(p, n >= 16 ? 0xffff : static_cast<__mmask16>((1 << n) - 1), v);
  }
  // The upper halves of the lanes, as 16 words.
  void store_words(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)));
  }
};

inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where one is NaN.
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 nearest(F16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
// a where x < y, else b.
inline F16 where_less(F16 x, F16 y, F16 a, F16 b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
// x 2^n for whole n that keep the exponent in range.
inline F16 scale_by_power(F16 x, F16 n) {
  return {
      _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23)))};
}
inline F16 to_bf16(F16 x) {
  const __m512i b = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
  const __m512i r = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_or_epi32(r, nan, b, _mm512_set1_epi32(0x400000)),
                                               _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
// Lane by lane the pair (bf16(even), bf16(odd)).
inline void store_pairs(F16 even, F16 odd, uint32_t* p) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(to_bf16(even).v), 16);
  _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_castps_si512(to_bf16(odd).v)));
}
// Lanes (i, i + 8), (i, i + 4), (i, i + 2), (0, 1).
inline float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 v = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
// Neighbours exchanged: (1, 0, 3, 2, ..).
inline F16 swap_pairs(F16 x) { return {_mm512_permute_ps(x.v, 0xb1)}; }
// Eight values, each twice.
inline F16 load_twice(const float* p) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
// The signs of the even lanes, or of the odd ones, turned.
inline F16 negate_lanes(F16 x, bool odd) {
  const __m512i sign = _mm512_set1_epi64(odd ? static_cast<int64_t>(0x8000000000000000) : 0x80000000);
  return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x.v), sign))};
}
inline F16 magnitude(F16 x) { return {_mm512_abs_ps(x.v)}; }
inline float largest(F16 x) { return _mm512_reduce_max_ps(x.v); }
// Whole numbers of a byte's size, as bytes.
inline void store_bytes(F16 x, int8_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
