// Linear layers of few rows with AMX at the pace of the memory: whole groups of 32 rows of weights as they are stored.
// Sixteen rows of a chunk of 64 columns are expanded while the tiles take the sixteen before them, and every line is
// fetched in time. The sums of linear_amx_avx512.h, which includes this. Only for files compiled with AVX-512 VBMI.
//
//   amx_stored<HardwareTiles, F>(call, x, scratch);   // call.row0, call.rows: multiples of kGroupRows
//
// What bounds it, as measured: the copy to the tiles' memory and the expansion take two thirds of the time that the
// memory needs, and hide behind it only if no line is waited for. Weights far ahead are therefore fetched line by line
// between the expansions. Of short rows the order is that of the memory. Rows of a page or more are fetched each within
// itself: their lines meet in few sets of a cache, and few enough of them have to wait there.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/amx_blocks_avx512.h"
#include "ops/cpu/fast/lanes_avx512.h"
#include "ops/cpu/fast/scaled_rows_avx512.h"
#include "ops/cpu/fast/weight_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// High and low bytes of LargeE2m1, for every value of the two bits above a code.
struct E2m1Bytes {
  alignas(64) uint8_t high[64], low[64];
};

constexpr E2m1Bytes make_e2m1_bytes() {
  E2m1Bytes t{};
  for (int i = 0; i < 64; ++i) {
    t.high[i] = static_cast<uint8_t>(kLargeE2m1.words[i % 16] >> 8);
    t.low[i] = static_cast<uint8_t>(kLargeE2m1.words[i % 16] & 255);
  }
  return t;
}

constexpr E2m1Bytes kE2m1Bytes = make_e2m1_bytes();

// Scales of a row of FP4 as loss_pairs() makes them.
constexpr int64_t loss_columns(int64_t blocks) { return (blocks + 15) / 16 * 16; }

// What values of kLargeE2m1 lose to be scaled: two equal words for each scale, up to a multiple of 16 of them.
inline void loss_pairs(const uint8_t* scales, int64_t n, uint32_t* out) {
  const __m512i low = _mm512_set1_epi32(kScaleBias - kScaleLimit), high = _mm512_set1_epi32(kScaleBias + kScaleLimit);
  for (int64_t i = 0; i < n; i += 16) {
    const auto mask = static_cast<__mmask16>(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
    const __m512i s = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, scales + i));
    const __m512i loss =
        _mm512_slli_epi32(_mm512_sub_epi32(high, _mm512_min_epi32(_mm512_max_epi32(s, low), high)), 7);
    _mm512_storeu_si512(out + i, _mm512_or_si512(loss, _mm512_slli_epi32(loss, 16)));
  }
}

// A group's rows in memory, and what of later ones is fetched meanwhile: line(r) of row r.
struct GroupPlace {
  const uint8_t *at = nullptr, *fetched = nullptr;
  int64_t stride = 0, fetched_stride = 0;  // from row to row
  const uint32_t* losses = nullptr;        // FP4
  int64_t losses_ld = 0;
};

