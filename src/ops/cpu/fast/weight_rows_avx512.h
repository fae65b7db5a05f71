// Rows of weights as stored -> bf16 words in registers or in memory. Only for files compiled with AVX-512 VBMI.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/expand_avx512.h"
#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {
namespace {

inline const uint8_t* bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

// Bytes of a row for kChunk columns.
constexpr int64_t chunk_bytes(WeightFormat f) {
  return f == WeightFormat::kFp8 ? 64 : f == WeightFormat::kFp4 ? 32 : 128;
}

struct WeightRow {
  const uint8_t* data = nullptr;
  const uint8_t* scale = nullptr;
};

inline WeightRow row_of(const Matrix& w, int64_t row) {
  switch (w.format) {
    case WeightFormat::kFp8: return {bytes(w.data) + row * w.cols, bytes(w.scale) + row / 32 * (w.cols / 32)};
    case WeightFormat::kFp4: return {bytes(w.data) + row * (w.cols / 2), bytes(w.scale) + row * (w.cols / 32)};
    default: return {bytes(w.data) + row * w.cols * 2, nullptr};
  }
}

// One chunk of 64 columns of a row, not scaled for FP8. `left`: columns that exist, for the last chunk.
template <WeightFormat F, class Expander>
[[gnu::always_inline]] inline void load_chunk(const Expander& e, const WeightRow& r, const uint8_t* scales,
                                              int64_t chunk, int64_t left, Words& a, Words& b) {
  if constexpr (F == WeightFormat::kFp8) {
    const uint8_t* p = r.data + chunk * 64;
    e.expand(left >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, p), a, b);
  } else if constexpr (F == WeightFormat::kFp4) {
    const uint8_t* p = r.data + chunk * 32;
    e.expand(left >= 64 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))
                        : _mm256_maskz_loadu_epi8((uint32_t{1} << (left / 2)) - 1, p),
             scales + chunk * 2, a, b);
  } else {
    const uint8_t* p = r.data + chunk * 128;
    if (left >= 64) {
      a = _mm512_loadu_si512(p);
      b = _mm512_loadu_si512(p + 64);
    } else {
      const uint64_t mask = (uint64_t{1} << left) - 1;
      a = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), p);
      b = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask >> 32), p + 64);
    }
  }
}

struct NoExpander {};
template <WeightFormat F>
struct ExpanderOf {
  using type = NoExpander;
};
template <>
struct ExpanderOf<WeightFormat::kFp8> {
  using type = Fp8Expander;
};
template <>
struct ExpanderOf<WeightFormat::kFp4> {
  using type = Fp4Expander;
};

inline void clamp_scales(const uint8_t* from, int64_t n, uint8_t* to) {
  const __m512i low = _mm512_set1_epi8(kScaleBias - kScaleLimit),
                high = _mm512_set1_epi8(static_cast<char>(kScaleBias + kScaleLimit));
  for (int64_t i = 0; i < n; i += 64) {
    const __mmask64 mask = n - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (n - i)) - 1;
    const __m512i s = _mm512_maskz_loadu_epi8(mask, from + i);
    _mm_prefetch(reinterpret_cast<const char*>(from + n + i), _MM_HINT_T0);  // mostly what is wanted next
    _mm512_storeu_si512(to + i, _mm512_min_epu8(_mm512_max_epu8(s, low), high));
  }
}

// Chunks chunk0 .. chunk0 + chunks - 1 of a row as words in the order of its format, scales applied: 32 words, the next
// 32 `step` x 32 words behind them. scales: memory for chunks * 2 bytes, in whole registers.
template <WeightFormat F>
void expand_chunks(const Matrix& w, int64_t row, int64_t chunk0, int64_t chunks, uint8_t* scales, uint16_t* out,
                   int64_t step) {
  const typename ExpanderOf<F>::type expander{};
  WeightRow r = row_of(w, row);
  const int64_t blocks = w.cols / 32 - chunk0 * 2;
  if constexpr (F != WeightFormat::kBf16)
    clamp_scales(r.scale + chunk0 * 2, blocks < chunks * 2 ? blocks : chunks * 2, scales);
  r.data += chunk0 * chunk_bytes(F);
  const __m512i spread = make_spread();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    Words a, b;
    load_chunk<F>(expander, r, scales, chunk, w.cols - (chunk0 + chunk) * kChunk, a, b);
    if constexpr (F == WeightFormat::kFp8) {
      const __m512i exponent =
          _mm512_sub_epi16(scale_words(scales + chunk * 2, spread), _mm512_set1_epi16(kScaleBias << 7));
      a = Fp8Expander::scaled(a, exponent);
      b = Fp8Expander::scaled(b, exponent);
    }
    _mm512_store_si512(out + chunk * 64 * step, a);
    _mm512_store_si512(out + (chunk * 64 + 32) * step, b);
  }
}

// A whole row.
template <WeightFormat F>
void expand_row(const Matrix& w, int64_t row, uint8_t* scales, uint16_t* out, int64_t step) {
  expand_chunks<F>(w, row, 0, packed_columns(w.cols) / kChunk, scales, out, step);
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
