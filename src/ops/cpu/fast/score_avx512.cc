// Index scores with AVX-512 VNNI: integer dot products of FP4 codes, bf16 chains of heads (spec/model.md 8.2).
#include <immintrin.h>

#include "ops/cpu/fast/avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kWordsOfGroup = kIndexGroup / 4;

// Rounded to odd: exact, or the neighbour whose last bit is set. A further rounding to bf16 is then as one rounding.
inline __m512 odd(__m512 up, __m512 down, __m512 cut) {
  const __mmask16 inexact = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(up), _mm512_castps_si512(down));
  const __m512i c = _mm512_castps_si512(cut);
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(c, inexact, c, _mm512_set1_epi32(1)));
}
inline __m512 fma_odd(__m512 a, __m512 b, __m512 c) {
  const __m512 up = _mm512_fmadd_round_ps(a, b, c, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC),
               down = _mm512_fmadd_round_ps(a, b, c, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
               cut = _mm512_fmadd_round_ps(a, b, c, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  return odd(up, down, cut);
}
inline __m512 add_odd(__m512 a, __m512 b) { return fma_odd(a, _mm512_set1_ps(1.0f), b); }

// To bf16; no NaN expected (a NaN stays one or becomes an infinity).
inline __m512 round_words(__m512 x) {
  const __m512i b = _mm512_castps_si512(x);
  const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
  const __m512i r = _mm512_add_epi32(b, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7fff)));
  return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

// Adds N heads from h on to their chains. fp32 dot products: exact group sums, groups in order.
template <int N>
[[gnu::always_inline]] inline void add_heads(const ScoreCall& c, int64_t h, int64_t groups, __m512* chain) {
  const __m512 zero = _mm512_setzero_ps();
  const int32_t* q[N];
  __m512 sum[N];
  for (int j = 0; j < N; ++j) {
    q[j] = reinterpret_cast<const int32_t*>(c.query + (h + j) * c.channels);
    sum[j] = zero;
  }
  for (int64_t g = 0; g < groups; ++g) {
    __m512i acc[N];
    // The codes are 12 too large, each.
    for (int j = 0; j < N; ++j) acc[j] = _mm512_set1_epi32(-c.twelve[(h + j) * groups + g]);
#pragma GCC unroll 8
    for (int64_t w = 0; w < kWordsOfGroup; ++w) {
      const __m512i codes = _mm512_loadu_si512(c.codes + (g * kWordsOfGroup + w) * kKeyLanes * 4);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j)
        acc[j] = _mm512_dpbusd_epi32(acc[j], codes, _mm512_set1_epi32(q[j][g * kWordsOfGroup + w]));
    }
    const __m512 factor = _mm512_loadu_ps(c.key_factors + g * kKeyLanes);
    for (int j = 0; j < N; ++j) {
      const __m512 exact = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[j]), factor);
      sum[j] = _mm512_fmadd_ps(exact, _mm512_set1_ps(c.factors[(h + j) * groups + g]), sum[j]);
    }
  }
  for (int j = 0; j < N; ++j) {
    const __m512 dot = round_words(_mm512_max_ps(sum[j], zero));
    chain[j] = round_words(fma_odd(dot, _mm512_set1_ps(c.weights[h + j]), chain[j]));
  }
}

// Adds N heads from place `at` of the list on to the bounds of all panels. G groups at once: enough sums for the
// latency.
template <int N, int G>
[[gnu::always_inline]] inline void add_reach(const ReachCall& c, int64_t at, int64_t groups, __m512* total) {
  const __m512 zero = _mm512_setzero_ps();
  const int32_t* q[N];
  int64_t first[N];
  __m512 sum[N][kReachPanels];
  for (int j = 0; j < N; ++j) {
    first[j] = c.heads[at + j] * groups;
    q[j] = reinterpret_cast<const int32_t*>(c.query + c.heads[at + j] * c.channels);
    for (int p = 0; p < kReachPanels; ++p) sum[j][p] = zero;
  }
  for (int64_t g = 0; g < groups; g += G) {
    __m512i acc[G][N][kReachPanels];
    for (int e = 0; e < G; ++e) {
      for (int j = 0; j < N; ++j) {
        for (int p = 0; p < kReachPanels; ++p) acc[e][j][p] = _mm512_set1_epi32(-c.twelve[first[j] + g + e]);
      }
    }
#pragma GCC unroll 8
    for (int64_t w = 0; w < kWordsOfGroup; ++w) {
#pragma GCC unroll 2
      for (int e = 0; e < G; ++e) {
        const int64_t at_word = (g + e) * kWordsOfGroup + w;
        const uint8_t* word = c.codes + at_word * kKeyLanes * 4;
        __m512i query[N];
        for (int j = 0; j < N; ++j) query[j] = _mm512_set1_epi32(q[j][at_word]);
#pragma GCC unroll 4
        for (int p = 0; p < kReachPanels; ++p) {
          const __m512i codes = _mm512_loadu_si512(word + p * c.channels * kKeyLanes);
          for (int j = 0; j < N; ++j) acc[e][j][p] = _mm512_dpbusd_epi32(acc[e][j][p], codes, query[j]);
        }
      }
    }
    for (int e = 0; e < G; ++e) {
      for (int p = 0; p < kReachPanels; ++p) {
        const __m512 factor = _mm512_loadu_ps(c.key_factors + (p * groups + g + e) * kKeyLanes);
        for (int j = 0; j < N; ++j) {
          const __m512 exact = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[e][j][p]), factor);
          sum[j][p] = _mm512_fmadd_ps(exact, _mm512_set1_ps(c.factors[first[j] + g + e]), sum[j][p]);
        }
      }
    }
  }
  for (int j = 0; j < N; ++j) {
    const __m512 weight = _mm512_set1_ps(c.weights[at + j]);
    for (int p = 0; p < kReachPanels; ++p) total[p] = _mm512_fmadd_ps(_mm512_max_ps(sum[j][p], zero), weight, total[p]);
  }
}

