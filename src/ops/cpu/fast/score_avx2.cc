// Index scores with AVX2: integer dot products of FP4 codes, the chains of heads one key at a time (spec/model.md 8.2).
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ops/cpu/fast/avx2.h"

namespace deepinfer::ops::cpu::fast {
namespace {

constexpr int64_t kWordsOfGroup = kIndexGroup / 4;

// The nearest bf16 value of a double with one rounding.
double round_once(double x) {
  constexpr int kDropped = 52 - 7;
  uint64_t b;
  std::memcpy(&b, &x, sizeof b);
  b += (uint64_t{1} << (kDropped - 1)) - 1 + ((b >> kDropped) & 1);
  b &= ~((uint64_t{1} << kDropped) - 1);
  std::memcpy(&x, &b, sizeof x);
  return x;
}

// Call: ScoreCall or ReachCall. panel, key_factors: of one panel.
template <class Call>
void head_dot(const Call& c, const uint8_t* panel, const float* key_factors, int64_t h, int64_t groups, float* out) {
  const auto* q = reinterpret_cast<const int32_t*>(c.query + h * c.channels);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int half = 0; half < 2; ++half) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t g = 0; g < groups; ++g) {
      __m256i acc = _mm256_setzero_si256();
      for (int64_t w = 0; w < kWordsOfGroup; ++w) {
        const auto* codes =
            reinterpret_cast<const __m256i*>(panel + ((g * kWordsOfGroup + w) * kKeyLanes + half * 8) * 4);
        const __m256i pairs =
            _mm256_maddubs_epi16(_mm256_loadu_si256(codes), _mm256_set1_epi32(q[g * kWordsOfGroup + w]));
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones));
      }
      const __m256 exact = _mm256_cvtepi32_ps(_mm256_sub_epi32(acc, _mm256_set1_epi32(c.twelve[h * groups + g])));
      const __m256 factor = _mm256_mul_ps(_mm256_loadu_ps(key_factors + g * kKeyLanes + half * 8),
                                          _mm256_set1_ps(c.factors[h * groups + g]));
      sum = _mm256_add_ps(sum, _mm256_mul_ps(exact, factor));
    }
    _mm256_storeu_ps(out + half * 8, sum);
  }
}

// Ascending with the score; scores are bf16 values, zeros are equal.
inline uint32_t order_key(float score) {
  uint32_t b;
  std::memcpy(&b, &score, sizeof b);
  if (b == 0x80000000u) b = 0;
  b >>= 16;
  return b & 0x8000u ? 0xffffu - b : b | 0x8000u;
}

}  // namespace

namespace avx2 {

// The `keep` best of n by descending score, lower index first among equals, ascending by index: two rounds of counting
// find the score of the last one.
void best(const float* scores, int64_t n, int64_t keep, int32_t* out) {
  if (keep >= n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
    return;
  }
  std::array<int64_t, 256> count{};
  for (int64_t i = 0; i < n; ++i) ++count[order_key(scores[i]) >> 8];
  int64_t left = keep;
  uint32_t high = 255;
  while (count[high] < left) left -= count[high--];
  count.fill(0);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t k = order_key(scores[i]);
    if (k >> 8 == high) ++count[k & 255];
  }
  uint32_t low = 255;
  while (count[low] < left) left -= count[low--];
  const uint32_t last = high << 8 | low;
  for (int64_t i = 0, kept = 0; kept < keep; ++i) {
    const uint32_t k = order_key(scores[i]);
    if (k > last || (k == last && left-- > 0)) out[kept++] = static_cast<int32_t>(i);
  }
}

void key_panel(const KeyPanel& p) {
  constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  for (int64_t k = 0; k < kKeyLanes; ++k) {
    const int64_t key = k < p.keys ? k : p.keys - 1;
    const uint8_t* data = p.data + key * p.data_ld;
    for (int64_t g = 0; g < p.channels / kIndexGroup; ++g) {
      for (int64_t i = 0; i < kIndexGroup / 2; ++i) {
        const uint8_t pair = data[g * kIndexGroup / 2 + i];
        const int64_t word = g * kWordsOfGroup + i / 4;
        p.codes[(word * kKeyLanes + k) * 4 + i % 4] = kTable[pair & 15];
        p.codes[((word + kWordsOfGroup / 2) * kKeyLanes + k) * 4 + i % 4] = kTable[pair >> 4];
      }
      const uint32_t bits = static_cast<uint32_t>(p.scales[key * p.scale_ld + g]) << 23;
      float scale;
      std::memcpy(&scale, &bits, sizeof scale);
      p.factors[g * kKeyLanes + k] = scale * 0.25f;
    }
  }
}

void score(const ScoreCall& c) {
  const int64_t groups = c.channels / kIndexGroup;
  double chain[4][kKeyLanes] = {};
  for (int64_t h = 0; h < c.heads; ++h) {
    float dots[kKeyLanes];
    head_dot(c, c.codes, c.key_factors, h, groups, dots);
    for (int64_t k = 0; k < kKeyLanes; ++k) {
      const double dot = round_once(dots[k] > 0 ? dots[k] : 0.0);
      chain[h % 4][k] = round_once(dot * c.weights[h] + chain[h % 4][k]);
    }
  }
  for (int64_t k = 0; k < kKeyLanes; ++k) {
    const double s = round_once(round_once(chain[0][k] + chain[2][k]) + round_once(chain[1][k] + chain[3][k]));
    c.scores[k] = s != s ? -__builtin_inff() : static_cast<float>(s);
  }
}

void reach(const ReachCall& c) {
  const int64_t groups = c.channels / kIndexGroup;
  for (int64_t p = 0; p < kReachPanels; ++p) {
    float* total = c.bounds + p * kKeyLanes;
    std::fill_n(total, kKeyLanes, 0.0f);
    for (int64_t i = 0; i < c.count; ++i) {
      float dots[kKeyLanes];
      head_dot(c, c.codes + p * c.channels * kKeyLanes, c.key_factors + p * groups * kKeyLanes, c.heads[i], groups,
               dots);
      for (int64_t k = 0; k < kKeyLanes; ++k) total[k] += (dots[k] > 0 ? dots[k] : 0.0f) * c.weights[i];
    }
  }
}

int64_t list_above(const float* x, int64_t n, float least, int32_t* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[count] = static_cast<int32_t>(i);
    count += !(x[i] <= least);
  }
  return count;
}

}  // namespace avx2
}  // namespace deepinfer::ops::cpu::fast
