// Linear layers of few rows from Matrix::lanes with AMX: a lane of a step is a row of the tile of weights, sixteen
// outputs wide, so that neither weights nor activations have to be turned. The sums of linear_amx_avx512.h. Only for
// files compiled with AVX-512 VBMI.
//
//   if (!multiply_amx_lanes<HardwareTiles>(call, scratch)) ...   // activations that such sums cannot take
//
// Tiles as there, and configure_rows(n): tiles 0, 1 (sums) and 6, 7 (activations) are n rows of 64 bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/lanes_avx512.h"
#include "ops/cpu/fast/linear_amx_avx512.h"
#include "ops/cpu/fast/scaled_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// Sums of `rows` outputs for n rows, [n, kBlock], to their place.
inline void store_outputs(const LinearCall& c, int64_t j, const float* sums) {
  const int64_t rows = c.rows - j;
  const auto mask = static_cast<__mmask16>(rows >= kBlock ? 0xffff : (1 << rows) - 1);
  for (int64_t i = 0; i < c.x.n; ++i) {
    const __m512 v = _mm512_load_ps(sums + i * kBlock);
    _mm512_mask_storeu_ps(c.out + i * c.ldo + j, mask, c.round ? round_to_bf16(v) : v);
  }
}

template <class Tiles, WeightFormat F>
void amx_lanes(const LinearCall& c, std::byte* scratch) {
  constexpr int64_t kBytes = lane_step_bytes(F), kPairs = pairs_of(F), kLines = kBytes / 64;
  const Matrix& w = *c.w;
  const typename LanesExpander<F>::type expander;
  const int64_t n = c.x.n, steps = lane_steps(w), tile_bytes = lane_tile_bytes(w);
  const auto* weights = reinterpret_cast<const uint8_t*>(lanes_at(w, c.row0));
  auto* stage = reinterpret_cast<uint16_t*>(scratch);  // of two steps, which are expanded and used in turns
  auto* scaled = stage + 2 * kPairs * kBlockWords;
  const uint16_t* x = c.x.words;
  int64_t ldx = c.x.ld;
  if constexpr (F == WeightFormat::kFp8) {
    x = scaled;
    ldx = packed_columns(w.cols);
  }
  const int64_t own = (c.rows + kBlock - 1) / kBlock * tile_bytes,
                distance = (kAmxAheadBytes + tile_bytes - 1) / tile_bytes * tile_bytes;
  const auto* next = reinterpret_cast<const uint8_t*>(c.next);
  if (next == nullptr) next = weights + own;
  alignas(64) float sums[2][kStreamRows * kBlock];
  Tiles::configure_rows(static_cast<int>(n));
  const auto use = [&](int64_t step) __attribute__((always_inline)) {
    const uint16_t *from = stage + step % 2 * kPairs * kBlockWords, *xs = x + step * kPairs * kStep;
    const int64_t line = ldx * static_cast<int64_t>(sizeof(uint16_t));
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; p += 2) {
      Tiles::template load<4>(from + p * kBlockWords, kLine);
      Tiles::template load<6>(xs + p * kStep, line);
      Tiles::template dot<0, 6, 4>();
      Tiles::template load<5>(from + (p + 1) * kBlockWords, kLine);
      Tiles::template load<7>(xs + (p + 1) * kStep, line);
      Tiles::template dot<0, 7, 5>();
    }
  };
  for (int64_t j = 0; j < c.rows; j += kBlock) {
    const int64_t begin = j / kBlock * tile_bytes, at = begin + distance;
    const uint8_t *step = weights + begin, *ahead = at < own ? weights + at : next + (at - own);
    if constexpr (F == WeightFormat::kFp8) {
      const int64_t row = c.row0 + j;
      if (j == 0 || row % kBlockRows == 0) scale_activations(c, row_of(w, row).scale, w.cols / 32, scaled, ldx);
    }
    Tiles::template zero<0>();
    for (int64_t s = 0; s < steps; ++s, step += kBytes, ahead += kBytes) {
      uint16_t* to = stage + s % 2 * kPairs * kBlockWords;
#pragma GCC unroll 32
      for (int64_t line = 0; line < kLines; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T0);
#pragma GCC unroll 16
      for (int lane = 0; lane < kLaneCount; ++lane) {
        Words v[kPairs];
        expand_lane<F>(expander, step, lane, v);
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) _mm512_store_si512(to + p * kBlockWords + lane * kStep, v[p]);
      }
      if (s > 0) use(s - 1);
    }
    use(steps - 1);
    Tiles::template store<0>(sums[j / kBlock % 2], kBlock * sizeof(float));
    if (j > 0) store_outputs(c, j - kBlock, sums[(j / kBlock + 1) % 2]);
  }
  const int64_t last = (c.rows - 1) / kBlock;
  store_outputs(c, last * kBlock, sums[last % 2]);
  Tiles::release();
}

// Scratch bytes of rows of k columns.
constexpr int64_t amx_lanes_bytes(int64_t k) {
  return (8 * kBlockWords + kStreamRows * packed_columns(k)) * static_cast<int64_t>(sizeof(uint16_t));
}

template <class Tiles>
bool multiply_amx_lanes(const LinearCall& c, std::byte* scratch) {
  if (c.w->lanes == nullptr || c.x.n < 1 || c.x.tiled() || c.row0 % kLaneOutputs != 0 || c.rows < 1) return false;
  if (c.w->format == WeightFormat::kFp4) {
    amx_lanes<Tiles, WeightFormat::kFp4>(c, scratch);
    return true;
  }
  if (!may_be_scaled(c.x)) return false;
  amx_lanes<Tiles, WeightFormat::kFp8>(c, scratch);
  return true;
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