template <WeightFormat F>
struct ChunkOfRows {
  static constexpr int64_t kBytes = chunk_bytes(F);
  const typename ExpanderOf<F>::type expander{};
  const __m512i high = _mm512_load_si512(kE2m1Bytes.high), low = _mm512_load_si512(kE2m1Bytes.low),
                pairs = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);

  // Rows row .. row + 3; words 0 .. 31 of row r to `to` + r * kStep, the others a block behind.
  template <bool kWhole>
  [[gnu::always_inline]] inline void four(const GroupPlace& g, int row, int64_t left, uint16_t* to) const {
    to += row % kBlock * kStep;
    if constexpr (F == WeightFormat::kFp4) {
#pragma GCC unroll 2
      for (int r = row; r < row + 4; r += 2, to += 2 * kStep) two_fp4<kWhole>(g, r, left, to);
    } else {
#pragma GCC unroll 4
      for (int r = row; r < row + 4; ++r, to += kStep) {
        fetch(g, r);
        Words a, b;
        load_chunk<F>(expander, {g.at + r * g.stride, nullptr}, nullptr, 0, kWhole ? kChunk : left, a, b);
        _mm512_store_si512(to, a);
        _mm512_store_si512(to + kBlockWords, b);
      }
    }
  }

 private:
  [[gnu::always_inline]] static void fetch(const GroupPlace& g, int row) {
    const uint8_t* p = g.fetched + row * g.fetched_stride;
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
    if constexpr (kBytes == 128) _mm_prefetch(reinterpret_cast<const char*>(p + 64), _MM_HINT_T1);
  }
  // Eights of bytes of both rows side by side, so that unpacking leaves each row in a register.
  template <bool kWhole>
  [[gnu::always_inline]] inline void two_fp4(const GroupPlace& g, int row, int64_t left, uint16_t* to) const {
    const uint8_t* p = g.at + row * g.stride;
    fetch(g, row);
    if (g.fetched_stride != kBytes) fetch(g, row + 1);  // else in the same line
    __m256i first, second;
    if constexpr (kWhole) {
      first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + g.stride));
    } else {
      const __mmask32 mask = (uint32_t{1} << (left / 2)) - 1;
      first = _mm256_maskz_loadu_epi8(mask, p);
      second = _mm256_maskz_loadu_epi8(mask, p + g.stride);
    }
    const __m512i even = _mm512_permutexvar_epi64(pairs, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1)),
                  odd = _mm512_srli_epi16(even, 4);
    const __m512i even_high = _mm512_permutexvar_epi8(even, high), even_low = _mm512_permutexvar_epi8(even, low),
                  odd_high = _mm512_permutexvar_epi8(odd, high), odd_low = _mm512_permutexvar_epi8(odd, low);
    const __m512i loss = losses_of(g, row), loss_second = losses_of(g, row + 1);
    _mm512_store_si512(to, _mm512_subs_epu16(_mm512_unpacklo_epi8(even_low, even_high), loss));
    _mm512_store_si512(to + kBlockWords, _mm512_subs_epu16(_mm512_unpacklo_epi8(odd_low, odd_high), loss));
    to += kStep;
    _mm512_store_si512(to, _mm512_subs_epu16(_mm512_unpackhi_epi8(even_low, even_high), loss_second));
    _mm512_store_si512(to + kBlockWords, _mm512_subs_epu16(_mm512_unpackhi_epi8(odd_low, odd_high), loss_second));
  }
  [[gnu::always_inline]] static __m512i losses_of(const GroupPlace& g, int row) {
    const uint32_t* p = g.losses + row * g.losses_ld;
    return _mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(p[0])), 0xff00, static_cast<int>(p[1]));
  }
};

// Sums of tile T, of outputs j .. j + 15.
template <class Tiles, int T>
void end_sums(const LinearCall& c, int64_t j) {
  alignas(64) float sums[kBlock * kBlock];
  const int64_t n = c.x.n;
  Tiles::template store<T>(sums, n * static_cast<int64_t>(sizeof(float)));
  if (n == 1) {
    const __m512 v = _mm512_load_ps(sums);
    return _mm512_storeu_ps(c.out + j, c.round ? round_to_bf16(v) : v);
  }
  const __m512i index = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                           _mm512_set1_epi32(static_cast<int>(n)));
  for (int64_t i = 0; i < n; ++i) {
    const __m512 v = _mm512_i32gather_ps(index, sums + i, sizeof(float));
    _mm512_storeu_ps(c.out + i * c.ldo + j, c.round ? round_to_bf16(v) : v);
  }
}