// All heads of the list.
template <int G>
void reach_of(const ReachCall& c, int64_t groups) {
  const __m512 zero = _mm512_setzero_ps();
  __m512 total[kReachPanels] = {zero, zero, zero, zero};
  int64_t at = 0;
  for (; at + 2 <= c.count; at += 2) add_reach<2, G>(c, at, groups, total);
  if (at < c.count) add_reach<1, G>(c, at, groups, total);
  for (int p = 0; p < kReachPanels; ++p) _mm512_storeu_ps(c.bounds + p * kKeyLanes, total[p]);
}

// Ascending with the score, in whole words; scores are bf16 values, zeros are equal. Missing lanes are 0, which no
// number has.
inline __m512i order_keys(const float* scores, int64_t left) {
  const auto words = [&](int64_t from) {
    const int64_t n = left - from;
    const __mmask16 mask = n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1 << n) - 1);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_maskz_loadu_epi32(mask, scores + from), 16));
  };
  const __mmask32 exist = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  __m512i w = _mm512_inserti64x4(_mm512_castsi256_si512(words(0)), words(16), 1);
  w = _mm512_mask_mov_epi16(w, _mm512_cmpeq_epi16_mask(w, sign), _mm512_setzero_si512());
  return _mm512_maskz_mov_epi16(exist, _mm512_xor_si512(w, _mm512_or_si512(_mm512_srai_epi16(w, 15), sign)));
}

// The scales of a group, a word for each key.
inline __m512i scales_of(const KeyPanel& p, int64_t g) {
  if (const int64_t bytes = p.keys * p.scale_ld; bytes <= 64) {
    const __m512i all = _mm512_maskz_loadu_epi8(~__mmask64{0} >> (64 - bytes), p.scales);
    const __m512i key = _mm512_min_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                         _mm512_set1_epi32(static_cast<int>(p.keys) - 1));
    const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(key, _mm512_set1_epi32(static_cast<int>(p.scale_ld))),
                                        _mm512_set1_epi32(static_cast<int>(g)));
    return _mm512_and_si512(_mm512_permutexvar_epi8(at, all), _mm512_set1_epi32(0xff));
  }
  alignas(64) int32_t scales[kKeyLanes];
  for (int64_t k = 0; k < kKeyLanes; ++k) scales[k] = p.scales[(k < p.keys ? k : p.keys - 1) * p.scale_ld + g];
  return _mm512_load_si512(scales);
}

}  // namespace

namespace avx512 {

// Bit by bit the largest order key that at least `keep` scores reach, then one pass that keeps what is above it and as
// many of its equals, the first ones, as are missing.
void best(const float* scores, int64_t n, int64_t keep, int32_t* out) {
  if (keep >= n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
    return;
  }
  const auto reach = [&](uint32_t least) {
    const __m512i t = _mm512_set1_epi16(static_cast<int16_t>(least));
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += 32)
      count += __builtin_popcount(_mm512_cmpge_epu16_mask(order_keys(scores + i, n - i), t));
    return count;
  };
  uint32_t last = 0;  // less than every key of a number
  int64_t reached = n;
  for (uint32_t bit = 0x8000; bit != 0 && reached != keep; bit >>= 1) {
    if (const int64_t count = reach(last | bit); count >= keep) {
      last |= bit;
      reached = count;
    }
  }
  int64_t equals = reached == keep ? n : keep - reach(last + 1);  // of them that are kept
  const __m512i t = _mm512_set1_epi16(static_cast<int16_t>(last));
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t i = 0, kept = 0; i < n && kept < keep; i += 32) {
    const __m512i keys = order_keys(scores + i, n - i);
    uint32_t equal = _mm512_cmpeq_epu16_mask(keys, t);
    for (; __builtin_popcount(equal) > equals; equal &= ~(0x80000000u >> __builtin_clz(equal))) {
    }
    equals -= __builtin_popcount(equal);
    const uint32_t kept_here = _mm512_cmpgt_epu16_mask(keys, t) | equal;
    for (int half = 0; half < 2; ++half) {
      const auto mask = static_cast<__mmask16>(kept_here >> 16 * half);
      const int count = __builtin_popcount(mask);
      const __m512i index = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(i + 16 * half)));
      _mm512_mask_storeu_epi32(out + kept, static_cast<__mmask16>((1u << count) - 1),
                               _mm512_maskz_compress_epi32(mask, index));
      kept += count;
    }
  }
}

