#include "ops/cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

namespace deepinfer::ops {
namespace {

struct Oracle {
  std::vector<float> x, z;
  std::vector<int32_t> kept;
  int32_t token = -1;
};

// The steps of ops/sampling.h, written down one after the other: everything sorted, nothing skipped.
Oracle choose(const std::vector<float>& logits, const SamplingParams& p, const std::vector<bool>& allowed,
              NoisePlace place) {
  Oracle o;
  o.x = logits;
  const int n = static_cast<int>(logits.size());
  for (int i = 0; i < n; ++i) {
    if (!allowed[i]) o.x[i] = -INFINITY;
  }
  const float max = *std::max_element(o.x.begin(), o.x.end());
  std::vector<int32_t> order;
  for (int i = 0; i < n; ++i) {
    if (o.x[i] > -INFINITY) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return o.x[a] > o.x[b]; });
  const float scale = 1.0f / static_cast<float>(p.temperature);
  std::vector<double> e(n);
  double sum = 0;
  o.z.resize(n);
  for (int i = 0; i < n; ++i) {
    o.z[i] = (o.x[i] - max) * scale;
    e[i] = std::exp(static_cast<double>(o.z[i]));
    sum += e[i];
  }
  double before = 0;
  for (int32_t i : order) {
    if (before > std::floor(p.top_p * 0x1p31)) break;
    if (p.top_k > 0 && static_cast<int>(o.kept.size()) == p.top_k) break;
    if (e[i] < p.min_p) break;
    before += std::floor(e[i] / sum * 0x1p31);
    o.kept.push_back(i);
  }
  float best = 0;
  for (int32_t i : o.kept) {
    const float s = o.z[i] + gumbel_noise(place, i);
    if (o.token < 0 || s > best || (s == best && i < o.token)) {
      o.token = i;
      best = s;
    }
  }
  return o;
}

TEST(Sampler, EqualsAPlainImplementationOnRandomRows) {
  std::mt19937 random(7);
  const auto uniform = [&](double a, double b) { return a + (b - a) * (random() * 0x1p-32); };
  for (int round = 0; round < 600; ++round) {
    const int n = round % 3 == 0 ? 3000 : 1 + static_cast<int>(random() % 300);
    const double spread = uniform(0, 12);
    const bool coarse = random() % 2 == 0;  // many equal logits
    std::vector<float> logits(n);
    for (float& v : logits) {
      v = coarse ? std::round(uniform(-spread, spread)) : static_cast<float>(uniform(-spread, spread));
    }
    SamplingParams p;
    p.temperature = random() % 5 == 0 ? 0.05 : uniform(0.2, 2);
    if (random() % 2) p.top_p = random() % 8 == 0 ? 1e-9 : uniform(0.01, 1);
    if (random() % 3 == 0) p.top_k = 1 + static_cast<int>(random() % (n + 5));
    if (random() % 3 == 0) p.min_p = std::exp(-uniform(0.001, 20));
    std::vector<bool> allowed(n, true);
    std::vector<uint32_t> mask;
    if (random() % 3 == 0) {
      mask.assign((n + 31) / 32, 0);
      const int sure = static_cast<int>(random() % n);
      for (int i = 0; i < n; ++i) {
        allowed[i] = i == sure || random() % 3 != 0;
        if (allowed[i]) mask[i / 32] |= 1u << (i % 32);
      }
    }
    const NoisePlace place{uint64_t{random()} << 32 | random(), static_cast<uint32_t>(random()),
                           static_cast<uint32_t>(random() % 4)};
    const Oracle want = choose(logits, p, allowed, place);
    Sampler sampler(n);
    const int32_t got = sampler.sample({.logits = logits, .params = &p, .place = place, .allowed = mask});
    ASSERT_EQ(got, want.token) << "round " << round;
    ASSERT_EQ(sampler.kept_best_first(), want.kept) << "round " << round;
  }
}

TEST(Sampler, DrawsWithTheSoftmaxProbabilities) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f};
  double sum = 0;
  for (float v : logits) sum += std::exp(v);
  SamplingParams p;
  Sampler sampler(5);
  std::vector<int> count(5);
  const int draws = 40000;
  for (int i = 0; i < draws; ++i) {
    ++count[sampler.sample({.logits = logits, .params = &p, .place = {99, static_cast<uint32_t>(i), 0}})];
  }
  double chi = 0;
  for (int i = 0; i < 5; ++i) {
    const double expected = draws * std::exp(logits[i]) / sum;
    chi += (count[i] - expected) * (count[i] - expected) / expected;
  }
  EXPECT_LT(chi, 18.5);  // 4 degrees of freedom: exceeded by one seed in a thousand
}

