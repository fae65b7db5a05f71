// Linear layers with AMX: weights as stored -> bf16 blocks -> TDPBF16PS (see ORDER.md, "fast with AMX"). The tiles are
// a parameter, so that the arithmetic can be tested where no processor has them. Only for files compiled with AVX-512
// VBMI.
//
//   multiply_amx<HardwareTiles>(call, scratch);          // linear_amx_avx512.cc; scratch: amx_scratch_bytes(k)
//
// Tiles: configure(columns) sets tiles 0 to 3 to 16 x columns fp32 (sums), 4 and 5 to 16 rows of 32 words (weights), 6
// and 7 to 16 x columns pairs of words (activations); zero<T>(), load<T>(from, stride), store<T>(to, stride),
// dot<C, A, B>(), release(). Strides are bytes.
//
// A block is 16 rows of weights, or 16 rows of activations, by 32 words: 1 KiB. Blocks of activations are turned here,
// those of weights in amx_panels_avx512.h: pair p of all rows, then the next pair.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops/cpu/fast/amx_panels_avx512.h"
#include "ops/cpu/fast/amx_stored_avx512.h"
#include "ops/cpu/fast/weight_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kAmxAheadBytes = 8 << 10;  // as kAheadBytes of linear_avx512.cc

// Rows i0 .. i0 + 15 of x as turned blocks, one behind the other.
inline void turn_rows(const PackedRows& x, int64_t i0, uint16_t* out) {
  const int64_t n = x.n - i0 < kBlock ? x.n - i0 : kBlock;
  const uint16_t* from[kBlock] = {};
  int64_t step[kBlock] = {};
  for (int64_t i = 0; i < n; ++i) {
    from[i] = x.row(i0 + i);
    step[i] = x.step(i0 + i);
  }
  for (int64_t k = 0; k < x.ld / kStep; ++k) {
    __m512i v[kBlock];
    for (int64_t i = 0; i < kBlock; ++i)
      v[i] = i < n ? _mm512_loadu_si512(from[i] + k * step[i]) : _mm512_setzero_si512();
    turn(v, out + k * kBlockWords);
  }
}

inline float rounded(float v) {
  uint32_t b;
  std::memcpy(&b, &v, sizeof b);
  b = v != v ? (b | 0x400000u) & 0xffff0000u : (b + 0x7fffu + (b >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&v, &b, sizeof v);
  return v;
}

// sums: 16 outputs x 16 activation rows, of which `rows` and `n` exist.
inline void store_block(const LinearCall& c, const float* sums, int64_t j, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float* out = c.out + i * c.ldo + j;
    for (int64_t r = 0; r < rows; ++r) out[r] = c.round ? rounded(sums[r * kBlock + i]) : sums[r * kBlock + i];
  }
}

template <class Tiles, int T>
void end_block(const LinearCall& c, int64_t j, int64_t n) {
  const int64_t rows = c.rows - j < kBlock ? c.rows - j : kBlock;
  if (rows <= 0 || n <= 0) return;
  alignas(64) float sums[kBlock * kBlock];
  Tiles::template store<T>(sums, kBlock * sizeof(float));
  store_block(c, sums, j, rows, n);
}

