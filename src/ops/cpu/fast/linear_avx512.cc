// Linear layers with AVX-512 VBMI and BF16: weights as stored -> bf16 in registers -> VDPBF16PS (see ORDER.md).
#include <immintrin.h>

#include <cstring>

#include "ops/cpu/fast/avx512.h"
#include "ops/cpu/fast/lanes.h"
#include "ops/cpu/fast/scaled_rows_avx512.h"
#include "ops/cpu/fast/weight_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kAheadBytes = 6 << 10;  // how far ahead of their loads weights are fetched, in whole groups of rows
constexpr int64_t kLargeBytes = 2 << 20;  // of a matrix: with others of its size it is not in the caches
constexpr int kPanelStep = 4;             // panel rows that share loaded activations
constexpr int64_t kStripColumns = 2048;   // columns of a tile that stay in the first-level cache
constexpr int64_t kPanelRowsMax = 64;
constexpr int64_t kPanelAhead = 12;  // steps that panel rows are fetched ahead of from the second-level cache

inline __m512 dot(__m512 acc, Words a, Words b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }

// ---- Sums -------------------------------------------------------------------------------------------------------

// The lanes of four accumulators to four partial sums each: (i, i + 8), then (i, i + 4).
inline __m512 fold(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// The sums of four accumulators: the rest is (i, i + 2), (0, 1).
inline __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  __m512 s = fold(a, b, c, d);
  s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
  s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s));
}

// Four sums, or as many of them as exist, of activation row i from weight row j on.
inline void store_sums(const LinearCall& c, int64_t i, int64_t j, __m128 sums, int64_t count) {
  _mm_mask_storeu_ps(c.out + i * c.ldo + j, static_cast<__mmask8>((1 << count) - 1), sums);
}

// The sums of Q x 4 accumulators in their order, Q <= 4: quad by quad.
template <int Q>
[[gnu::always_inline]] inline __m512 sum_quads(const LinearCall& c, const __m512* a) {
  __m512 s;
  if constexpr (Q == 1) {
    s = _mm512_castps128_ps512(sum_lanes(a[0], a[1], a[2], a[3]));
  } else {
    __m512 f[4];
    for (int q = 0; q < Q; ++q) f[q] = fold(a[4 * q], a[4 * q + 1], a[4 * q + 2], a[4 * q + 3]);
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_ps(f[0], f[1], 0x44), _mm512_shuffle_ps(f[0], f[1], 0xee));
    __m512 cd = ab;
    if constexpr (Q > 2) {
      const __m512 last = f[Q - 1];
      cd = _mm512_add_ps(_mm512_shuffle_ps(f[2], last, 0x44), _mm512_shuffle_ps(f[2], last, 0xee));
    }
    s = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
    s = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), s);
  }
  return c.round ? round_to_bf16(s) : s;
}

// store(q, sums) of each of the Q quads of acc, four at a time.
template <int Q, class Store>
[[gnu::always_inline]] inline void sum_tile(const LinearCall& c, const __m512* acc, Store&& store) {
  constexpr int kNow = Q < 4 ? Q : 4;
  const __m512 s = sum_quads<kNow>(c, acc);
  store(0, _mm512_castps512_ps128(s));
  if constexpr (kNow > 1) store(1, _mm512_extractf32x4_ps(s, 1));
  if constexpr (kNow > 2) store(2, _mm512_extractf32x4_ps(s, 2));
  if constexpr (kNow > 3) store(3, _mm512_extractf32x4_ps(s, 3));
  if constexpr (Q > 4)
    sum_tile<Q - 4>(c, acc + 16, [&](int q, __m128 sums) __attribute__((always_inline)) { store(q + 4, sums); });
}

// Quad q of acc holds the four outputs of group q / m for activation row i0 + q % m.
void store_tiles(const LinearCall& c, int64_t i0, int64_t j, const __m512* acc, int64_t m, int64_t count) {
  const int64_t quads = (count + 3) / 4 * m;
  int64_t q = 0;
  const auto store = [&](int64_t at, __m128 sums) {
    const int64_t output = (q + at) / m * 4, left = count - output;
    store_sums(c, i0 + (q + at) % m, j + output, sums, left < 4 ? left : 4);
  };
  for (; q + 4 <= quads; q += 4) sum_tile<4>(c, acc + q * 4, store);
  for (; q < quads; ++q) sum_tile<1>(c, acc + q * 4, store);
}
static_assert(kPanelStep == 4);

