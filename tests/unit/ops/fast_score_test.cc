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
#include "ops/cpu/fast/row_search.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// Random keys as they lie in the cache and decoded, and queries as a ScoreCall wants them.
struct RandomIndex {
  int64_t heads, d, keys, groups = d / kIndexGroup;
  std::vector<uint8_t> data = std::vector<uint8_t>(keys * d / 2), scales = std::vector<uint8_t>(keys * groups);
  std::vector<int8_t> codes = std::vector<int8_t>(heads * d);
  std::vector<float> factors = std::vector<float>(heads * groups), weights = std::vector<float>(heads);
  std::vector<int32_t> twelve = std::vector<int32_t>(heads * groups);

  void fill(const Kernels& k, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<float> key(d), query(heads * d);
    for (int64_t i = 0; i < keys; ++i) {
      for (float& v : key) v = numeric::round_bf16(normal(random) * std::exp(normal(random)));
      numeric::fq4i_encode(key, data.data() + i * d / 2, scales.data() + i * groups);
    }
    for (float& v : query) v = numeric::round_bf16(normal(random) * std::exp(normal(random)));
    numeric::fq4i(std::span<float>(query));
    k.query_codes(query.data(), heads * groups, codes.data(), factors.data(), twelve.data());
    for (float& v : weights) v = numeric::round_bf16(normal(random));
  }
  // Codes and factors of the panel of keys from `first` on.
  void panel(const Kernels& k, int64_t first, uint8_t* to, float* to_factors) const {
    k.key_panel({data.data() + first * d / 2, scales.data() + first * groups, d / 2, groups,
                 std::min(kKeyLanes, keys - first), d, to, to_factors});
  }
  ScoreCall call(const uint8_t* panel, const float* panel_factors, float* scores) const {
    return {panel, panel_factors, heads, d, codes.data(), factors.data(), twelve.data(), weights.data(), scores};
  }
};

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

// What cannot score above a bound is left out, never more; and of keys far below it most are.
TEST(FastScore, ReachHoldsEveryKeyAboveTheBound) {
  std::mt19937 random(3);
  int64_t above = 0, held = 0, all = 0;
  for (const int64_t d : {32, 64, 128}) {
    for (const int64_t heads : {1, 2, 3, 4, 9, 32}) {
      for (const Kernels* k : {avx512_kernels(), avx2_kernels()}) {
        if (k == nullptr) continue;
        for (int round = 0; round < 20; ++round) {
          RandomIndex index{heads, d, kReachKeys};
          index.fill(*k, random);
          std::vector<int32_t> positive;
          std::vector<float> weights;
          for (int32_t h = 0; h < heads; ++h) {
            if (!(index.weights[h] > 0)) continue;
            positive.push_back(h);
            weights.push_back(index.weights[h] * reach_factor(heads));
          }
          std::vector<uint8_t> codes(kReachPanels * d * kKeyLanes);
          std::vector<float> factors(kReachPanels * d / kIndexGroup * kKeyLanes), scores(kReachKeys);
          for (int64_t p = 0; p < kReachPanels; ++p) {
            uint8_t* panel = codes.data() + p * d * kKeyLanes;
            float* panel_factors = factors.data() + p * d / kIndexGroup * kKeyLanes;
            index.panel(*k, p * kKeyLanes, panel, panel_factors);
            k->score(index.call(panel, panel_factors, scores.data() + p * kKeyLanes));
          }
          std::vector<float> bounds(kReachKeys), sorted = scores;
          k->reach({codes.data(), factors.data(), d, index.codes.data(), index.factors.data(), index.twelve.data(),
                    positive.data(), weights.data(), static_cast<int64_t>(positive.size()), bounds.data()});
          std::sort(sorted.begin(), sorted.end());
          for (const int64_t at : {0, 20, 40, 55, 60, 62, 63}) {
            const float least = sorted[at];
            if (least < kReachLeast) continue;
            std::vector<int32_t> list(kReachKeys + kKeyLanes);
            list.resize(k->list_above(bounds.data(), kReachKeys, least, list.data()));
            for (int32_t i = 0; i < kReachKeys; ++i) {
              const bool reached = std::ranges::binary_search(list, i);
              ASSERT_EQ(reached, bounds[i] > least);
              ASSERT_TRUE(reached || scores[i] <= least) << k->isa << " key " << i << " of " << heads << " heads";
              above += scores[i] > least;
              held += reached;
            }
            all += kReachKeys;
          }
        }
      }
    }
  }
  EXPECT_GT(above, all / 20);
  EXPECT_LT(held, all * 3 / 4);
}

TEST(FastScore, BestKeysAreThoseOfAllScores) {
  std::mt19937 random(4);
  for (const Kernels* k : {avx512_kernels(), avx2_kernels()}) {
    if (k == nullptr) continue;
    for (const int64_t keep : {1, 5, 32}) {
      for (const int values : {1, 4, 1000}) {
        constexpr int64_t kKeys = 500;
        std::vector<float> scores(kKeys), some(2 * keep);
        std::vector<int32_t> keys(2 * keep), want(kKeys), order(2 * keep), got;
        for (float& s : scores) s = numeric::round_bf16(static_cast<float>(random() % values) - 2);
        if (values == 4) std::fill_n(scores.begin(), 50, -std::numeric_limits<float>::infinity());
        BestKeys best{some.data(), keys.data(), keep};
        for (int32_t i = 0; i < kKeys; ++i) best.add(*k, scores[i], i);
        k->best(scores.data(), kKeys, keep, want.data());
        k->best(best.scores, best.count, keep, order.data());
        for (int64_t i = 0; i < keep; ++i) got.push_back(best.keys[order[i]]);
        want.resize(keep);
        EXPECT_EQ(got, want) << k->isa << " keep " << keep << " values " << values;
      }
    }
  }
}

