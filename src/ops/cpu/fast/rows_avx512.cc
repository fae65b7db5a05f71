// Activations to packed bf16 rows, and the pair sums of attention, with AVX-512 (see ORDER.md).
#include <immintrin.h>

#include "ops/cpu/fast/avx512.h"
#include "ops/cpu/fast/simd_avx512.h"
// Uses the lanes above.
#include "ops/cpu/fast/rows_body.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int kOuterRows = 6, kOuterGroups = 4;

inline __m512i magnitude(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi32(0x7fffffff)); }

// FQ8 of 32 channels (spec/model.md 4.2), as fp32 bits.
inline void quantise_group(__m512i& a, __m512i& b) {
  const __m512 floor = _mm512_set1_ps(1e-4f);
  // A NaN as first operand leaves the second.
  const __m512 top =
      _mm512_max_ps(_mm512_castsi512_ps(magnitude(a)), _mm512_max_ps(_mm512_castsi512_ps(magnitude(b)), floor));
  const float t = _mm512_reduce_max_ps(top) * (1.0f / 448);
  const auto bits = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(t))));
  uint32_t code = (bits >> 23) + ((bits & 0x7fffffu) != 0);
  if (code > 254) code = 254;
  const __m512 inverse = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>((254 - code) << 23))),
               scale = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(code << 23)));
  const auto one = [&](__m512i x) {
    const __m512i sign = _mm512_andnot_si512(_mm512_set1_epi32(0x7fffffff), x);
    const __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(magnitude(x)), inverse);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512 held = _mm512_min_ps(v, _mm512_set1_ps(448.0f));
    // Below 2^-6 codes are multiples of 2^-9, the last place of 2^14; above, three bits of mantissa stay.
    const __m512 shift = _mm512_set1_ps(16384.0f);
    const __m512 small = _mm512_sub_ps(_mm512_add_ps(held, shift), shift);
    const __m512i h = _mm512_castps_si512(held);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(h, 20), _mm512_set1_epi32(1));
    const __m512i normal = _mm512_and_si512(_mm512_add_epi32(h, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))),
                                            _mm512_set1_epi32(static_cast<int>(0xfff00000)));
    const __mmask16 tiny = _mm512_cmp_ps_mask(held, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
    const __m512 code_value = _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), tiny, small);
    __m512i value = _mm512_castps_si512(_mm512_mul_ps(code_value, scale));
    value = _mm512_mask_mov_epi32(value, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_or_si512(value, sign);
  };
  a = one(a);
  b = one(b);
}

// The upper halves of 32 words.
inline __m512i to_words(__m512i a, __m512i b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16))),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)), 1);
}

struct OrderIndex {
  alignas(64) uint16_t words[3][64];
};

constexpr OrderIndex make_order_index() {
  OrderIndex t{};
  for (int i = 0; i < 64; ++i) {
    t.words[static_cast<int>(Order::kNatural)][i] = static_cast<uint16_t>(i);
    t.words[static_cast<int>(Order::kFp8)][i] = static_cast<uint16_t>((i / 8 % 4 * 2 + i / 32) * 8 + i % 8);
    t.words[static_cast<int>(Order::kFp4)][i] = static_cast<uint16_t>(i % 32 * 2 + i / 32);
  }
  return t;
}

constexpr OrderIndex kOrderIndex = make_order_index();

template <int M, int G>
void outer_block(const OuterCall& o, int64_t m, int64_t lane) {
  __m512 acc[M][G];
  for (int i = 0; i < M; ++i) {
    for (int g = 0; g < G; ++g) acc[i][g] = _mm512_setzero_ps();
  }
  const uint32_t* a = o.a + m * o.a_row;
  const uint32_t* b = o.b + lane;
  for (int64_t p = 0; p < o.pairs; ++p, a += o.a_step, b += o.b_step) {
    __m512i v[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) v[g] = _mm512_loadu_si512(b + g * 16);
#pragma GCC unroll 12
    for (int i = 0; i < M; ++i) {
      const __m512i ai = _mm512_set1_epi32(static_cast<int>(a[i * o.a_row]));
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[i][g] = _mm512_dpbf16_ps(acc[i][g], (__m512bh)v[g], (__m512bh)ai);
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int g = 0; g < G; ++g) _mm512_storeu_ps(o.c + (m + i) * o.ldc + lane + g * 16, acc[i][g]);
  }
}

template <int G>
void outer_lanes(const OuterCall& o, int64_t lane) {
  int64_t m = 0;
  if constexpr (G == 1) {  // six sums would wait for each other
    for (; m + 2 * kOuterRows <= o.m; m += 2 * kOuterRows) outer_block<2 * kOuterRows, G>(o, m, lane);
  }
  for (; m + kOuterRows <= o.m; m += kOuterRows) outer_block<kOuterRows, G>(o, m, lane);
  switch (o.m - m) {
    case 5: return outer_block<5, G>(o, m, lane);
    case 4: return outer_block<4, G>(o, m, lane);
    case 3: return outer_block<3, G>(o, m, lane);
    case 2: return outer_block<2, G>(o, m, lane);
    case 1: return outer_block<1, G>(o, m, lane);
    default: return;
  }
}

}  // namespace

namespace avx512 {

void pack(const float* x, int64_t k, Order order, bool quantise, uint16_t* out, int64_t step) {
  const uint16_t* index = kOrderIndex.words[static_cast<int>(order)];
  const __m512i low = _mm512_load_si512(index), high = _mm512_load_si512(index + 32);
  for (int64_t k0 = 0; k0 < k; k0 += kChunk) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t left = k - k0 - i * 16;
      const __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1 << left) - 1);
      v[i] = _mm512_maskz_loadu_epi32(mask, x + k0 + i * 16);
    }
    if (quantise) {
      quantise_group(v[0], v[1]);
      quantise_group(v[2], v[3]);
    }
    const __m512i a = to_words(v[0], v[1]), b = to_words(v[2], v[3]);
    uint16_t* to = out + k0 / kStep * step;
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(to + step, _mm512_permutex2var_epi16(a, high, b));
  }
}

void outer(const OuterCall& o) {
  int64_t lane = 0;
  for (; lane + 16 * kOuterGroups <= o.lanes; lane += 16 * kOuterGroups) outer_lanes<kOuterGroups>(o, lane);
  if (lane + 32 <= o.lanes) {
    outer_lanes<2>(o, lane);
    lane += 32;
  }
  if (lane + 16 <= o.lanes) outer_lanes<1>(o, lane);
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

}  // namespace avx512
}  // namespace deepinfer::ops::cpu::fast