void key_panel(const KeyPanel& p) {
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const auto key_of = [&p](int64_t k) { return k < p.keys ? k : p.keys - 1; };
  const auto store = [&](int64_t word, __m512i x) {
    const __m512i even = _mm512_shuffle_epi8(table, _mm512_and_si512(x, mask)),
                  uneven = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(x, 4), mask));
    _mm512_storeu_si512(p.codes + word * kKeyLanes * 4, even);
    _mm512_storeu_si512(p.codes + (word + kWordsOfGroup / 2) * kKeyLanes * 4, uneven);
  };
  for (int64_t g = 0; g < p.channels / kIndexGroup; ++g) {
    // A group's sixteen bytes of keys i, i + 4, i + 8 and i + 12, then four words by four keys changed about.
    const auto four = [&](int64_t i) {
      const auto one = [&](int64_t k) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p.data + key_of(k) * p.data_ld + g * kIndexGroup / 2));
      };
      const __m512i x = _mm512_inserti32x4(_mm512_castsi128_si512(one(i)), one(i + 4), 1);
      return _mm512_inserti32x4(_mm512_inserti32x4(x, one(i + 8), 2), one(i + 12), 3);
    };
    const __m512i a = four(0), b = four(1), c = four(2), d = four(3);
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d),
                  ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
    store(g * kWordsOfGroup, _mm512_unpacklo_epi64(ab, cd));
    store(g * kWordsOfGroup + 1, _mm512_unpackhi_epi64(ab, cd));
    store(g * kWordsOfGroup + 2, _mm512_unpacklo_epi64(ab_high, cd_high));
    store(g * kWordsOfGroup + 3, _mm512_unpackhi_epi64(ab_high, cd_high));
    const __m512i bits = _mm512_slli_epi32(scales_of(p, g), 23);
    _mm512_storeu_ps(p.factors + g * kKeyLanes, _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.25f)));
  }
}

void score(const ScoreCall& c) {
  const int64_t groups = c.channels / kIndexGroup;
  const __m512 zero = _mm512_setzero_ps();
  __m512 chain[4] = {zero, zero, zero, zero};
  int64_t h = 0;
  for (; h + 4 <= c.heads; h += 4) add_heads<4>(c, h, groups, chain);
  for (; h < c.heads; ++h) add_heads<1>(c, h, groups, chain + h % 4);
  const __m512 even = round_words(add_odd(chain[0], chain[2])), uneven = round_words(add_odd(chain[1], chain[3]));
  const __m512 score = round_words(add_odd(even, uneven));
  const __mmask16 nan = _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
  _mm512_storeu_ps(c.scores, _mm512_mask_mov_ps(score, nan, _mm512_set1_ps(-__builtin_inff())));
}

void reach(const ReachCall& c) {
  const int64_t groups = c.channels / kIndexGroup;
  groups % 2 == 0 ? reach_of<2>(c, groups) : reach_of<1>(c, groups);
}

int64_t list_above(const float* x, int64_t n, float least, int32_t* out) {
  const __m512 limit = _mm512_set1_ps(least);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t count = 0;
  // Without a branch: which have some cannot be foretold.
  const auto take = [&](int64_t i, __mmask16 these) {
    const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(i)));
    _mm512_storeu_si512(out + count, _mm512_maskz_compress_epi32(these, at));
    count += __builtin_popcount(these);
  };
  int64_t i = 0;
  for (; i + kKeyLanes <= n; i += kKeyLanes) take(i, _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), limit, _CMP_NLE_UQ));
  if (i < n) {
    const auto left = static_cast<__mmask16>((1u << (n - i)) - 1);
    take(i, _mm512_mask_cmp_ps_mask(left, _mm512_maskz_loadu_ps(left, x + i), limit, _CMP_NLE_UQ));
  }
  return count;
}

}  // namespace avx512
}  // namespace deepinfer::ops::cpu::fast
