// Attention of few heads with AVX-512: two keys share a register, so that eight heads fill it (see ORDER.md).
//
// Scores: lanes 2h and 2h + 1 are head h against the two keys of a pair. Values: lanes are channels.
#include <immintrin.h>

#include <cmath>

#include "ops/cpu/fast/avx512.h"
#include "ops/cpu/fast/exp_lanes.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int kHeads = kFewHeads;
constexpr int kPairsAtOnce = 16;  // pairs of keys whose sums stay in registers
static_assert(kHeads == 8);

inline __m512 dot(__m512 acc, __m512i a, __m512i b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }

// Dword j of a lane of 128 bits: heads 0 .. 3 from one register, 4 .. 7 from another, each twice.
struct Spread {
  alignas(64) int32_t lane[4][16];
};

constexpr Spread make_spread_of_heads() {
  Spread t{};
  for (int l = 0; l < 4; ++l) {
    for (int i = 0; i < 16; ++i) t.lane[l][i] = (i / 8) * 16 + 4 * l + i / 2 % 4;
  }
  return t;
}

constexpr Spread kSpread = make_spread_of_heads();

// Pairs of channels p, p + 1, .. of four heads: out[k] lane l holds pair 4 l + k of each.
inline void transpose_heads(const __m512i* r, __m512i* out) {
  const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]),
                c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
  out[0] = _mm512_unpacklo_epi64(a, c);
  out[1] = _mm512_unpackhi_epi64(a, c);
  out[2] = _mm512_unpacklo_epi64(b, d);
  out[3] = _mm512_unpackhi_epi64(b, d);
}

// panel[p]: pair p of every head's query, twice; missing heads are zero.
void pack_queries(const FewHeadsCall& c, __m512i* panel) {
  for (int64_t c0 = 0; c0 < c.channels; c0 += 32) {
    __m512i rows[kHeads], four[2][4];
    for (int64_t h = 0; h < kHeads; ++h) {
      rows[h] = _mm512_setzero_si512();
      if (h >= c.heads) continue;
      const __m512i low = _mm512_loadu_si512(c.q + h * c.channels + c0),
                    high = _mm512_loadu_si512(c.q + h * c.channels + c0 + 16);
      rows[h] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16))),
                                   _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)), 1);
    }
    transpose_heads(rows, four[0]);
    transpose_heads(rows + 4, four[1]);
    for (int l = 0; l < 4; ++l) {
      const __m512i index = _mm512_load_si512(kSpread.lane[l]);
      for (int k = 0; k < 4; ++k)
        _mm512_store_si512(panel + c0 / 2 + 4 * l + k, _mm512_permutex2var_epi32(four[0][k], index, four[1][k]));
    }
  }
}

// 64 bits of out[t][p]: pair p of keys 2t and 2t + 1; a missing last key is zero.
void pair_keys(const FewHeadsCall& c, uint64_t* out) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t t = 0; t < c.keys; t += 2) {
    for (int64_t c0 = 0; c0 < c.channels; c0 += 32, out += 16) {
      const __m512i a = _mm512_loadu_si512(c.words + t * c.channels + c0);
      const __m512i b =
          t + 1 < c.keys ? _mm512_loadu_si512(c.words + (t + 1) * c.channels + c0) : _mm512_setzero_si512();
      _mm512_store_si512(out, _mm512_permutex2var_epi32(a, low, b));
      _mm512_store_si512(out + 8, _mm512_permutex2var_epi32(a, high, b));
    }
  }
}

template <int N>
void score_pairs(const __m512i* panel, const uint64_t* keys, int64_t half, float* scores) {
  __m512 acc[N];
  for (__m512& a : acc) a = _mm512_setzero_ps();
  for (int64_t p = 0; p < half; ++p) {
    const __m512i q = _mm512_load_si512(panel + p);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i)
      acc[i] = dot(acc[i], q, _mm512_set1_epi64(static_cast<int64_t>(keys[i * half + p])));
  }
  for (int i = 0; i < N; ++i) _mm512_store_ps(scores + i * 16, acc[i]);
}

