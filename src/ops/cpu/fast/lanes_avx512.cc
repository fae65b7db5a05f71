// Linear layers of few rows from Matrix::lanes, and that copy, with AVX-512 (see lanes.h, ORDER.md).
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/fast/avx512.h"
#include "ops/cpu/fast/lanes.h"
#include "ops/cpu/fast/lanes_avx512.h"
#include "ops/cpu/fast/scaled_rows_avx512.h"
#include "ops/cpu/fast/weight_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kOutputs = kLaneOutputs;
constexpr int64_t kAheadBytes = 8 << 10;  // how far ahead of their use weights are fetched, in whole tiles

// The column of word m of a chunk.
int64_t column_of(WeightFormat f, int64_t m) {
  return f == WeightFormat::kFp8 ? (m / 8 % 4 * 2 + m / 32) * 8 + m % 8 : m % 32 * 2 + m / 32;
}

// ---- The copy ---------------------------------------------------------------------------------------------------

// Codes of a chunk of one weight row in the order of the format; 0 where there is none.
void read_codes(const Matrix& w, int64_t row, int64_t column0, uint16_t* codes) {
  if (row >= w.rows) return static_cast<void>(std::memset(codes, 0, kChunk * sizeof *codes));
  const uint8_t* data = row_of(w, row).data;
  for (int64_t m = 0; m < kChunk; ++m) {
    const int64_t column = column0 + column_of(w.format, m);
    if (column >= w.cols) {
      codes[m] = 0;
    } else {
      codes[m] = w.format == WeightFormat::kFp8 ? data[column] : data[column / 2] >> column % 2 * 4 & 15;
    }
  }
}

// Of the columns column0 .. of sixteen rows: what a value of kLargeE2m1 loses to be scaled. Words 2o and 2o + 1 are
// output o's.
void fill_exponents(const Matrix& w, int64_t row0, int64_t column0, uint16_t* out) {
  for (int64_t o = 0; o < kOutputs; ++o) {
    const bool exists = row0 + o < w.rows && column0 < w.cols;
    const uint32_t scale = exists ? clamp_scale(row_of(w, row0 + o).scale[column0 / 32]) : kScaleBias;
    out[2 * o] = out[2 * o + 1] = static_cast<uint16_t>((kScaleBias + kScaleLimit - scale) << 7);
  }
}

void fill_step(const Matrix& w, int64_t row0, int64_t column0, uint16_t* out) {
  const bool fp4 = w.format == WeightFormat::kFp4;
  for (int64_t half = 0; fp4 && half < 4; ++half, out += 32) fill_exponents(w, row0, column0 + half * 32, out);
  uint16_t codes[2 * kChunk];
  for (int64_t o = 0; o < kOutputs; ++o) {
    read_codes(w, row0 + o, column0, codes);
    if (fp4) read_codes(w, row0 + o, column0 + kChunk, codes + kChunk);
    for (int64_t m = 0; m < 32; ++m) {
      const int64_t lane = m / 2, word = 2 * o + m % 2;
      const uint16_t first = codes[m], second = codes[32 + m];
      if (fp4) {
        out[lane * 32 + word] = static_cast<uint16_t>(first | second << 4 | codes[64 + m] << 8 | codes[96 + m] << 12);
      } else {
        auto* to = reinterpret_cast<uint8_t*>(out) + lane * 64 + word / 8 * 16 + word % 8;  // as bytes are unpacked
        to[0] = static_cast<uint8_t>(first);
        to[8] = static_cast<uint8_t>(second);
      }
    }
  }
}

// ---- Sums -------------------------------------------------------------------------------------------------------

inline __m512 dot(__m512 acc, Words w, Words x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }

inline Words pair_of(const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// In this order neighbours meet first, then neighbouring twos, and so on (ORDER.md).
constexpr int kLaneOrder[kLaneCount] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

// Sums of N registers, `stride` apart, N a power of two: neighbours, then neighbouring twos.
template <int N>
[[gnu::always_inline]] inline __m512 meet(const __m512* a, int stride) {
  if constexpr (N == 1) {
    return *a;
  } else {
    return _mm512_add_ps(meet<N / 2>(a, stride), meet<N / 2>(a + N / 2 * stride, stride));
  }
}

// T tiles for M rows of x, L lanes at a time.
template <WeightFormat F, int M, int T, int L, class Expander>
[[gnu::always_inline]] inline void tiles(const Expander& e, const uint8_t* weights, const uint8_t* ahead,
                                         int64_t tile_bytes, int64_t steps, const uint16_t* x, int64_t ldx,
                                         __m512 (&sums)[T][M]) {
  constexpr int64_t kBytes = lane_step_bytes(F), kColumns = lane_step_columns(F);
  constexpr int kPairs = pairs_of(F), kTimes = kLaneCount / L;
  constexpr int kLines = static_cast<int>(kBytes / 64) / kTimes;  // of a step that are fetched at a time
  __m512 met[kTimes][T][M];
#pragma GCC unroll 1
  for (int time = 0; time < kTimes; ++time) {
    const int* lanes = kLaneOrder + time * L;
    __m512 acc[L][T][M];
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) {
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) acc[l][t][i] = _mm512_setzero_ps();
      }
    }
    const uint8_t* step = weights;
    const uint16_t* xs = x;
#pragma GCC unroll 1
    for (int64_t s = 0; s < steps; ++s, step += kBytes, xs += kColumns) {
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
        const uint8_t* fetched = ahead + (step - weights) + t * tile_bytes + time * kLines * 64;
#pragma GCC unroll 32
        for (int line = 0; line < kLines; ++line)
          _mm_prefetch(reinterpret_cast<const char*>(fetched + line * 64), _MM_HINT_T0);
      }
