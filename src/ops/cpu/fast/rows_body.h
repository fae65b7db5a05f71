// Element-wise work on rows, written once for the sixteen lanes of simd_avx512.h or simd_avx2.h. Contracts as in
// kernels.h. Only for files compiled with AVX-512, or with AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "ops/cpu/fast/kernels.h"
// Includes the lanes as well.
#include "ops/cpu/fast/exp_lanes.h"

namespace deepinfer::ops::cpu::fast {
namespace {

void swiglu_row(const float* gate, const float* up, int64_t n, float limit, float weight, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const F16 g = min(F16::load(gate + i, n - i), F16::all(limit));
    const F16 u = max(min(F16::load(up + i, n - i), F16::all(limit)), F16::all(-limit));
    const F16 h = g / (F16::all(1.0f) + exp(F16::all(0.0f) - g)) * u;
    to_bf16(h * F16::all(weight)).store(out + i, n - i);
  }
}

// Two passes over the keys: the largest score, then the exponentials. e^x of a missing lane is of no interest.
void softmax_lanes(const SoftmaxCall& c) {
  for (int64_t l = 0; l < c.lanes; l += 16) {
    const F16 scale = F16::all(c.scale);
    F16 top = F16::all(-1e30f);
    for (int64_t t = 0; t < c.keys; ++t) top = max(F16::load(c.scores + t * c.lanes + l) * scale, top);
    F16 sum = F16::all(0.0f);
    for (int64_t t = 0; t < c.keys; t += 2) {
      const F16 a = exp(F16::load(c.scores + t * c.lanes + l) * scale - top);
      sum = sum + a;
      F16 b = F16::all(0.0f);
      if (t + 1 < c.keys) {
        b = exp(F16::load(c.scores + (t + 1) * c.lanes + l) * scale - top);
        sum = sum + b;
      }
      store_pairs(a, b, c.probabilities + t / 2 * c.lanes + l);
    }
    (sum + exp(F16::load(c.sink + l) - top)).store(c.denominators + l);
  }
}

void divide_row(float* x, int64_t n, float by) {
  const F16 d = F16::all(by);
  for (int64_t i = 0; i < n; i += 16) to_bf16(F16::load(x + i, n - i) / d).store(x + i, n - i);
}

// 1 / rms; lane = channel mod 16.
float inverse_rms(const float* x, int64_t n, float eps) {
  F16 squares = F16::all(0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const F16 v = F16::load(x + i, n - i);
    squares = fma(v, v, squares);
  }
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + eps);
}

void norm_row(const float* x, const float* w, int64_t n, float eps, float* out) {
  const F16 scale = F16::all(inverse_rms(x, n, eps));
  for (int64_t i = 0; i < n; i += 16)
    to_bf16(F16::load(w + i, n - i) * (F16::load(x + i, n - i) * scale)).store(out + i, n - i);
}

void collapse_norm_row(const float* x, const float* pre, int64_t streams, int64_t n, const float* w, float eps,
                       float* y, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    F16 v = F16::all(0.0f);
    for (int64_t s = 0; s < streams; ++s) v = fma(F16::all(pre[s]), F16::load(x + s * n + i, n - i), v);
    to_bf16(v).store(y + i, n - i);
  }
  norm_row(y, w, n, eps, out);
}

void expand_row(float* x, const float* y, const float* post, const float* comb, int64_t streams, int64_t n) {
  constexpr int64_t kStreamsMax = 8;
  for (int64_t i = 0; i < n; i += 16) {
    F16 in[kStreamsMax];
    for (int64_t s = 0; s < streams; ++s) in[s] = F16::load(x + s * n + i, n - i);
    const F16 yi = F16::load(y + i, n - i);
    for (int64_t k = 0; k < streams; ++k) {
      F16 v = F16::all(post[k]) * yi;
      for (int64_t j = 0; j < streams; ++j) v = fma(F16::all(comb[j * streams + k]), in[j], v);
      to_bf16(v).store(x + k * n + i, n - i);
    }
  }
}

void mean_row(const float* x, int64_t streams, int64_t n, float* out) {
  const F16 by = F16::all(static_cast<float>(streams));
  for (int64_t i = 0; i < n; i += 16) {
    F16 v = F16::all(0.0f);
    for (int64_t s = 0; s < streams; ++s) v = v + F16::load(x + s * n + i, n - i);
    to_bf16(v / by).store(out + i, n - i);
  }
}

void combine_row(const float* shared, const float* routed, int64_t k, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    F16 v = F16::load(shared + i, n - i);
    for (int64_t j = 0; j < k; ++j) v = v + F16::load(routed + j * n + i, n - i);
    to_bf16(v).store(out + i, n - i);
  }
}

