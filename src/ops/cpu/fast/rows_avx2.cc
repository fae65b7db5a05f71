// Activations to packed bf16 rows with AVX2 (see ORDER.md).
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/fast/avx2.h"
#include "ops/cpu/fast/simd_avx2.h"
// Uses the lanes above.
#include "ops/cpu/fast/rows_body.h"

namespace deepinfer::ops::cpu::fast {
namespace {

inline __m256i magnitude(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff)); }
inline __m256i load(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

inline float largest(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

// FQ8 of 32 channels, as fp32 bits in place; the steps are those of rows_avx512.cc.
void quantise_group(uint32_t* x) {
  __m256 top = _mm256_set1_ps(1e-4f);
  for (int i = 0; i < 32; i += 8) top = _mm256_max_ps(_mm256_castsi256_ps(magnitude(load(x + i))), top);
  const float t = largest(top) * (1.0f / 448);
  uint32_t bits;
  std::memcpy(&bits, &t, sizeof bits);
  uint32_t code = (bits >> 23) + ((bits & 0x7fffffu) != 0);
  if (code > 254) code = 254;
  const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>((254 - code) << 23))),
               scale = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(code << 23)));
  for (int i = 0; i < 32; i += 8) {
    const __m256i v = load(x + i), sign = _mm256_andnot_si256(_mm256_set1_epi32(0x7fffffff), v);
    const __m256 a = _mm256_mul_ps(_mm256_castsi256_ps(magnitude(v)), inverse);
    const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q), held = _mm256_min_ps(a, _mm256_set1_ps(448.0f));
    const __m256 shift = _mm256_set1_ps(16384.0f), small = _mm256_sub_ps(_mm256_add_ps(held, shift), shift);
    const __m256i h = _mm256_castps_si256(held), odd = _mm256_and_si256(_mm256_srli_epi32(h, 20), _mm256_set1_epi32(1));
    const __m256i normal = _mm256_and_si256(_mm256_add_epi32(h, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))),
                                            _mm256_set1_epi32(static_cast<int>(0xfff00000)));
    const __m256 tiny = _mm256_cmp_ps(held, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    __m256 value = _mm256_mul_ps(_mm256_blendv_ps(_mm256_castsi256_ps(normal), small, tiny), scale);
    value = _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x + i), _mm256_or_si256(_mm256_castps_si256(value), sign));
  }
}

}  // namespace

namespace avx2 {

void pack(const float* x, int64_t k, Order order, bool quantise, uint16_t* out, int64_t step) {
  for (int64_t k0 = 0; k0 < k; k0 += kChunk) {
    uint32_t v[kChunk] = {};
    std::memcpy(v, x + k0, (k - k0 < kChunk ? k - k0 : kChunk) * sizeof *v);
    if (quantise) {
      quantise_group(v);
      quantise_group(v + 32);
    }
    uint16_t o[kChunk];
    switch (order) {
      case Order::kNatural:
        for (int i = 0; i < 64; ++i) o[i] = static_cast<uint16_t>(v[i] >> 16);
        break;
      case Order::kFp8:
        for (int i = 0; i < 64; ++i) o[i] = static_cast<uint16_t>(v[(i / 8 % 4 * 2 + i / 32) * 8 + i % 8] >> 16);
        break;
      case Order::kFp4:
        for (int i = 0; i < 64; ++i) o[i] = static_cast<uint16_t>(v[i % 32 * 2 + i / 32] >> 16);
        break;
    }
    std::memcpy(out + k0 / kStep * step, o, kStep * sizeof *o);
    std::memcpy(out + (k0 / kStep + 1) * step, o + kStep, kStep * sizeof *o);
  }
}

void swiglu(const float* gate, const float* up, int64_t n, float limit, float weight, float* out) {
  swiglu_row(gate, up, n, limit, weight, out);
}

void softmax(const SoftmaxCall& call) { softmax_lanes(call); }
void divide(float* x, int64_t n, float by) { divide_row(x, n, by); }
void fq4i(float* query, int64_t groups) { fq4i_row(query, groups); }
void query_codes(const float* query, int64_t groups, int8_t* codes, float* factors, int32_t* twelve) {
  query_codes_row(query, groups, codes, factors, twelve);
}
void rotate(float* x, int64_t n, int64_t d, const float* cos, const float* sin, int64_t half, bool inverse) {
  rotate_heads(x, n, d, cos, sin, half, inverse);
}
void engram_sums(const float* x, const float* k, const double* qk, int64_t n, double* out) {
  engram_sums_row(x, k, qk, n, out);
}
void add(float* x, const float* v, int64_t n) { add_row(x, v, n); }
void add_gated(float* x, const float* v, float gate, int64_t n) { add_gated_row(x, v, gate, n); }
void mix_finish(const MixCall* calls, int64_t n) { mix_finish_rows(calls, n); }
void collapse_norm(const float* x, const float* pre, int64_t streams, int64_t n, const float* w, float eps, float* y,
                   float* out) {
  collapse_norm_row(x, pre, streams, n, w, eps, y, out);
}
void norm(const float* x, const float* w, int64_t n, float eps, float* out) { norm_row(x, w, n, eps, out); }
void expand(float* x, const float* y, const float* post, const float* comb, int64_t streams, int64_t n) {
  expand_row(x, y, post, comb, streams, n);
}
void mean(const float* x, int64_t streams, int64_t n, float* out) { mean_row(x, streams, n, out); }
void combine(const float* shared, const float* routed, int64_t k, int64_t n, float* out) {
  combine_row(shared, routed, k, n, out);
}

}  // namespace avx2
}  // namespace deepinfer::ops::cpu::fast