#pragma GCC unroll 16
      for (int l = 0; l < L; ++l) {
        const int lane = lanes[l];
        Words w[T][kPairs];
#pragma GCC unroll 2
        for (int t = 0; t < T; ++t) expand_lane<F>(e, step + t * tile_bytes, lane, w[t]);
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
          for (int i = 0; i < M; ++i) {
            const Words pair = pair_of(xs + i * ldx + lane * 2 + p * 32);
#pragma GCC unroll 2
            for (int t = 0; t < T; ++t) acc[l][t][i] = dot(acc[l][t][i], w[t][p], pair);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) met[time][t][i] = meet<L>(&acc[0][t][i], T * M);
    }
  }
#pragma GCC unroll 2
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) sums[t][i] = meet<kTimes>(&met[0][t][i], T * M);
  }
}

// Tiles and lanes in work at a time for M rows of x, best as measured: their sums stay in registers.
constexpr int tiles_at_once(int m) { return m <= 2 ? 1 : 2; }
constexpr int lanes_at_once(int m) {
  constexpr int kLanes[kStreamRows + 1] = {0, 16, 8, 4, 2, 2, 1, 1, 1};
  return kLanes[m];
}

template <WeightFormat F, int M>
void multiply_rows(const LinearCall& c, std::byte* scratch) {
  constexpr int kTiles = tiles_at_once(M), kLanesAtOnce = lanes_at_once(M);
  const Matrix& w = *c.w;
  const typename LanesExpander<F>::type expander;
  const int64_t steps = lane_steps(w), tile_bytes = lane_tile_bytes(w);
  const auto* weights = reinterpret_cast<const uint8_t*>(lanes_at(w, c.row0));
  auto* scaled = reinterpret_cast<uint16_t*>(scratch);
  const uint16_t* x = c.x.words;
  int64_t ldx = c.x.ld;
  if constexpr (F == WeightFormat::kFp8) {
    x = scaled;
    ldx = packed_columns(w.cols);
  }
  // While a tile is used, a later one of this call or of the next is fetched.
  const int64_t own = (c.rows + kOutputs - 1) / kOutputs * tile_bytes,
                distance = (kAheadBytes + tile_bytes - 1) / tile_bytes * tile_bytes;
  const auto* next = reinterpret_cast<const uint8_t*>(c.next);
  if (next == nullptr) next = weights + own;
  const auto outputs = [&]<int T>(int64_t j) __attribute__((always_inline)) {
    const int64_t begin = j / kOutputs * tile_bytes, at = begin + distance;
    const uint8_t* ahead = at < own ? weights + at : next + (at - own);
    if constexpr (F == WeightFormat::kFp8) {
      const int64_t row = c.row0 + j;
      if (j == 0 || row % kBlockRows == 0) scale_activations(c, row_of(w, row).scale, w.cols / 32, scaled, ldx);
    }
    __m512 sums[T][M];
    tiles<F, M, T, kLanesAtOnce>(expander, weights + begin, ahead, tile_bytes, steps, x, ldx, sums);
#pragma GCC unroll 2
    for (int t = 0; t < T; ++t) {
      const int64_t left = c.rows - j - t * kOutputs;
      const auto mask = static_cast<__mmask16>(left >= kOutputs ? 0xffff : (1 << left) - 1);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i)
        _mm512_mask_storeu_ps(c.out + i * c.ldo + j + t * kOutputs, mask,
                              c.round ? round_to_bf16(sums[t][i]) : sums[t][i]);
    }
  };
  int64_t j = 0;
  if constexpr (kLanesAtOnce < 8) {
    // Their lines are first touched far from each other.
    const int64_t end = own < kAheadBytes ? own : kAheadBytes;
    for (int64_t at = 0; at < end; at += 64) _mm_prefetch(reinterpret_cast<const char*>(weights + at), _MM_HINT_T0);
  }
  if constexpr (kTiles == 2) {
    // Both tiles lie in one row of FP8 blocks.
    if (c.row0 % kBlockRows != 0 && j < c.rows) {
      outputs.template operator()<1>(j);
      j += kOutputs;
    }
    for (; j + kOutputs < c.rows; j += 2 * kOutputs) outputs.template operator()<2>(j);
  }
  for (; j < c.rows; j += kOutputs) outputs.template operator()<1>(j);
}

template <WeightFormat F>
void multiply_format(const LinearCall& c, std::byte* scratch) {
  switch (c.x.n) {
    case 1: return multiply_rows<F, 1>(c, scratch);
    case 2: return multiply_rows<F, 2>(c, scratch);
    case 3: return multiply_rows<F, 3>(c, scratch);
    case 4: return multiply_rows<F, 4>(c, scratch);
    case 5: return multiply_rows<F, 5>(c, scratch);
    case 6: return multiply_rows<F, 6>(c, scratch);
    case 7: return multiply_rows<F, 7>(c, scratch);
    case 8: return multiply_rows<F, 8>(c, scratch);
    default: return;
  }
}
static_assert(kStreamRows == 8);

}  // namespace

namespace avx512 {

void fill_lanes(const Matrix& w, std::byte* out) {
  const int64_t columns = lane_step_columns(w.format), bytes = lane_step_bytes(w.format);
  for (int64_t row = 0; row < w.rows; row += kOutputs) {
    for (int64_t column = 0; column < w.cols; column += columns, out += bytes)
      fill_step(w, row, column, reinterpret_cast<uint16_t*>(out));
  }
}

void multiply_lanes(const LinearCall& c, std::byte* scratch) {
  return c.w->format == WeightFormat::kFp4 ? multiply_format<WeightFormat::kFp4>(c, scratch)
                                           : multiply_format<WeightFormat::kFp8>(c, scratch);
}

}  // namespace avx512
}  // namespace deepinfer::ops::cpu::fast
