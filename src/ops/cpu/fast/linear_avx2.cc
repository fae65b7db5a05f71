// Linear layers with AVX2 and FMA: panels of expanded weights, then the pair sums of VDPBF16PS as two fused
// multiply-adds (see ORDER.md).
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/fast/avx2.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int kScaleBias = 127, kScaleLimit = 60;
constexpr int64_t kPanelRows = 8, kOuterRows = 2;

inline const uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

// Sixteen fp32 sums.
struct Sums {
  __m256 low, high;
  static Sums zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
};

// bf16 pairs as fp32: the odd and the even element of each.
struct Pairs {
  __m256 odd, even;
  [[gnu::always_inline]] static Pairs of(__m256i v) {
    return {_mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000)))),
            _mm256_castsi256_ps(_mm256_slli_epi32(v, 16))};
  }
};

[[gnu::always_inline]] inline __m256 dot(__m256 acc, const Pairs& a, const Pairs& b) {
  return _mm256_fmadd_ps(a.even, b.even, _mm256_fmadd_ps(a.odd, b.odd, acc));
}

// ---- Expansion --------------------------------------------------------------------------------------------------

// 16 e4m3 codes as bf16 words.
inline __m256i expand_e4m3(__m128i codes) {
  const __m256i v = _mm256_cvtepu8_epi16(codes);
  const __m256i m = _mm256_and_si256(v, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x80)), 8);
  const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(m, 4), _mm256_set1_epi16(120 << 7));
  // Subnormal codes 0..7 by table: low bytes, then high bytes.
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x20, 0x40,
                                                0x60, 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c));
  const __m256i index = _mm256_add_epi16(_mm256_or_si256(m, _mm256_slli_epi16(m, 8)), _mm256_set1_epi16(0x0800));
  const __m256i small = _mm256_shuffle_epi8(table, index);
  const __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), m),
                is_nan = _mm256_cmpeq_epi16(m, _mm256_set1_epi16(0x7f));
  const __m256i value = _mm256_blendv_epi8(normal, small, is_small);
  return _mm256_or_si256(_mm256_blendv_epi8(value, _mm256_set1_epi16(0x7fc0), is_nan), sign);
}

// x 2^(scale - 127) on words of bf16; see linear_avx512.cc.
inline __m256i scale_words(__m256i x, int scale) {
  constexpr int kLow = kScaleBias - kScaleLimit, kHigh = kScaleBias + kScaleLimit;
  scale = scale < kLow ? kLow : scale > kHigh ? kHigh : scale;
  const int d = (scale - kScaleBias) * 128;
  const __m256i bits = _mm256_set1_epi16(0x7fff);
  const __m256i m = _mm256_and_si256(x, bits), zero = _mm256_cmpeq_epi16(m, _mm256_setzero_si256());
  __m256i y = _mm256_add_epi16(m, _mm256_andnot_si256(zero, _mm256_set1_epi16(static_cast<int16_t>(d > 0 ? d : 0))));
  y = _mm256_subs_epu16(y, _mm256_set1_epi16(static_cast<int16_t>(d < 0 ? -d : 0)));
  return _mm256_or_si256(y, _mm256_andnot_si256(bits, x));
}

inline void store(uint16_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
inline __m128i load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Half a chunk: 32 columns with one scale; out is the chunk's 64 words, half 0 or 1.
void expand_fp8(const uint8_t* codes, int scale, int half, uint16_t* out) {
  for (int q = 0; q < 2; ++q) {
    const __m256i v = scale_words(expand_e4m3(load(codes + 16 * q)), scale);
    store(out + (half * 2 + q) * 8, _mm256_castsi256_si128(v));
    store(out + (half * 2 + q) * 8 + 32, _mm256_extracti128_si256(v, 1));
  }
}

void expand_fp4(const uint8_t* codes, int scale, int half, uint16_t* out) {
  const __m128i low = _mm_setr_epi8(0, 0, static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0x40,
                                    static_cast<char>(0x80), static_cast<char>(0xc0), 0, 0, static_cast<char>(0x80),
                                    static_cast<char>(0xc0), 0, 0x40, static_cast<char>(0x80), static_cast<char>(0xc0));
  const __m128i high =
      _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, static_cast<char>(0x80), static_cast<char>(0xbf),
                    static_cast<char>(0xbf), static_cast<char>(0xbf), static_cast<char>(0xc0), static_cast<char>(0xc0),
                    static_cast<char>(0xc0), static_cast<char>(0xc0));
  const __m128i pairs = load(codes), nibble = _mm_set1_epi8(15);
  for (int odd = 0; odd < 2; ++odd) {
    const __m128i code = _mm_and_si128(odd == 0 ? pairs : _mm_srli_epi16(pairs, 4), nibble);
    const __m128i l = _mm_shuffle_epi8(low, code), h = _mm_shuffle_epi8(high, code);
    const __m256i v = scale_words(_mm256_set_m128i(_mm_unpackhi_epi8(l, h), _mm_unpacklo_epi8(l, h)), scale);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + odd * 32 + half * 16), v);
  }
}

