// Cache records to bf16, pairs of value rows, and the products of mHC, with AVX2 (see ORDER.md).
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/fast/avx2.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int kScaleBias = 127, kScaleLimit = 60;

uint32_t word_of(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b >> 16;
}

float e4m3(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return __builtin_nanf("");
  const float m = exponent == 0 ? static_cast<float>(mantissa) / 512
                                : __builtin_ldexpf(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
  return code & 0x80 ? -m : m;
}

struct Tables {
  float e4m3_values[256];
  uint16_t entries[128][16];
  Tables() {
    constexpr float kE2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint32_t c = 0; c < 256; ++c) e4m3_values[c] = e4m3(c);
    for (uint32_t s = 0; s < 128; ++s) {
      for (uint32_t c = 0; c < 16; ++c) {
        const float v = kE2m1[c & 7] * e4m3(s);
        entries[s][c] = static_cast<uint16_t>(word_of(c & 8 ? -v : v));
      }
    }
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

}  // namespace

namespace avx2 {

void window_words(const uint8_t* record, int64_t d, uint16_t* out) {
  const float* value = tables().e4m3_values;
  for (int64_t g = 0; g < d / 32; ++g) {
    int scale = record[d + g];
    if (scale < kScaleBias - kScaleLimit) scale = kScaleBias - kScaleLimit;
    if (scale > kScaleBias + kScaleLimit) scale = kScaleBias + kScaleLimit;
    const uint32_t bits = static_cast<uint32_t>(scale) << 23;
    float factor;
    std::memcpy(&factor, &bits, sizeof factor);
    for (int64_t i = g * 32; i < g * 32 + 32; ++i) out[i] = static_cast<uint16_t>(word_of(value[record[i]] * factor));
  }
}

void entry_words(const uint8_t* record, int64_t d, uint16_t* out) {
  const Tables& t = tables();
  for (int64_t i = 0; i < d; i += 2) {
    const uint16_t* table = t.entries[record[d / 2 + i / 16] & 127];
    out[i] = table[record[i / 2] & 15];
    out[i + 1] = table[record[i / 2] >> 4];
  }
}

void pair_rows(const uint16_t* v, int64_t ldv, int64_t keys, int64_t channels, uint32_t* out) {
  for (int64_t t = 0; t < keys; t += 2) {
    for (int64_t i = 0; i < channels; i += 16) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + t * ldv + i));
      const __m256i b = t + 1 < keys ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + (t + 1) * ldv + i))
                                     : _mm256_setzero_si256();
      const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
      auto* o = reinterpret_cast<__m256i*>(out + t / 2 * channels + i);
      _mm256_storeu_si256(o, _mm256_permute2x128_si256(low, high, 0x20));
      _mm256_storeu_si256(o + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
  }
}

static void mix_row(const MixFn& fn, const float* x, double* out) {
  for (int64_t r = 0; r <= fn.rows; ++r) {
    const float* row = r < fn.rows ? fn.data + r * fn.row_ld : x;
    const int64_t step = r < fn.rows ? fn.step_ld : 8;
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    for (int64_t i = 0; i < fn.width; i += 8, row += step) {
      low = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(row)), _mm256_cvtps_pd(_mm_loadu_ps(x + i)), low);
      high = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm_loadu_ps(row + 4)), _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)), high);
    }
    // Lanes (i, i + 4), (i, i + 2), (0, 1).
    const __m256d four = _mm256_add_pd(low, high);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    out[r] = _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
}

void mix_products(const MixFn& fn, const float* x, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) mix_row(fn, x + i * fn.width, out + i * (fn.rows + 1));
}

}  // namespace avx2
}  // namespace deepinfer::ops::cpu::fast