// Up to 16 activation rows: weights are expanded 64 columns at a time and used at once, 32 rows together. What
// amx_stored() does not take.
template <class Tiles, WeightFormat F>
void amx_stream(const LinearCall& c, std::byte* scratch) {
  const Matrix& w = *c.w;
  const typename ExpanderOf<F>::type expander;
  const __m512i spread = make_spread();
  const int64_t ldp = packed_columns(w.cols), blocks = w.cols / 32;
  auto* turned = reinterpret_cast<uint16_t*>(scratch);
  auto* stage = turned + kBlock * ldp;  // two blocks of each 16 rows
  auto* scales = reinterpret_cast<uint8_t*>(stage + 4 * kBlockWords);
  const int64_t n = c.x.n, scales_ld = F == WeightFormat::kFp8 ? 0 : blocks;
  // One row is a column of pairs as it is.
  if (n > 1) turn_rows(c.x, 0, turned);
  const uint16_t* x = n > 1 ? turned : c.x.words;
  const int64_t x_step = n > 1 ? kBlockWords : kStep, x_line = n > 1 ? kLine : 2 * sizeof(uint16_t);
  Tiles::configure(static_cast<int>(n));
  constexpr int64_t kRows = 2 * kBlock, kBytes = F == WeightFormat::kFp8 ? 64 : F == WeightFormat::kFp4 ? 32 : 128;
  for (int64_t j = 0; j < c.rows;) {
    int64_t end = j + kRows - (c.row0 + j) % kRows;  // of the row of FP8 blocks
    if (end > c.rows) end = c.rows;
    const int64_t count = end - j, group = count * w.cols * kBytes / kChunk;
    WeightRow rows[kRows];
    for (int64_t r = 0; r < count; ++r) rows[r] = row_of(w, c.row0 + j + r);
    if constexpr (F == WeightFormat::kFp8) clamp_scales(rows[0].scale, blocks, scales);
    if constexpr (F == WeightFormat::kFp4) clamp_scales(rows[0].scale, count * blocks, scales);
    for (int64_t r = count; r < kRows; ++r) {
      for (int s = 0; s < 2; ++s)
        _mm512_store_si512(stage + (2 * (r / kBlock) + s) * kBlockWords + r % kBlock * kStep, _mm512_setzero_si512());
    }
    // Far ahead into the second-level cache: a group of rows may be more than the first one holds.
    const uint8_t* ahead = rows[0].data + (kAmxAheadBytes + group - 1) / group * group;
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    for (int64_t chunk = 0; chunk * kChunk < w.cols; ++chunk) {
      for (int64_t r = 0; r < count; ++r) {
        const uint8_t* next = ahead + (chunk * count + r) * kBytes;
        if (kBytes >= 64 || r % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        if constexpr (kBytes == 128) _mm_prefetch(reinterpret_cast<const char*>(next + 64), _MM_HINT_T1);
        // From there the next chunk: its rows may lie whole pages apart, which no processor foresees.
        const uint8_t* near = rows[r].data + (chunk + 1) * kBytes;
        if constexpr (kBytes >= 64) _mm_prefetch(reinterpret_cast<const char*>(near), _MM_HINT_T0);
        if constexpr (kBytes == 128) _mm_prefetch(reinterpret_cast<const char*>(near + 64), _MM_HINT_T0);
        Words a, b;
        load_chunk<F>(expander, rows[r], scales + r * scales_ld, chunk, w.cols - chunk * kChunk, a, b);
        if constexpr (F == WeightFormat::kFp8) {
          const __m512i exponent =
              _mm512_sub_epi16(scale_words(scales + chunk * 2, spread), _mm512_set1_epi16(kScaleBias << 7));
          a = Fp8Expander::scaled(a, exponent);
          b = Fp8Expander::scaled(b, exponent);
        }
        uint16_t* to = stage + 2 * (r / kBlock) * kBlockWords + r % kBlock * kStep;
        _mm512_store_si512(to, a);
        _mm512_store_si512(to + kBlockWords, b);
      }
      const uint16_t* xk = x + chunk * 2 * x_step;
      Tiles::template load<6>(xk, x_line);
      Tiles::template load<4>(stage, kLine);
      Tiles::template load<5>(stage + 2 * kBlockWords, kLine);
      Tiles::template dot<0, 4, 6>();
      Tiles::template dot<1, 5, 6>();
      Tiles::template load<7>(xk + x_step, x_line);
      Tiles::template load<4>(stage + kBlockWords, kLine);
      Tiles::template load<5>(stage + 3 * kBlockWords, kLine);
      Tiles::template dot<0, 4, 7>();
      Tiles::template dot<1, 5, 7>();
    }
    LinearCall part = c;
    part.rows = end;
    end_block<Tiles, 0>(part, j, n);
    end_block<Tiles, 1>(part, j + kBlock, n);
    j = end;
  }
  Tiles::release();
}

// Outputs first .. first + rows - 1 of a call.
inline LinearCall part_of(const LinearCall& c, int64_t first, int64_t rows) {
  LinearCall part = c;
  part.row0 += first;
  part.rows = rows;
  part.out += first;
  return part;
}

template <class Tiles, WeightFormat F>
void amx_few(const LinearCall& c, std::byte* scratch) {
  const int64_t up = (kGroupRows - c.row0 % kGroupRows) % kGroupRows, before = up < c.rows ? up : c.rows,
                groups = (c.rows - before) / kGroupRows * kGroupRows, behind = c.rows - before - groups;
  // FP8's scales go to the activations, once for 32 outputs: of more rows that is as long as to the weights.
  if (groups == 0 || (F == WeightFormat::kFp8 && (c.x.n > 1 || !may_be_scaled(c.x))))
    return amx_stream<Tiles, F>(c, scratch);
  const LinearCall part = part_of(c, before, groups);
  if (before > 0) amx_stream<Tiles, F>(part_of(c, 0, before), scratch);
  if (c.x.n == 1) {
    amx_stored<Tiles, F>(part, c.x.words, scratch);
  } else {
    auto* turned = reinterpret_cast<uint16_t*>(scratch);
    turn_rows(c.x, 0, turned);
    amx_stored<Tiles, F>(part, turned, scratch + kBlock * c.x.ld * static_cast<int64_t>(sizeof(uint16_t)));
  }
  if (behind > 0) amx_stream<Tiles, F>(part_of(c, before + groups, behind), scratch);
}

template <class Tiles, WeightFormat F>
void amx_format(const LinearCall& c, std::byte* scratch) {
  if (c.x.n == 0) return;
  c.x.n <= kBlock ? amx_few<Tiles, F>(c, scratch) : amx_panels<Tiles, F>(c, scratch);
}

template <class Tiles>
void multiply_amx(const LinearCall& c, std::byte* scratch) {
  switch (c.w->format) {
    case WeightFormat::kFp8: return amx_format<Tiles, WeightFormat::kFp8>(c, scratch);
    case WeightFormat::kFp4: return amx_format<Tiles, WeightFormat::kFp4>(c, scratch);
    default: return amx_format<Tiles, WeightFormat::kBf16>(c, scratch);
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