void expand_row(const Matrix& w, int64_t row, uint16_t* out) {
  const int64_t k = w.cols, padded = packed_columns(k);
  if (w.format == WeightFormat::kBf16) {
    std::memcpy(out, bytes(w.data) + row * k * 2, k * 2);
    std::memset(out + k, 0, (padded - k) * sizeof *out);
    return;
  }
  if (k % kChunk != 0) std::memset(out + padded - kChunk, 0, kChunk * sizeof *out);
  const bool fp8 = w.format == WeightFormat::kFp8;
  const uint8_t* data = bytes(w.data) + row * (fp8 ? k : k / 2);
  const uint8_t* scale = bytes(w.scale) + (fp8 ? row / 32 : row) * (k / 32);
  for (int64_t b = 0; b < k / 32; ++b) {
    uint16_t* chunk = out + b / 2 * kChunk;
    fp8 ? expand_fp8(data + b * 32, scale[b], b % 2, chunk) : expand_fp4(data + b * 16, scale[b], b % 2, chunk);
  }
}

// ---- Sums -------------------------------------------------------------------------------------------------------

// Lanes (i, i + 8), (i, i + 4), (i, i + 2), (0, 1).
inline float sum_lanes(const Sums& s) {
  const __m256 eight = _mm256_add_ps(s.low, s.high);
  __m128 v = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}

inline float round_to_bf16(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  b = (b & 0x7fffffffu) > 0x7f800000u ? (b | 0x400000u) : b + 0x7fffu + ((b >> 16) & 1u);
  b &= 0xffff0000u;
  std::memcpy(&x, &b, sizeof b);
  return x;
}

inline __m256i load_words(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

template <int M, int N>
void panel_block(const LinearCall& c, const uint16_t* w, int64_t ldw, int64_t i0, int64_t j0) {
  Sums acc[M][N];
  for (int i = 0; i < M; ++i) {
    for (int r = 0; r < N; ++r) acc[i][r] = Sums::zero();
  }
  const uint16_t* x[M];
  int64_t step[M];
  for (int i = 0; i < M; ++i) {
    x[i] = c.x.row(i0 + i);
    step[i] = c.x.step(i0 + i) / kStep;
  }
  for (int64_t k = 0; k < ldw; k += 32) {
    for (int half = 0; half < 2; ++half) {
      Pairs wp[N];
      for (int r = 0; r < N; ++r) wp[r] = Pairs::of(load_words(w + r * ldw + k + half * 16));
      for (int i = 0; i < M; ++i) {
        const Pairs xp = Pairs::of(load_words(x[i] + k * step[i] + half * 16));
        for (int r = 0; r < N; ++r) {
          __m256& s = half == 0 ? acc[i][r].low : acc[i][r].high;
          s = dot(s, wp[r], xp);
        }
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int r = 0; r < N; ++r) {
      const float sum = sum_lanes(acc[i][r]);
      c.out[(i0 + i) * c.ldo + j0 + r] = c.round ? round_to_bf16(sum) : sum;
    }
  }
}

template <int M>
void outer_block(const OuterCall& o, int64_t m, int64_t lane) {
  Sums acc[M];
  for (int i = 0; i < M; ++i) acc[i] = Sums::zero();
  for (int64_t p = 0; p < o.pairs; ++p) {
    const auto* b = reinterpret_cast<const __m256i*>(o.b + p * o.b_step + lane);
    const Pairs low = Pairs::of(_mm256_loadu_si256(b)), high = Pairs::of(_mm256_loadu_si256(b + 1));
    for (int i = 0; i < M; ++i) {
      const Pairs a = Pairs::of(_mm256_set1_epi32(static_cast<int>(o.a[(m + i) * o.a_row + p * o.a_step])));
      acc[i].low = dot(acc[i].low, low, a);
      acc[i].high = dot(acc[i].high, high, a);
    }
  }
  for (int i = 0; i < M; ++i) {
    _mm256_storeu_ps(o.c + (m + i) * o.ldc + lane, acc[i].low);
    _mm256_storeu_ps(o.c + (m + i) * o.ldc + lane + 8, acc[i].high);
  }
}

}  // namespace

namespace avx2 {

void multiply(const LinearCall& c, std::byte* scratch) {
  const int64_t ldw = packed_columns(c.w->cols);
  auto* panel = reinterpret_cast<uint16_t*>(scratch);
  for (int64_t j = 0; j < c.rows; j += kPanelRows) {
    const int64_t count = c.rows - j < kPanelRows ? c.rows - j : kPanelRows;
    for (int64_t r = 0; r < count; ++r) expand_row(*c.w, c.row0 + j + r, panel + r * ldw);
    for (int64_t i = 0; i < c.x.n; i += 2) {
      const bool two = i + 2 <= c.x.n;
      int64_t r = 0;
      for (; r + 2 <= count; r += 2)
        two ? panel_block<2, 2>(c, panel + r * ldw, ldw, i, j + r)
            : panel_block<1, 2>(c, panel + r * ldw, ldw, i, j + r);
      if (r < count)
        two ? panel_block<2, 1>(c, panel + r * ldw, ldw, i, j + r)
            : panel_block<1, 1>(c, panel + r * ldw, ldw, i, j + r);
    }
  }
}

void outer(const OuterCall& o) {
  for (int64_t lane = 0; lane < o.lanes; lane += 16) {
    int64_t m = 0;
    for (; m + kOuterRows <= o.m; m += kOuterRows) outer_block<kOuterRows>(o, m, lane);
    if (m < o.m) outer_block<1>(o, m, lane);
  }
}

}  // namespace avx2
}  // namespace deepinfer::ops::cpu::fast