TEST(Sampler, PenaltiesFollowDraftsInAndOut) {
  const std::vector<float> logits = {1.0f, 2.0f, 3.0f, -1.0f};
  SamplingParams p;
  p.temperature = 0;
  p.repetition_penalty = 2;
  p.frequency_penalty = 0.5;
  p.presence_penalty = 0.25;
  TokenHistory history(4);
  history.add_prompt(std::vector<int32_t>{3, 3});
  history.add_output(2);
  history.add_output(2);
  Sampler sampler(4);
  const SampleRow row{.logits = logits, .params = &p, .history = &history};
  EXPECT_EQ(sampler.sample(row), 1);
  EXPECT_EQ(std::vector<float>(sampler.processed().begin(), sampler.processed().end()),
            (std::vector<float>{1.0f, 2.0f, 0.25f, -2.0f}));
  history.pop_output(2);
  history.pop_output(2);
  EXPECT_EQ(sampler.sample(row), 2);
  history.clear();
  EXPECT_TRUE(history.tokens().empty());
}

TEST(Sampler, LikeliestEqualsAGreedyRow) {
  std::mt19937 random(3);
  SamplingParams greedy;
  greedy.temperature = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + random() % 300);
    for (float& x : logits) {
      x = static_cast<float>(static_cast<int>(random() % 41) - 20);  // many equal ones, and zeros
      if (random() % 9 == 0) x = -0.0f;
      if (random() % 5 == 0) x = NAN;
      if (random() % 7 == 0) x = -INFINITY;
    }
    if (round % 50 == 7) logits[random() % logits.size()] = INFINITY;
    if (round % 50 == 8) std::fill(logits.begin(), logits.end(), NAN);
    Sampler sampler(static_cast<int>(logits.size()));
    SampleRow row{.logits = logits, .params = &greedy};
    EXPECT_EQ(Sampler::likeliest(logits), sampler.sample(row));
  }
}

TEST(Sampler, SaysWhenNoTokenIsLeft) {
  SamplingParams p;
  Sampler sampler(3);
  const std::vector<float> masked(3, -INFINITY), broken = {NAN, NAN, NAN}, infinite = {0, INFINITY, 1},
                                                 some = {NAN, 0, NAN};
  EXPECT_EQ(sampler.sample({.logits = masked, .params = &p}), -1);
  EXPECT_EQ(sampler.sample({.logits = broken, .params = &p}), -1);
  EXPECT_EQ(sampler.sample({.logits = infinite, .params = &p}), -1);
  EXPECT_EQ(sampler.sample({.logits = some, .params = &p}), 1);
  EXPECT_EQ(sampler.sample({.logits = std::vector<float>(4), .params = &p}), -1);
  const std::vector<int32_t> all = {0, 1, 2, -5, 7};
  EXPECT_EQ(sampler.sample({.logits = std::vector<float>(3), .params = &p, .forbidden = all}), -1);
}

TEST(Noise, StaysWithinTheBoundTheSamplerPrunesBy) {
  EXPECT_LT(gumbel_of_word(~0u), 22.9f);
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t word = ~(static_cast<uint32_t>(random()) >> (i % 32));
    const int bits = std::bit_width(~word);
    if (bits > 0) {
      ASSERT_LE(gumbel_of_word(word), static_cast<float>(33 - bits) * 0.69315f);
    }
  }
}

}  // namespace
}  // namespace deepinfer::ops