// Pair (a, b) becomes (a cos - b sin, a sin + b cos), products and sum rounded apart; inverse: sin has the other sign.
void rotate_heads(float* x, int64_t n, int64_t d, const float* cos, const float* sin, int64_t half, bool inverse) {
  for (int64_t j = 0; j < half; j += 8) {
    const F16 c = load_twice(cos + j), s = negate_lanes(load_twice(sin + j), inverse);
    float* pairs = x + d - 2 * (half - j);
    for (int64_t h = 0; h < n; ++h) {
      const F16 v = F16::load(pairs + h * d);
      to_bf16(v * c + swap_pairs(v) * s).store(pairs + h * d);
    }
  }
}

// FQ4I of sixteen channels times the inverse scale: twice the value of the code nearest to x, ties to the even code.
F16 twice_e2m1(F16 x) {
  const F16 a = magnitude(x), zero = F16::all(0.0f);
  F16 t = where_less(F16::all(0.25f), a, F16::all(1.0f), zero);
  t = where_less(F16::all(0x1.7ffffep-1f), a, F16::all(2.0f), t);  // from 0.75 on
  t = where_less(F16::all(1.25f), a, F16::all(3.0f), t);
  t = where_less(F16::all(0x1.bffffep+0f), a, F16::all(4.0f), t);  // from 1.75 on
  t = where_less(F16::all(2.5f), a, F16::all(6.0f), t);
  t = where_less(F16::all(0x1.bffffep+1f), a, F16::all(8.0f), t);  // from 3.5 on
  t = where_less(F16::all(5.0f), a, F16::all(12.0f), t);
  return where_less(x, zero, t * F16::all(-1.0f), t);  // -0 stays one
}

float power_of_two(uint32_t code) {  // 2^(code - 127)
  const uint32_t bits = code == 0 ? 0x00400000u : code << 23;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// A group's scale, as ue8m0_at_least(max(amax, 6 x 2^-126) / 6).
uint32_t index_scale(F16 a, F16 b) {
  // A NaN as first operand leaves the second.
  const float t = largest(max(magnitude(a), max(magnitude(b), F16::all(6.0f * 0x1p-126f)))) / 6.0f;
  uint32_t bits;
  std::memcpy(&bits, &t, sizeof bits);
  const uint32_t code = (bits >> 23) + ((bits & 0x7fffffu) != 0);
  return code > 254 ? 254 : code;
}

void fq4i_row(float* query, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g) {
    float* x = query + g * kIndexGroup;
    const F16 a = F16::load(x), b = F16::load(x + 16);
    const uint32_t code = index_scale(a, b);
    const F16 inverse = F16::all(power_of_two(254 - code)), half = F16::all(power_of_two(code) * 0.5f);
    (twice_e2m1(a * inverse) * half).store(x);
    (twice_e2m1(b * inverse) * half).store(x + 16);
  }
}

void query_codes_row(const float* query, int64_t groups, int8_t* codes, float* factors, int32_t* twelve) {
  static_assert(kIndexGroup == 32);
  const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), zero = _mm_setzero_si128(),
                turned = _mm_set1_epi8(static_cast<char>(0x80));
  for (int64_t g = 0; g < groups; ++g) {
    const F16 a = F16::load(query + g * kIndexGroup), b = F16::load(query + g * kIndexGroup + 16);
    const uint32_t code = index_scale(a, b);
    const F16 inverse = F16::all(power_of_two(254 - code));
    int8_t whole[kIndexGroup];
    store_bytes(twice_e2m1(a * inverse), whole);
    store_bytes(twice_e2m1(b * inverse), whole + 16);
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(whole)),
                  second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(whole + 16)),
                  low = _mm_shuffle_epi8(first, split), high = _mm_shuffle_epi8(second, split);
    auto* to = reinterpret_cast<__m128i*>(codes + g * kIndexGroup);
    _mm_storeu_si128(to, _mm_unpacklo_epi64(low, high));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi64(low, high));
    // Sums of bytes are of unsigned ones: each is 128 too large.
    const __m128i sums = _mm_add_epi64(_mm_sad_epu8(_mm_xor_si128(first, turned), zero),
                                       _mm_sad_epu8(_mm_xor_si128(second, turned), zero));
    const int sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 128 * static_cast<int>(kIndexGroup);
    factors[g] = power_of_two(code);
    twelve[g] = 12 * sum;
  }
}

typedef double D8 __attribute__((vector_size(64)));
typedef float S8 __attribute__((vector_size(32)));