// The N outputs from j on of M activation rows: weights are expanded in registers.
template <WeightFormat F, int M, int N, class Expander>
[[gnu::always_inline]] inline void stream_rows(const LinearCall& c, int64_t j, const Expander& expander,
                                               const uint16_t* x, int64_t ldx, const uint8_t* scales,
                                               int64_t scales_ld, int64_t ahead_bytes) {
  const Matrix& w = *c.w;
  WeightRow rows[N];
  for (int r = 0; r < N; ++r) rows[r] = row_of(w, c.row0 + j + r);
  constexpr int kQuads = (M * N + 3) / 4;
  __m512 acc[4 * kQuads];  // of x row i and weight row r at i * N + r
#pragma GCC unroll 32
  for (__m512& a : acc) a = _mm512_setzero_ps();
  constexpr int64_t kBytes = F == WeightFormat::kFp8 ? 64 : F == WeightFormat::kFp4 ? 32 : 128;
  const uint8_t* ahead = rows[0].data + ahead_bytes;
  constexpr int kWords = N < 2 ? N : 2;  // weight rows that meet a loaded x
  const auto step = [&](int64_t chunk, int64_t left) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r0 = 0; r0 < N; r0 += kWords) {
      Words a[kWords], b[kWords];
#pragma GCC unroll 4
      for (int r = 0; r < kWords; ++r) {
        const uint8_t* next = ahead + (chunk * N + r0 + r) * kBytes;
        if (kBytes >= 64 || r % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
        if constexpr (kBytes == 128) _mm_prefetch(reinterpret_cast<const char*>(next + 64), _MM_HINT_T0);
        load_chunk<F>(expander, rows[r0 + r], scales + (r0 + r) * scales_ld, chunk, left, a[r], b[r]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const uint16_t* xi = x + i * ldx + chunk * 64;
        const Words xa = _mm512_loadu_si512(xi), xb = _mm512_loadu_si512(xi + 32);
#pragma GCC unroll 4
        for (int r = 0; r < kWords; ++r) {
          __m512& sum = acc[i * N + r0 + r];
          sum = dot(dot(sum, a[r], xa), b[r], xb);
        }
      }
    }
  };
  const int64_t whole = w.cols / 64;
  for (int64_t chunk = 0; chunk < whole; ++chunk) step(chunk, 64);
  if (w.cols % 64 != 0) step(whole, w.cols % 64);
  sum_tile<kQuads>(c, acc, [&](int q, __m128 sums) __attribute__((always_inline)) {
    float* to = c.out + j + (N == 8 ? q % 2 * 4 : 0);
    if constexpr (N >= 4) {
      _mm_storeu_ps(to + q * 4 / N * c.ldo, sums);
    } else if constexpr (N == 2) {
      _mm_storel_pi(reinterpret_cast<__m64*>(to + 2 * q * c.ldo), sums);
      if (2 * q + 1 < M) _mm_storeh_pi(reinterpret_cast<__m64*>(to + (2 * q + 1) * c.ldo), sums);
    } else {
      alignas(16) float one[4];
      _mm_store_ps(one, sums);
      for (int i = 4 * q; i < M && i < 4 * q + 4; ++i) to[i * c.ldo] = one[i - 4 * q];
    }
  });
}