// x: of one row its words, of more the turned blocks; of FP8 not used, one row of call.x that may_be_scaled() instead.
// Scratch: packed_columns(k) words, two blocks of sixteen rows, 32 rows of loss_pairs().
template <class Tiles, WeightFormat F>
void amx_stored(const LinearCall& c, const uint16_t* x, std::byte* scratch) {
  constexpr int64_t kBytes = chunk_bytes(F), kFarRow = 4096, kWithin = 2048, kAhead = 8 << 10;
  const Matrix& w = *c.w;
  const int64_t blocks = w.cols / 32, stride = w.cols * kBytes / kChunk, whole = w.cols / kChunk;
  const bool wide = stride >= kFarRow, one = c.x.n == 1;
  auto* scaled = reinterpret_cast<uint16_t*>(scratch);
  uint16_t *stage = scaled + packed_columns(w.cols), *upper = stage, *lower = stage + 2 * kBlockWords;
  auto* losses = reinterpret_cast<uint32_t*>(stage + 4 * kBlockWords);
  if constexpr (F == WeightFormat::kFp8) x = scaled;
  const int64_t x_block = one ? kStep : kBlockWords, x_line = one ? 2 * sizeof(uint16_t) : kLine,
                group = kGroupRows * stride;
  const ChunkOfRows<F> rows;
  Tiles::configure(static_cast<int>(c.x.n));
  for (int64_t j = 0; j < c.rows; j += kGroupRows) {
    const WeightRow first = row_of(w, c.row0 + j);
    GroupPlace g{first.data, first.data + (wide ? kWithin : (kAhead + group - 1) / group * group), stride,
                 wide ? stride : kBytes, losses, loss_columns(blocks)};
    if constexpr (F == WeightFormat::kFp8) scale_activations(c, first.scale, blocks, scaled, packed_columns(w.cols));
    for (int64_t r = 0; F == WeightFormat::kFp4 && r < kGroupRows; ++r)
      loss_pairs(first.scale + r * blocks, blocks, losses + r * g.losses_ld);
    const uint16_t* at = x;
    const auto lower_sums = [&] {  // of the chunk before
      Tiles::template load<4>(lower, kLine);
      Tiles::template dot<1, 4, 6>();
      Tiles::template load<5>(lower + kBlockWords, kLine);
      Tiles::template dot<1, 5, 7>();
    };
    const auto chunk = [&]<bool kWhole, bool kFirst>(int64_t left) __attribute__((always_inline)) {
      rows.template four<kWhole>(g, 0, left, upper);
      rows.template four<kWhole>(g, 4, left, upper);
      if constexpr (!kFirst) lower_sums();
      rows.template four<kWhole>(g, 8, left, upper);
      rows.template four<kWhole>(g, 12, left, upper);
      rows.template four<kWhole>(g, 16, left, lower);
      Tiles::template load<6>(at, x_line);
      Tiles::template load<7>(at + x_block, x_line);
      rows.template four<kWhole>(g, 20, left, lower);
      Tiles::template load<4>(upper, kLine);
      Tiles::template dot<0, 4, 6>();
      rows.template four<kWhole>(g, 24, left, lower);
      Tiles::template load<5>(upper + kBlockWords, kLine);
      Tiles::template dot<0, 5, 7>();
      rows.template four<kWhole>(g, 28, left, lower);
      at += 2 * x_block;
      g.at += kBytes;
      g.losses += 2;
      g.fetched += wide ? kBytes : kGroupRows * kBytes;
    };
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if (whole > 0) chunk.template operator()<true, true>(kChunk);
    for (int64_t s = 1; s < whole; ++s) {
      if (wide && s * kBytes == stride - kWithin) g.fetched += group - stride;
      chunk.template operator()<true, false>(kChunk);
    }
    if (const int64_t left = w.cols - whole * kChunk; left > 0) {
      if (whole > 0) {
        chunk.template operator()<false, false>(left);
      } else {
        chunk.template operator()<false, true>(left);
      }
    }
    lower_sums();
    end_sums<Tiles, 0>(c, j);
    end_sums<Tiles, 1>(c, j + kBlock);
  }
  Tiles::release();
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
