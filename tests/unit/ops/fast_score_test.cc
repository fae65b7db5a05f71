// Index scores and selection of the fast CPU backend against the definition (spec/model.md 8.2, 8.3).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {
namespace {

double round_once(double x) {
  uint64_t b = std::bit_cast<uint64_t>(x);
  b += (uint64_t{1} << 44) - 1 + ((b >> 45) & 1);
  return std::bit_cast<double>(b & ~((uint64_t{1} << 45) - 1));
}

TEST(FastScore, EqualsTheDefinition) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int64_t d : {32, 64, 128}) {
    for (const int64_t keys : {1, 7, 16}) {
      constexpr int64_t kHeads = 9;
      const int64_t groups = d / 32;
      std::vector<float> k(keys * d), q(kHeads * d), w(kHeads);
      for (float& v : k) v = numeric::round_bf16(normal(random) * std::exp(normal(random)));
      for (float& v : q) v = numeric::round_bf16(normal(random) * std::exp(normal(random)));
      for (float& v : w) v = numeric::round_bf16(normal(random));
      std::vector<uint8_t> data(keys * d / 2), scales(keys * groups);
      for (int64_t i = 0; i < keys; ++i) {
        const std::span<const float> key(k.data() + i * d, d);
        numeric::fq4i_encode(key, data.data() + i * d / 2, scales.data() + i * groups);
      }
      numeric::fq4i(std::span<float>(k));
      numeric::fq4i(std::span<float>(q));
      std::vector<int8_t> codes(kHeads * d);
      std::vector<float> factors(kHeads * groups, 0.5f);
      std::vector<int32_t> twelve(kHeads * groups);
      for (int64_t g = 0; g < kHeads * groups; ++g) {
        uint8_t packed[16], scale;
        numeric::fq4i_encode(std::span<const float>(q.data() + g * 32, 32), packed, &scale);
        factors[g] = numeric::ue8m0_to_float(scale);
        for (int i = 0; i < 32; ++i) {
          const auto code = static_cast<int8_t>(2 * q[g * 32 + i] / factors[g]);
          codes[g * 32 + i % 2 * 16 + i / 2] = code;
          twelve[g] += 12 * code;
        }
      }
      for (const Kernels* kernels : {avx512_kernels(), avx2_kernels()}) {
        if (kernels == nullptr) continue;
        std::vector<uint8_t> panel(d * kKeyLanes);
        std::vector<float> key_factors(groups * kKeyLanes), scores(kKeyLanes);
        kernels->key_panel({data.data(), scales.data(), d / 2, groups, keys, d, panel.data(), key_factors.data()});
        kernels->score({panel.data(), key_factors.data(), kHeads, d, codes.data(), factors.data(), twelve.data(),
                        w.data(), scores.data()});
        for (int64_t i = 0; i < keys; ++i) {
          double chain[4] = {};
          for (int64_t h = 0; h < kHeads; ++h) {
            float dot = 0;  // groups in order; a group's sum is exact
            for (int64_t g = 0; g < groups; ++g) {
              double sum = 0;
              for (int64_t j = g * 32; j < g * 32 + 32; ++j) sum += double{k[i * d + j]} * q[h * d + j];
              dot += static_cast<float>(sum);
            }
            chain[h % 4] = round_once(round_once(std::max(dot, 0.0f)) * w[h] + chain[h % 4]);
          }
          const double want = round_once(round_once(chain[0] + chain[2]) + round_once(chain[1] + chain[3]));
          ASSERT_EQ(scores[i], static_cast<float>(want)) << kernels->isa << " channels " << d << " key " << i;
        }
      }
    }
  }
}

TEST(FastScore, BestAreTheFirstOfAStableSort) {
  std::mt19937 random(2);
  for (const int64_t n : {1, 5, 100, 3000}) {
    for (const int values : {1, 3, 500, 60000}) {
      std::vector<float> scores(n);
      for (float& s : scores) {
        s = numeric::round_bf16(static_cast<float>(random() % values) - static_cast<float>(values) / 2);
        if (random() % 16 == 0) s = -0.0f;
        if (random() % 50 == 0) s = random() % 2 ? INFINITY : -INFINITY;
      }
      for (const int64_t keep : {int64_t{1}, n / 3, n - 1, n, n + 3}) {
        if (keep < 1) continue;
        std::vector<int32_t> order(n), out(n + 3, -7);
        for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
        const int64_t kept = std::min(keep, n);
        std::sort(order.begin(), order.begin() + kept);
        for (const Kernels* k : {avx512_kernels(), avx2_kernels()}) {
          if (k == nullptr) continue;
          std::fill(out.begin(), out.end(), -7);
          k->best(scores.data(), n, keep, out.data());
          ASSERT_TRUE(std::equal(order.begin(), order.begin() + kept, out.begin()))
              << k->isa << " " << n << " values " << values << " keep " << keep;
          ASSERT_EQ(out[static_cast<size_t>(kept)], -7) << k->isa;
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops::cpu::fast
