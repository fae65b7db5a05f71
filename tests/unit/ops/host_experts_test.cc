#include "ops/host_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ops/cpu/cpu_ops.h"

namespace deepinfer::ops {
namespace {

constexpr HostExpertLoad kLoad{.experts = 384, .per_row = 6, .resident = 0.4};

TEST(HostExperts, WithoutAHostEveryMissingExpertCrossesTheLink) {
  const HostExpertRates rates{.link_s = 2, .one_row_s = 1, .full_step_s = 1};
  EXPECT_NEAR(expected_decode_s(kLoad, rates, 0, 1), 6 * 0.6 * 2, 1e-9);
  EXPECT_NEAR(expected_decode_s(kLoad, rates, 0, 0.25), 6 * 0.15 * 2, 1e-9);
  EXPECT_NEAR(expected_decode_s({384, 6, 0}, rates, 384, 1), 6 * 1, 1e-9);  // all are the host's
}

// One choice a row: the step waits for whichever side it falls on.
TEST(HostExperts, ExpectedTimeOfOneChoice) {
  const HostExpertRates rates{.link_s = 8, .one_row_s = 2, .full_step_s = 2};
  EXPECT_NEAR(expected_decode_s({100, 1, 0.5}, rates, 25, 1), 0.25 * 2 + 0.25 * 8, 1e-9);
  EXPECT_NEAR(expected_decode_s({100, 1, 0.5}, rates, 25, 0.5), 0.25 * 2 + 0.125 * 8, 1e-9);
}

// Against a simulation of what is written in the header.
TEST(HostExperts, ExpectedTimeIsTheMeanOfRandomSteps) {
  const HostExpertRates rates{.link_s = 3, .one_row_s = 2, .full_step_s = 2};
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform;
  constexpr int kSteps = 200'000, kHost = 96;
  double sum = 0;
  for (int i = 0; i < kSteps; ++i) {
    int host = 0, missing = 0;
    for (int k = 0; k < kLoad.per_row; ++k) {
      const double u = uniform(random);
      host += u < 0.25, missing += u >= 0.25 && u < 0.6;
    }
    sum += std::max(host * rates.one_row_s, missing * rates.link_s);
  }
  EXPECT_NEAR(expected_decode_s(kLoad, rates, kHost, 1), sum / kSteps, 0.03);
}

// An H200 at 51 GB/s and 14 cores beside it: what text may gain or lose is not worth it.
TEST(HostExperts, AHostNoFasterThanTheLinkTakesNone) {
  EXPECT_EQ(choose_host_experts(kLoad, {.link_s = 0.367e-3, .one_row_s = 0.405e-3, .full_step_s = 0.534e-3}), 0);
  EXPECT_EQ(choose_host_experts(kLoad, {.link_s = 1, .one_row_s = 100, .full_step_s = 100}), 0);
  EXPECT_EQ(choose_host_experts({384, 6, 1}, {.link_s = 1, .one_row_s = 0.1, .full_step_s = 0.1}), 0);  // all fit
  EXPECT_EQ(choose_host_experts({384, 6, 0}, {}), 0);  // nothing takes time: nothing to gain
}

TEST(HostExperts, AFasterHostTakesMore) {
  int before = 0;
  for (const double host_s : {0.3, 0.2, 0.1, 0.05}) {
    const int n = choose_host_experts(kLoad, {.link_s = 1, .one_row_s = host_s, .full_step_s = host_s});
    EXPECT_GT(n, before) << host_s;
    EXPECT_LE(n, 230);  // what does not fit
    before = n;
  }
}

TEST(HostExperts, PrefillBoundsTheNumber) {
  const HostExpertRates slow_prefill{.link_s = 1, .one_row_s = 0.1, .full_step_s = 5};
  const int n = choose_host_experts(kLoad, slow_prefill);
  EXPECT_LT(n, choose_host_experts(kLoad, {.link_s = 1, .one_row_s = 0.1, .full_step_s = 0.1}));
  EXPECT_LE(n * slow_prefill.full_step_s, (384 * 0.6 - n) * slow_prefill.link_s);
  EXPECT_GT((n + 1) * slow_prefill.full_step_s, (384 * 0.6 - n - 1) * slow_prefill.link_s);
  EXPECT_EQ(choose_host_experts(kLoad, {.link_s = 1, .one_row_s = 0.1, .full_step_s = 100}), 0);  // gains too little
}

// No number that is allowed gains more for sure.
TEST(HostExperts, TheChoiceIsTheBestOfThoseAllowed) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.05, 1);
  int some = 0;
  for (int i = 0; i < 50; ++i) {
    const HostExpertLoad load{.experts = 64, .per_row = 4, .resident = 0.8 * uniform(random)};
    const HostExpertRates rates{.link_s = 1, .one_row_s = uniform(random), .full_step_s = 3 * uniform(random)};
    const auto gain = [&](int n) {
      return std::min(expected_decode_s(load, rates, 0, 1) / expected_decode_s(load, rates, n, 1),
                      expected_decode_s(load, rates, 0, 0.5) / expected_decode_s(load, rates, n, 0.5));
    };
    const int chosen = choose_host_experts(load, rates);
    some += chosen > 0;
    const double absent = 64 * (1 - load.resident), best = std::max(1.05, gain(chosen));
    for (int n = 1; n <= absent && n * rates.full_step_s <= (absent - n) * rates.link_s; ++n)
      EXPECT_LE(gain(n), best + 1e-12) << n << " instead of " << chosen;
  }
  EXPECT_GT(some, 5);
}

TEST(HostExperts, TheNumberAndTheHostsTreesAreInTheNumericClass) {
  EXPECT_EQ(host_numeric_class("cuda-a", 0, "fast-b"), "cuda-a");
  EXPECT_EQ(host_numeric_class("cuda-a", 12, "fast-b"), "cuda-a+12-fast-b");
  EXPECT_NE(host_numeric_class("cuda-a", 12, "fast-b"), host_numeric_class("cuda-a", 13, "fast-b"));
  EXPECT_NE(host_numeric_class("cuda-a", 12, "fast-b"), host_numeric_class("cuda-a", 12, "fast-c"));
}

}  // namespace
}  // namespace deepinfer::ops