template <WeightFormat F, int M>
void stream(const LinearCall& c, std::byte* scratch) {
  const Matrix& w = *c.w;
  const typename ExpanderOf<F>::type expander;
  auto* scaled = reinterpret_cast<uint16_t*>(scratch);
  auto* scales = reinterpret_cast<uint8_t*>(scratch);
  const int64_t scales_ld = w.cols / 32;
  // Memory is fastest if it is fetched in ascending order: while one group of rows is used, a later one is fetched.
  constexpr bool kFp4 = F == WeightFormat::kFp4;
  constexpr int kGroup = M <= 2 && F != WeightFormat::kBf16 ? 8 : M <= (kFp4 ? 4 : 6) ? 4 : 2;  // best as measured
  // Rows whole pages apart share the sets of the first-level cache: eight of them and x do not fit its ways.
  const int64_t stride = row_of(w, 1).data - row_of(w, 0).data;
  const bool by_four = kGroup > 4 && stride % 4096 == 0;
  // One row of activations and FP8 from memory: use in nearly the order in which it is fetched beats longer chains of
  // sums at once.
  constexpr bool kPairs = M == 1 && F == WeightFormat::kFp8;
  const bool pairs = kPairs && w.rows * w.cols >= kLargeBytes;
  const int64_t group = (pairs ? 2 : by_four ? 4 : kGroup) * stride;
  const int64_t ahead = (kAheadBytes + group - 1) / group * group;
  for (int64_t j = 0; j < c.rows;) {
    const int64_t first = j;
    const uint16_t* x = c.x.words;
    int64_t ldx = c.x.ld;
    if constexpr (F == WeightFormat::kFp8) {
      x = scaled;
      ldx = packed_columns(w.cols);
      scale_activations(c, row_of(w, c.row0 + j).scale, w.cols / 32, scaled, ldx);
    }
    int64_t end = j + kBlockRows - (c.row0 + j) % kBlockRows;  // of the row of FP8 blocks
    if (end > c.rows) end = c.rows;
    if constexpr (F == WeightFormat::kFp4)
      clamp_scales(row_of(w, c.row0 + first).scale, (end - first) * scales_ld, scales);
    const auto outputs = [&]<int N>() __attribute__((always_inline)) {
      for (; j + N <= end; j += N)
        stream_rows<F, M, N>(c, j, expander, x, ldx, scales + (j - first) * scales_ld, scales_ld, ahead);
    };
    if constexpr (kPairs) {
      if (pairs) outputs.template operator()<2>();
    }
    if (!by_four && !pairs) outputs.template operator()<kGroup>();
    if constexpr (kGroup > 4) outputs.template operator()<4>();
    outputs.template operator()<1>();
  }
}

// ---- Panels -----------------------------------------------------------------------------------------------------

// Panels and activation tiles lie in the order in which panel_step reads them: 32 words of every row, then the next 32.

// Four panel rows times M activation rows over `steps` x 32 columns; acc[i * 4 + r] is continued or begun.
template <int M>
void panel_step(const uint16_t* w, const uint16_t* x, int64_t steps, bool first, __m512* acc) {
  __m512 s[M][kPanelStep];
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kPanelStep; ++r) s[i][r] = first ? _mm512_setzero_ps() : acc[i * kPanelStep + r];
  }
  for (int64_t k = 0; k < steps; ++k) {
    Words v[kPanelStep];
#pragma GCC unroll 4
    for (int r = 0; r < kPanelStep; ++r) {
      v[r] = _mm512_load_si512(w + (k * kPanelStep + r) * 32);
      _mm_prefetch(reinterpret_cast<const char*>(w + ((k + kPanelAhead) * kPanelStep + r) * 32), _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
      const Words xi = _mm512_loadu_si512(x + (k * M + i) * 32);
#pragma GCC unroll 4
      for (int r = 0; r < kPanelStep; ++r) s[i][r] = dot(s[i][r], v[r], xi);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kPanelStep; ++r) acc[i * kPanelStep + r] = s[i][r];
  }
}

using PanelStep = void (*)(const uint16_t*, const uint16_t*, int64_t, bool, __m512*);
constexpr PanelStep kPanelSteps[kTileRows + 1] = {nullptr,       panel_step<1>, panel_step<2>, panel_step<3>,
                                                  panel_step<4>, panel_step<5>, panel_step<6>};

void multiply_panel(const LinearCall& c, int64_t j0, int64_t count, const uint16_t* panel, int64_t ldp, __m512* acc) {
  const int64_t groups = (count + kPanelStep - 1) / kPanelStep, strips = (ldp + kStripColumns - 1) / kStripColumns;
  const int64_t strip = packed_columns((ldp + strips - 1) / strips);
  for (int64_t i = 0; i < c.x.n; i += kTileRows) {
    const int64_t m = c.x.tile_rows(i / kTileRows);
    const PanelStep step = kPanelSteps[m];
    const uint16_t* tile = c.x.row(i);
    for (int64_t k = 0; k < ldp; k += strip) {
      const int64_t steps = (ldp - k < strip ? ldp - k : strip) / kStep;
      for (int64_t g = 0; g < groups; ++g)
        step(panel + (g * ldp + k) * kPanelStep, tile + k * m, steps, k == 0, acc + g * m * kPanelStep);
    }
    store_tiles(c, i, j0, acc, m, count);
  }
}

