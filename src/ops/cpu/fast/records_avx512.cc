// Cache records to bf16, pairs of value rows, and the products of mHC, with AVX-512 (see ORDER.md).
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/fast/avx512.h"
#include "ops/cpu/fast/expand_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// Natural order of 64 words from the two results of Fp8Expander, and pairs of two rows of 32 words.
struct Indices {
  alignas(64) uint16_t fp8[2][32], pair[2][32];
};

constexpr Indices make_indices() {
  Indices t{};
  for (int i = 0; i < 64; ++i) {
    const int eight = i / 8;  // a holds the even eights, b (words 32 ..) the odd ones
    t.fp8[i / 32][i % 32] = static_cast<uint16_t>(eight % 2 * 32 + eight / 2 * 8 + i % 8);
    t.pair[i / 32][i % 32] = static_cast<uint16_t>(i % 2 * 32 + i / 2);
  }
  return t;
}

constexpr Indices kIndices = make_indices();

// bf16 of e2m1 code x e4m3 scale, for every scale that FQ4K makes (no sign).
struct EntryTables {
  alignas(64) uint16_t words[128][16];
};

constexpr uint16_t product_word(int code, int scale) {
  constexpr int kTwice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  const int exponent = scale >> 3, mantissa = exponent == 0 ? scale & 7 : 8 | (scale & 7);
  int value = kTwice[code & 7] * mantissa, power = (exponent == 0 ? 1 : exponent) - 10 - 1;  // value x 2^power
  const int sign = (code & 8) << 12;
  if (value == 0) return static_cast<uint16_t>(sign);
  while (value < 128) {
    value *= 2;
    --power;
  }
  return static_cast<uint16_t>(sign | (power + 7 + 127) << 7 | (value & 127));
}

constexpr EntryTables make_entry_tables() {
  EntryTables t{};
  for (int scale = 0; scale < 128; ++scale) {
    for (int code = 0; code < 16; ++code) t.words[scale][code] = product_word(code, scale);
  }
  return t;
}

constexpr EntryTables kEntries = make_entry_tables();

}  // namespace

namespace avx512 {

void window_words(const uint8_t* record, int64_t d, uint16_t* out) {
  const Fp8Expander expander;
  const uint8_t* scales = record + d;
  const __m512i low = _mm512_load_si512(kIndices.fp8[0]), high = _mm512_load_si512(kIndices.fp8[1]),
                spread = make_spread();
  for (int64_t i = 0; i < d; i += 64) {
    const bool whole = d - i >= 64;
    __m512i a, b;
    expander.expand(whole ? _mm512_loadu_si512(record + i) : _mm512_maskz_loadu_epi8(0xffffffffu, record + i), a, b);
    const uint8_t pair[2] = {static_cast<uint8_t>(clamp_scale(scales[i / 32])),
                             static_cast<uint8_t>(whole ? clamp_scale(scales[i / 32 + 1]) : kScaleBias)};
    const __m512i exponent = _mm512_sub_epi16(scale_words(pair, spread), _mm512_set1_epi16(kScaleBias << 7));
    a = Fp8Expander::scaled(a, exponent);
    b = Fp8Expander::scaled(b, exponent);
    _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(a, low, b));
    if (whole) _mm512_storeu_si512(out + i + 32, _mm512_permutex2var_epi16(a, high, b));
  }
}

void entry_words(const uint8_t* record, int64_t d, uint16_t* out) {
  const uint8_t* scales = record + d / 2;
  // Every 64-bit lane holds two bytes, four codes; each goes to a word of its own.
  const __m512i nibbles = _mm512_set1_epi64(0x200c200820042000), mask = _mm512_set1_epi16(15),
                half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  for (int64_t i = 0; i < d; i += 32) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(record + i / 2));
    const __m512i words = _mm512_multishift_epi64_epi8(nibbles, _mm512_cvtepu16_epi64(codes));
    const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(kEntries.words[scales[i / 16] & 127]));
    const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(kEntries.words[scales[i / 16 + 1] & 127]));
    const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    _mm512_storeu_si512(out + i, _mm512_permutexvar_epi16(_mm512_ternarylogic_epi32(words, mask, half, 0xea), table));
  }
}

