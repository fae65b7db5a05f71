#include "ops/cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
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
              NoisePlace place, const std::vector<int32_t>& prompt = {}, const std::vector<int32_t>& output = {}) {
  Oracle o;
  o.x = logits;
  const int n = static_cast<int>(logits.size());
  for (float& x : o.x) {
    if (std::isnan(x)) x = -INFINITY;
  }
  for (const LogitBias& b : p.logit_bias) o.x[b.token] += b.bias;
  std::vector<int32_t> seen = prompt;
  seen.insert(seen.end(), output.begin(), output.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (int32_t t : seen) {
    float& x = o.x[t];
    x = x > 0 ? x / p.repetition_penalty : x * p.repetition_penalty;
    const auto count = std::count(output.begin(), output.end(), t);
    if (count == 0) continue;
    const float frequency = p.frequency_penalty * static_cast<float>(count);
    x = (x - frequency) - p.presence_penalty;
  }
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

// Rows of a real vocabulary's size and shape, with everything at once, on every instruction set of this machine.
TEST(Sampler, EqualsAPlainImplementationOnLongRows) {
  std::mt19937 random(11);
  const auto uniform = [&](double a, double b) { return a + (b - a) * (random() * 0x1p-32); };
  for (int round = 0; round < 120; ++round) {
    const int n = round % 4 == 0 ? 8192 : 4000 + static_cast<int>(random() % 5000);
    std::normal_distribution<float> normal(0, static_cast<float>(uniform(0.01, 6)));
    std::vector<float> logits(n);
    for (float& v : logits) v = normal(random);
    if (round % 3 == 0) {
      for (float& v : logits) v = std::round(v * 4) / 4;
    }
    if (round % 5 == 0) {
      for (int i = 0; i < 50; ++i) logits[random() % n] = i % 2 ? NAN : -INFINITY;
    }
    SamplingParams p;
    p.temperature = random() % 6 == 0 ? 2e-5 : uniform(0.1, 3);
    if (random() % 2) p.top_p = random() % 4 == 0 ? 1 - uniform(0, 1e-6) : uniform(0.05, 1);
    if (random() % 3 == 0) p.top_k = 1 + static_cast<int>(random() % (random() % 2 ? 100 : n));
    if (random() % 3 == 0) p.min_p = std::exp(-uniform(0.001, 30));
    std::vector<int32_t> prompt, output;
    TokenHistory history(n);
    if (random() % 2) {
      p.repetition_penalty = static_cast<float>(uniform(0.5, 2));
      p.frequency_penalty = static_cast<float>(uniform(-1, 1));
      p.presence_penalty = static_cast<float>(uniform(-1, 1));
      for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<int32_t>(random() % n));
      for (int i = 0; i < 60; ++i) output.push_back(static_cast<int32_t>(random() % (i % 2 ? 20 : n)));
      history.add_prompt(prompt);
      for (int32_t t : output) history.add_output(t);
    }
    if (random() % 3 == 0) p.logit_bias = {{static_cast<int32_t>(random() % n), 5.0f}, {3, -100.0f}};
    std::vector<bool> allowed(n, true);
    std::vector<uint32_t> mask;
    if (random() % 3 == 0) {
      mask.assign((n + 31) / 32, 0);
      const uint32_t rare = 1 + random() % 40;
      for (int i = 0; i < n; ++i) {
        allowed[i] = random() % rare == 0;
        if (allowed[i]) mask[i / 32] |= 1u << (i % 32);
      }
    }
    const NoisePlace place{uint64_t{random()} << 32 | random(), static_cast<uint32_t>(random()), 0};
    const Oracle want = choose(logits, p, allowed, place, prompt, output);
    if (want.token < 0) continue;
    std::vector<float> z;
    for (const SamplerKernels* const* k = all_sampler_kernels(); *k != nullptr; ++k) {
      Sampler sampler(n, **k);
      const int32_t got = sampler.sample(
          {.logits = logits, .params = &p, .place = place, .history = &history, .allowed = mask});
      ASSERT_EQ(got, want.token) << "round " << round << " instruction set " << k - all_sampler_kernels();
      ASSERT_EQ(sampler.kept_best_first(), want.kept) << "round " << round;
      const std::vector<float> now(sampler.scaled().begin(), sampler.scaled().end());
      if (z.empty()) z = now;
      ASSERT_EQ(std::memcmp(z.data(), now.data(), z.size() * sizeof(float)), 0);
    }
  }
}

TEST(SamplerKernels, GiveTheSameBits) {
  std::mt19937 random(5);
  for (const size_t n :
       {size_t{1}, size_t{7}, size_t{8}, size_t{15}, size_t{16}, size_t{33}, size_t{511}, size_t{512}}) {
    std::vector<float> x(n);
    for (float& v : x) v = -static_cast<float>(random() * 0x1p-26);
    x[random() % n] = NAN;
    x[random() % n] = 0;
    std::vector<int32_t> ids(n);
    for (int32_t& t : ids) t = static_cast<int32_t>(random() % 130000);
    const NoisePlace place{random() * uint64_t{12345678901}, static_cast<uint32_t>(random()), 3, 0};
    struct Out {
      std::vector<float> clean;
      std::vector<double> e;
      double exp_sum = 0;
      std::vector<uint32_t> words, run;
      std::vector<uint16_t> contenders;
      bool operator==(const Out&) const = default;
    };
    std::vector<Out> all;
    for (const SamplerKernels* const* k = all_sampler_kernels(); *k != nullptr; ++k) {
      Out o{std::vector<float>(n), std::vector<double>(n), 0, std::vector<uint32_t>(n), std::vector<uint32_t>(512),
            std::vector<uint16_t>(n)};
      (*k)->clean(x.data(), o.clean.data(), n);
      const double sum = (*k)->exps(o.clean.data(), o.e.data(), n);
      EXPECT_NEAR(sum, std::accumulate(o.e.begin(), o.e.end(), 0.0), sum * kSumError * static_cast<double>(n));
      o.exp_sum = (*k)->exp_sum(x.data(), 0.0, n);
      std::vector<float> rough(n);
      const double rough_sum = (*k)->rough_exps(o.clean.data(), rough.data(), n);
      EXPECT_NEAR(rough_sum, sum, sum * kRoughError);
      for (size_t i = 0; i < n; ++i) EXPECT_NEAR(rough[i], o.e[i], o.e[i] * kRoughError / 2 + 1e-37);
      (*k)->noise(place, ids.data(), n, o.words.data());
      (*k)->noise_run(place, 1024, 128, o.run.data());
      o.contenders.resize((*k)->contenders(o.clean.data(), o.words.data(), n, 1.5f, o.contenders.data()));
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(o.words[i], noise_words(place, static_cast<uint32_t>(ids[i]) / 4)[ids[i] % 4]);
      for (uint32_t t = 1024; t < 1024 + 512; ++t) ASSERT_EQ(o.run[t - 1024], noise_words(place, t / 4)[t % 4]);
      for (size_t i = 0; i < n; ++i) {
        if (o.clean[i] + gumbel_of_word(o.words[i]) >= 1.5f) {
          EXPECT_TRUE(std::ranges::binary_search(o.contenders, i));
        }
        EXPECT_NEAR(o.e[i], std::exp(static_cast<double>(o.clean[i])), 1e-15);
      }
      EXPECT_LT(o.contenders.size(), n / 2 + 3);
      all.push_back(std::move(o));
    }
    for (const Out& o : all) EXPECT_TRUE(o == all[0]);
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