TEST(FastScore, ListAboveLeavesOutWhatIsNotAbove) {
  std::mt19937 random(6);
  for (const Kernels* k : {avx512_kernels(), avx2_kernels()}) {
    if (k == nullptr) continue;
    for (const int64_t n : {0, 1, 15, 16, 17, 63, 500}) {
      std::vector<float> x(n);
      for (float& v : x) v = random() % 9 == 0 ? NAN : static_cast<float>(random() % 5);
      std::vector<int32_t> list(n + kKeyLanes), want;
      for (int32_t i = 0; i < n; ++i) {
        if (!(x[i] <= 3)) want.push_back(i);
      }
      list.resize(k->list_above(x.data(), n, 3, list.data()));
      EXPECT_EQ(list, want) << k->isa << " " << n;
    }
  }
}

// Whatever scores are known before, and however they lie, the choice stays that of all scores.
TEST(FastScore, BestKeysBegunAboveSomeScoresAreTheSame) {
  std::mt19937 random(7);
  const Kernels* k = choose_kernels("");
  ASSERT_NE(k, nullptr);
  constexpr int64_t kKeys = 700, kKeep = 16;
  int64_t left_out = 0;
  for (int round = 0; round < 200; ++round) {
    const unsigned values = round % 2 == 0 ? 7 : 5000;
    std::vector<float> scores(kKeys);
    for (float& s : scores) s = numeric::round_bf16(static_cast<float>(random() % values) - 2);
    // Some keys, each once.
    std::vector<float> some = scores;
    std::ranges::shuffle(some, random);
    some.resize(random() % 60);
    std::vector<float> kept(2 * kKeep);
    std::vector<int32_t> keys(2 * kKeep), want(kKeys), order(2 * kKeep), got;
    BestKeys best{kept.data(), keys.data(), kKeep};
    best.begin_above(*k, some.data(), static_cast<int64_t>(some.size()));
    for (int32_t i = 0; i < kKeys; ++i) {
      left_out += scores[i] <= best.above;
      best.add(*k, scores[i], i);
    }
    k->best(scores.data(), kKeys, kKeep, want.data());
    k->best(best.scores, best.count, kKeep, order.data());
    for (int64_t i = 0; i < kKeep; ++i) got.push_back(best.keys[order[i]]);
    want.resize(kKeep);
    ASSERT_EQ(got, want) << "round " << round;
  }
  EXPECT_GT(left_out, 0);
}

TEST(FastScore, RowSearchLeavesNothingOutBeforeBothAreKnown) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [keys, blocks, want] :
       {std::tuple{kNan, 2.0f, kNan}, {2.0f, kNan, kNan}, {2.0f, 3.0f, 2.0f}, {3.0f, 2.0f, 2.0f}, {kNan, kNan, kNan}}) {
    BestKeys best{.above = keys}, best_blocks{.above = blocks};
    RowSearch search;
    search.begin(&best, &best_blocks, 8);
    EXPECT_EQ(std::isnan(search.above()), std::isnan(want)) << keys << " " << blocks;
    if (!std::isnan(want)) {
      EXPECT_EQ(search.above(), want) << keys << " " << blocks;
    }
  }
}

// The list of a row's best keys and blocks, whatever comes early or late.
TEST(FastScore, RowSearchKeepsTheBestBlocks) {
  std::mt19937 random(5);
  const Kernels* k = choose_kernels("");
  ASSERT_NE(k, nullptr);
  constexpr int64_t kKeep = 8, kKeepBlocks = 4, kBlock = 8;
  for (const int64_t visible : {33, 64, 500, 997}) {
    for (const int kind : {0, 1, 2}) {  // random, rising, few values
      std::vector<float> scores(visible), tops;
      for (int64_t i = 0; i < visible; ++i) {
        const float rising = static_cast<float>(i);
        scores[i] = kind == 0   ? numeric::round_bf16(static_cast<float>(random() % 9999) - 5000)
                    : kind == 1 ? numeric::round_bf16(rising)
                                : static_cast<float>(random() % 3);
      }
      for (int64_t b = 0; b < visible; b += kBlock)
        tops.push_back(*std::max_element(scores.begin() + b, scores.begin() + std::min(visible, b + kBlock)));
      tops.back() = INFINITY;
      std::vector<float> some(2 * kKeep), block_some(2 * kKeepBlocks);
      std::vector<int32_t> keys(2 * kKeep), blocks(2 * kKeepBlocks), want(tops.size()), order(2 * kKeep), got;
      BestKeys best{some.data(), keys.data(), kKeep}, best_blocks{block_some.data(), blocks.data(), kKeepBlocks};
      RowSearch search;
      search.begin(&best, &best_blocks, kBlock);
      int64_t taken = 0;
      for (int64_t i = 0; i < visible; ++i) {
        if (scores[i] <= search.above()) continue;
        search.take(*k, scores[i], static_cast<int32_t>(i));
        ++taken;
      }
      search.end_with_newest(*k, static_cast<int32_t>((visible - 1) / kBlock));
      k->best(tops.data(), static_cast<int64_t>(tops.size()), kKeepBlocks, want.data());
      k->best(best_blocks.scores, best_blocks.count, kKeepBlocks, order.data());
      for (int64_t i = 0; i < kKeepBlocks; ++i) got.push_back(best_blocks.keys[order[i]]);
      want.resize(kKeepBlocks);
      EXPECT_EQ(got, want) << visible << " keys of kind " << kind;
      EXPECT_TRUE(kind != 2 || visible < 500 || taken < visible / 2) << taken;
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