void pair_rows(const uint16_t* v, int64_t ldv, int64_t keys, int64_t channels, uint32_t* out) {
  const __m512i low = _mm512_load_si512(kIndices.pair[0]), high = _mm512_load_si512(kIndices.pair[1]);
  for (int64_t t = 0; t < keys; t += 2) {
    for (int64_t i = 0; i < channels; i += 32) {
      const __m512i a = _mm512_loadu_si512(v + t * ldv + i);
      const __m512i b = t + 1 < keys ? _mm512_loadu_si512(v + (t + 1) * ldv + i) : _mm512_setzero_si512();
      _mm512_storeu_si512(out + t / 2 * channels + i, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(out + t / 2 * channels + i + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// Lanes (i, i + 4), (i, i + 2), (0, 1).
static double sum_lanes_pd(__m512d x) {
  const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// Rows r0 .. r0 + R - 1 of fn times X rows of x.
template <int R, int X>
static void mix_block(const MixFn& fn, int64_t r0, const float* x, double* out, int64_t ldo) {
  __m512d acc[X][R];
  for (int i = 0; i < X; ++i) {
    for (int r = 0; r < R; ++r) acc[i][r] = _mm512_setzero_pd();
  }
  const float* rows = fn.data + r0 * fn.row_ld;
  for (int64_t k = 0; k < fn.width; k += 8, rows += fn.step_ld) {
    __m512d v[X];
#pragma GCC unroll 3
    for (int i = 0; i < X; ++i) v[i] = _mm512_cvtps_pd(_mm256_loadu_ps(x + i * fn.width + k));
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
      const __m512d w = _mm512_cvtps_pd(_mm256_loadu_ps(rows + r * fn.row_ld));
#pragma GCC unroll 3
      for (int i = 0; i < X; ++i) acc[i][r] = _mm512_fmadd_pd(w, v[i], acc[i][r]);
    }
  }
  for (int i = 0; i < X; ++i) {
    for (int r = 0; r < R; ++r) out[i * ldo + r] = sum_lanes_pd(acc[i][r]);
  }
}

// R at a time: their sums stay in registers.
template <int R, int X>
static void mix_rows(const MixFn& fn, const float* x, double* out) {
  int64_t r = 0;
  for (; r + R <= fn.rows; r += R) mix_block<R, X>(fn, r, x, out + r, fn.rows + 1);
  for (; r < fn.rows; ++r) mix_block<1, X>(fn, r, x, out + r, fn.rows + 1);
  for (int i = 0; i < X; ++i) {
    const float* row = x + i * fn.width;
    mix_block<1, 1>({row, 1, fn.width, fn.width, 8}, 0, row, out + i * (fn.rows + 1) + fn.rows, 0);
  }
}

// One row of x and R rows of fn in eights of columns: all of them in one pass, x . x beside, and fetched ahead.
template <int R>
static void mix_one_row(const MixFn& fn, const float* x, double* out) {
  constexpr int64_t kAheadFloats = 1024;
  __m512d acc[R], squares = _mm512_setzero_pd();
  for (__m512d& a : acc) a = _mm512_setzero_pd();
  const float* rows = fn.data;
  for (int64_t k = 0; k < fn.width; k += 8, rows += R * 8) {
#pragma GCC unroll 12
    for (int line = 0; line < R / 2; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(rows + kAheadFloats + line * 16), _MM_HINT_T0);
    const __m512d v = _mm512_cvtps_pd(_mm256_loadu_ps(x + k));
    squares = _mm512_fmadd_pd(v, v, squares);
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r)
      acc[r] = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_loadu_ps(rows + r * 8)), v, acc[r]);
  }
  for (int r = 0; r < R; ++r) out[r] = sum_lanes_pd(acc[r]);
  out[R] = sum_lanes_pd(squares);
}

void mix_products(const MixFn& fn, const float* x, int64_t n, double* out) {
  int64_t i = 0;
  for (; n - i >= 3; i += 3) mix_rows<8, 3>(fn, x + i * fn.width, out + i * (fn.rows + 1));
  if (n - i == 2) mix_rows<12, 2>(fn, x + i * fn.width, out + i * (fn.rows + 1));
  if (n - i != 1) return;
  x += i * fn.width;
  out += i * (fn.rows + 1);
  if (fn.rows == 24 && fn.row_ld == 8 && fn.step_ld == 8 * 24) return mix_one_row<24>(fn, x, out);
  if (fn.step_ld > 8) return mix_rows<24, 1>(fn, x, out);
  mix_rows<12, 1>(fn, x, out);
}

}  // namespace avx512
}  // namespace deepinfer::ops::cpu::fast
