// Lanes of Matrix::lanes to bf16 words in registers (lanes.h). Only for files compiled with AVX-512 VBMI.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/fast/lanes.h"
#include "ops/cpu/fast/weight_rows_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// Values of e2m1 times 2^kScaleLimit, twice, so that the bit above a code does not matter. Both zeros are +0.
struct LargeE2m1 {
  alignas(64) uint16_t words[32];
};

constexpr LargeE2m1 make_large_e2m1() {
  constexpr int kMagnitude[8] = {0,        126 << 7,        127 << 7, (127 << 7) + 64,
                                 128 << 7, (128 << 7) + 64, 129 << 7, (129 << 7) + 64};
  LargeE2m1 t{};
  for (int i = 0; i < 32; ++i) {
    const int m = kMagnitude[i & 7];
    t.words[i] = static_cast<uint16_t>(m == 0 ? 0 : (m + (kScaleLimit << 7)) | (i & 8) << 12);
  }
  return t;
}

constexpr LargeE2m1 kLargeE2m1 = make_large_e2m1();

struct LanesFp4 {
  __m512i table = _mm512_load_si512(kLargeE2m1.words);
};
template <WeightFormat F>
struct LanesExpander {
  using type = typename ExpanderOf<F>::type;
};
template <>
struct LanesExpander<WeightFormat::kFp4> {
  using type = LanesFp4;
};

// How many pairs of a lane lie in a step.
constexpr int pairs_of(WeightFormat f) { return f == WeightFormat::kFp4 ? 4 : 2; }

template <WeightFormat F, class Expander>
[[gnu::always_inline]] inline void expand_lane(const Expander& e, const uint8_t* step, int lane,
                                               Words (&w)[pairs_of(F)]) {
  if constexpr (F == WeightFormat::kFp4) {
    const __m512i codes = _mm512_load_si512(step + (4 + lane) * 64);
    const uint8_t* exponents = step + lane / 8 * 64;
    const __m512i first = _mm512_load_si512(exponents), second = _mm512_load_si512(exponents + 128);
    w[0] = _mm512_subs_epu16(_mm512_permutexvar_epi16(codes, e.table), first);
    w[1] = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), e.table), first);
    w[2] = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), e.table), second);
    w[3] = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), e.table), second);
  } else {
    e.expand(_mm512_load_si512(step + lane * 64), w[0], w[1]);
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
