// Sixteen fp32 lanes in two registers, for rows_body.h. Only for files compiled with AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace deepinfer::ops::cpu::fast {
namespace {

struct F16 {
  __m256 a, b;

  static F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F16 load(const float* p, int64_t n) {
    float t[16] = {};
    std::memcpy(t, p, (n < 16 ? n : 16) * sizeof *t);
    return load(t);
  }
  static F16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  void store(float* p, int64_t n) const {
    float t[16];
    store(t);
    std::memcpy(p, t, (n < 16 ? n : 16) * sizeof *t);
  }
  // The upper halves of the lanes, as 16 words.
  void store_words(uint16_t* p) const {
    const __m256i x = _mm256_srli_epi32(_mm256_castps_si256(a), 16), y = _mm256_srli_epi32(_mm256_castps_si256(b), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8));
  }
};

inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// The second operand where one is NaN.
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 nearest(F16 x) { return {_mm256_round_ps(x.a, 0), _mm256_round_ps(x.b, 0)}; }
// p where x < y, else q.
inline F16 where_less(F16 x, F16 y, F16 p, F16 q) {
  return {_mm256_blendv_ps(q.a, p.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(q.b, p.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
// x 2^n for whole n that keep the exponent in range.
inline F16 scale_by_power(F16 x, F16 n) {
  const auto half = [](__m256 v, __m256 p) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_cvtps_epi32(p), 23)));
  };
  return {half(x.a, n.a), half(x.b, n.b)};
}
inline F16 to_bf16(F16 x) {
  const auto half = [](__m256 v) {
    const __m256i b = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_blendv_epi8(r, _mm256_or_si256(b, _mm256_set1_epi32(0x400000)), nan),
                         _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  };
  return {half(x.a), half(x.b)};
}
// Lane by lane the pair (bf16(even), bf16(odd)).
inline void store_pairs(F16 even, F16 odd, uint32_t* p) {
  const F16 e = to_bf16(even), o = to_bf16(odd);
  const auto half = [](__m256 low, __m256 high) {
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(low), 16), _mm256_castps_si256(high));
  };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half(e.a, o.a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), half(e.b, o.b));
}
// Lanes (i, i + 8), (i, i + 4), (i, i + 2), (0, 1).
inline float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 v = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
// Neighbours exchanged: (1, 0, 3, 2, ..).
inline F16 swap_pairs(F16 x) { return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)}; }
// Eight values, each twice.
inline F16 load_twice(const float* p) {
  const __m256 v = _mm256_loadu_ps(p);
  return {_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
// The signs of the even lanes, or of the odd ones, turned.
inline F16 negate_lanes(F16 x, bool odd) {
  const __m256 sign =
      _mm256_castsi256_ps(_mm256_set1_epi64x(odd ? static_cast<int64_t>(0x8000000000000000) : 0x80000000));
  return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}
inline F16 magnitude(F16 x) {
  const __m256 bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, bits), _mm256_and_ps(x.b, bits)};
}
inline float largest(F16 x) {
  const __m256 m = _mm256_max_ps(x.a, x.b);
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
// Whole numbers of a byte's size, as bytes.
inline void store_bytes(F16 x, int8_t* p) {
  int32_t n[16];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(n), _mm256_cvtps_epi32(x.a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(n + 8), _mm256_cvtps_epi32(x.b));
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(n[i]);
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