// probabilities[t][h]: bf16 of keys 2t and 2t + 1. Denominators: in lane 2h.
void softmax_pairs(const FewHeadsCall& c, const float* scores, uint32_t* probabilities, float* denominators) {
  const F16 scale = F16::all(1.0f / std::sqrt(static_cast<float>(c.channels)));
  const int64_t whole = c.keys / 2;
  const bool one_more = c.keys % 2 != 0;
  const auto first_of_pair = [](F16 x, F16 other) { return F16{_mm512_mask_mov_ps(other.v, 0x5555, x.v)}; };
  F16 top = F16::all(-1e30f);
  for (int64_t t = 0; t < whole; ++t) top = max(F16::load(scores + t * 16) * scale, top);
  if (one_more) top = max(first_of_pair(F16::load(scores + whole * 16) * scale, F16::all(-1e30f)), top);
  top = max(swap_pairs(top), top);
  F16 sum = F16::all(0.0f);
  const auto store = [&](int64_t t, F16 e) {
    const __m512i r = _mm512_castps_si512(to_bf16(e).v);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(probabilities + t * kHeads),
        _mm512_cvtepi64_epi32(_mm512_or_si512(_mm512_srli_epi64(r, 32), _mm512_srli_epi64(r, 16))));
  };
  for (int64_t t = 0; t < whole; ++t) {
    const F16 e = exp(F16::load(scores + t * 16) * scale - top);
    sum = sum + e + swap_pairs(e);
    store(t, e);
  }
  if (one_more) {
    const F16 e = first_of_pair(exp(F16::load(scores + whole * 16) * scale - top), F16::all(0.0f));
    sum = sum + e;
    store(whole, e);
  }
  alignas(64) float sinks[16] = {};
  for (int64_t h = 0; h < c.heads; ++h) sinks[2 * h] = c.sink[h];
  (sum + exp(F16::load(sinks) - top)).store(denominators);
}

// 32 channels from c0 on of every head.
void add_values(const FewHeadsCall& c, const uint32_t* probabilities, const uint64_t* keys, const float* denominators,
                int64_t c0) {
  const int64_t half = c.channels / 2;
  // Words (a, b) of two neighbouring channels a and two b become (a, b) of each channel.
  const __m512i by_channel = _mm512_set4_epi32(0x0f0e0b0a, 0x0d0c0908, 0x07060302, 0x05040100);
  __m512 acc[kHeads][2];
  for (auto& a : acc) a[0] = a[1] = _mm512_setzero_ps();
  const uint64_t* v = keys + c0 / 2;
  for (int64_t t = 0; t < (c.keys + 1) / 2; ++t, v += half) {
    const __m512i low = _mm512_shuffle_epi8(_mm512_load_si512(v), by_channel),
                  high = _mm512_shuffle_epi8(_mm512_load_si512(v + 8), by_channel);
    const uint32_t* p = probabilities + t * kHeads;
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const __m512i weight = _mm512_set1_epi32(static_cast<int>(p[h]));
      acc[h][0] = dot(acc[h][0], low, weight);
      acc[h][1] = dot(acc[h][1], high, weight);
    }
  }
  for (int64_t h = 0; h < kHeads; ++h) {
    if (h >= c.heads) break;
    const F16 by = F16::all(denominators[2 * h]);
    for (int g = 0; g < 2; ++g) to_bf16(F16{acc[h][g]} / by).store(c.out + h * c.channels + c0 + g * 16);
  }
}

}  // namespace

namespace avx512 {

void few_heads(const FewHeadsCall& c, std::byte* memory) {
  const int64_t half = c.channels / 2, pairs = (c.keys + 1) / 2;
  auto* panel = reinterpret_cast<__m512i*>(memory);
  auto* keys = reinterpret_cast<uint64_t*>(panel + half);
  auto* scores = reinterpret_cast<float*>(keys + pairs * half);
  auto* probabilities = reinterpret_cast<uint32_t*>(scores + pairs * 16);
  alignas(64) float denominators[16];
  pack_queries(c, panel);
  pair_keys(c, keys);
  int64_t t = 0;
  for (; t + kPairsAtOnce <= pairs; t += kPairsAtOnce)
    score_pairs<kPairsAtOnce>(panel, keys + t * half, half, scores + t * 16);
  for (; t + 4 <= pairs; t += 4) score_pairs<4>(panel, keys + t * half, half, scores + t * 16);
  for (; t < pairs; ++t) score_pairs<1>(panel, keys + t * half, half, scores + t * 16);
  softmax_pairs(c, scores, probabilities, denominators);
  for (int64_t c0 = 0; c0 < c.channels; c0 += 32) add_values(c, probabilities, keys, denominators, c0);
}

}  // namespace avx512
}  // namespace deepinfer::ops::cpu::fast