int64_t panel_rows(int64_t ldp) {
  const int64_t fit = kPanelBytes / (ldp * 2) / kPanelStep * kPanelStep;
  return fit < kPanelStep ? kPanelStep : fit > kPanelRowsMax ? kPanelRowsMax : fit;
}

template <WeightFormat F>
void panels(const LinearCall& c, std::byte* scratch) {
  const Matrix& w = *c.w;
  const int64_t ldp = packed_columns(w.cols), step = panel_rows(ldp);
  auto* acc = reinterpret_cast<__m512*>(scratch);
  auto* panel = reinterpret_cast<uint16_t*>(acc + kPanelRowsMax * kTileRows);
  auto* scales = reinterpret_cast<uint8_t*>(panel + step * ldp);
  for (int64_t j = 0; j < c.rows; j += step) {
    const int64_t count = c.rows - j < step ? c.rows - j : step;
    for (int64_t r = 0; r < count; ++r)
      expand_row<F>(w, c.row0 + j + r, scales, panel + r / kPanelStep * kPanelStep * ldp + r % kPanelStep * 32,
                    kPanelStep);
    for (int64_t r = count; r % kPanelStep != 0; ++r) {
      uint16_t* row = panel + r / kPanelStep * kPanelStep * ldp + r % kPanelStep * 32;
      for (int64_t k = 0; k < ldp; k += kStep) _mm512_store_si512(row + k * kPanelStep, _mm512_setzero_si512());
    }
    multiply_panel(c, j, count, panel, ldp, acc);
  }
}

// One activation row and BF16 weights of 32 columns (the Markov head): a weight row is one register, so sixteen of them
// run together.
void narrow_row(const LinearCall& c) {
  constexpr int kRows = 16;
  const uint8_t* data = row_of(*c.w, c.row0).data;
  const Words x = _mm512_loadu_si512(c.x.words), zero = _mm512_setzero_si512();
  int64_t j = 0;
  const auto rows = [&](int64_t count) __attribute__((always_inline)) {
    __m512 acc[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Words w = r < count ? _mm512_loadu_si512(data + (j + r) * 64) : zero;
      acc[r] = dot(dot(_mm512_setzero_ps(), w, x), zero, zero);  // the second: missing columns of the chunk
    }
    return sum_quads<4>(c, acc);
  };
  for (; j + kRows <= c.rows; j += kRows) _mm512_storeu_ps(c.out + j, rows(kRows));
  if (j < c.rows)
    _mm512_mask_storeu_ps(c.out + j, static_cast<__mmask16>((1u << (c.rows - j)) - 1), rows(c.rows - j));
}

template <WeightFormat F>
void multiply_format(const LinearCall& c, std::byte* scratch) {
  if constexpr (F == WeightFormat::kBf16) {
    if (c.x.n == 1 && c.w->cols == 32) return narrow_row(c);
  }
  switch (c.x.n) {
    case 0: return;
    case 1: return stream<F, 1>(c, scratch);
    case 2: return stream<F, 2>(c, scratch);
    case 3: return stream<F, 3>(c, scratch);
    case 4: return stream<F, 4>(c, scratch);
    case 5: return stream<F, 5>(c, scratch);
    case 6: return stream<F, 6>(c, scratch);
    case 7: return stream<F, 7>(c, scratch);
    case 8: return stream<F, 8>(c, scratch);
    default: return panels<F>(c, scratch);
  }
}
static_assert(kStreamRows == 8);

}  // namespace

namespace avx512 {

void multiply(const LinearCall& c, std::byte* scratch) {
  if (c.w->lanes != nullptr && !c.x.tiled() && c.row0 % kLaneOutputs == 0) return multiply_lanes(c, scratch);
  switch (c.w->format) {
    case WeightFormat::kFp8: return multiply_format<WeightFormat::kFp8>(c, scratch);
    case WeightFormat::kFp4: return multiply_format<WeightFormat::kFp4>(c, scratch);
    default: return multiply_format<WeightFormat::kBf16>(c, scratch);
  }
}

}  // namespace avx512
}  // namespace deepinfer::ops::cpu::fast