// Lane = channel mod 16. The squares are summed 512 channels at a time, as Backend::sum_squares.
void engram_sums_row(const float* x, const float* k, const double* qk, int64_t n, double* out) {
  constexpr int64_t kPart = 512;
  double dot[16], xx[16] = {}, kk[16] = {};
  D8 d[2] = {};
  for (int64_t i0 = 0; i0 < n; i0 += kPart) {
    const int64_t end = i0 + kPart < n ? i0 + kPart : n;
    D8 px[2] = {}, pk[2] = {};
    int64_t i = i0;
    for (; i + 16 <= end; i += 16) {
      for (int h = 0; h < 2; ++h) {
        S8 sx, sk;
        D8 q;
        std::memcpy(&sx, x + i + 8 * h, sizeof sx);
        std::memcpy(&sk, k + i + 8 * h, sizeof sk);
        std::memcpy(&q, qk + i + 8 * h, sizeof q);
        const D8 dx = __builtin_convertvector(sx, D8), dk = __builtin_convertvector(sk, D8);
        d[h] += dx * q * dk;
        px[h] += dx * dx;
        pk[h] += dk * dk;
      }
    }
    for (int l = 0; l < 16; ++l) {
      double tx = px[l / 8][l % 8], tk = pk[l / 8][l % 8];
      if (i + l < end) {  // the last few of all
        const double dx = x[i + l], dk = k[i + l];
        d[l / 8][l % 8] += dx * qk[i + l] * dk;
        tx += dx * dx;
        tk += dk * dk;
      }
      xx[l] += tx;
      kk[l] += tk;
    }
  }
  std::memcpy(dot, d, sizeof dot);
  out[0] = out[1] = out[2] = 0;
  for (int l = 0; l < 16; ++l) {
    out[0] += dot[l];
    out[1] += xx[l];
    out[2] += kk[l];
  }
}

void add_row(float* x, const float* v, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) (F16::load(v + i, n - i) + F16::load(x + i, n - i)).store(x + i, n - i);
}

void add_gated_row(float* x, const float* v, float gate, int64_t n) {
  const F16 g = F16::all(gate);
  for (int64_t i = 0; i < n; i += 16)
    to_bf16(F16::load(x + i, n - i) + g * F16::load(v + i, n - i)).store(x + i, n - i);
}

// The iterations of N calls side by side, since each waits for its own divisions. Rows of comb are vectors of four
// doubles.
template <int N>
void mix_finish_together(const MixCall* calls) {
  const auto sigmoid = [](double x) { return 1 / (1 + ::exp(-x)); };
  const __m256d eps = _mm256_set1_pd(calls[0].eps);
  __m256d row[4][N];
  const auto row_sum = [](__m256d v) {  // in every lane: (0 + 2) + (1 + 3)
    const __m256d t = _mm256_add_pd(v, _mm256_permute4x64_pd(v, 0x4e));
    return _mm256_add_pd(t, _mm256_permute4x64_pd(t, 0xb1));
  };
  for (int n = 0; n < N; ++n) {
    const MixCall& c = calls[n];
    for (int j = 0; j < 4; ++j) {
      c.pre[j] = static_cast<float>(sigmoid(c.m[j] * double{c.scale[0]} + double{c.base[j]}) + c.eps);
      c.post[j] = static_cast<float>(2 * sigmoid(c.m[4 + j] * double{c.scale[1]} + double{c.base[4 + j]}));
    }
    for (int j = 0; j < 4; ++j) {
      double l[4], top = -1e300;
      for (int k = 0; k < 4; ++k) {
        l[k] = c.m[8 + 4 * j + k] * double{c.scale[2]} + double{c.base[8 + 4 * j + k]};
        top = l[k] > top ? l[k] : top;
      }
      for (int k = 0; k < 4; ++k) l[k] = ::exp(l[k] - top);
      const __m256d e = _mm256_loadu_pd(l);
      row[j][n] = _mm256_add_pd(_mm256_div_pd(e, row_sum(e)), eps);
    }
  }
  const auto columns = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 3
    for (int n = 0; n < N; ++n) {
      const __m256d s = _mm256_add_pd(
          _mm256_add_pd(_mm256_add_pd(row[0][n], row[1][n]), _mm256_add_pd(row[2][n], row[3][n])), eps);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) row[j][n] = _mm256_div_pd(row[j][n], s);
    }
  };
  columns();
  for (int i = 1; i < calls[0].iterations; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 3
      for (int n = 0; n < N; ++n) row[j][n] = _mm256_div_pd(row[j][n], _mm256_add_pd(row_sum(row[j][n]), eps));
    }
    columns();
  }
  for (int n = 0; n < N; ++n) {
    for (int j = 0; j < 4; ++j) _mm_storeu_ps(calls[n].comb + 4 * j, _mm256_cvtpd_ps(row[j][n]));
  }
}

void mix_finish_rows(const MixCall* calls, int64_t n) {
  int64_t i = 0;
  for (; n - i >= 3; i += 3) mix_finish_together<3>(calls + i);
  if (n - i == 2) mix_finish_together<2>(calls + i);
  if (n - i == 1) mix_finish_together<1>(calls + i);
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
