// The draft scheduler against the definition of spec/model.md 11.5, written out plainly.
#include "sched/draft_lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace deepinfer::sched {
namespace {

struct Case {
  std::vector<DraftCandidate> requests;
  std::vector<std::vector<float>> newest, older;
  std::vector<StepTime::Point> curve;
  DraftLimits limits;
};

std::vector<float> survival_list(std::mt19937& random, int n) {
  std::vector<float> out;
  float a = 1;
  for (int j = 0; j < n; ++j) {
    // Coarse steps make ties; a factor of 1 makes equal neighbours.
    a *= static_cast<float>(random() % 5) / 4;
    out.push_back(a);
  }
  return out;
}

Case random_case(uint32_t seed) {
  std::mt19937 random(seed);
  Case c;
  const int requests = 1 + static_cast<int>(random() % 12);
  for (int r = 0; r < requests; ++r) {
    const int drafts = static_cast<int>(random() % 6);
    c.newest.push_back(random() % 5 == 0 ? std::vector<float>() : survival_list(random, drafts));
    c.older.push_back(random() % 5 == 0 ? std::vector<float>() : survival_list(random, drafts));
    c.requests.push_back({.drafts = drafts, .tokens = static_cast<int>(random() % 4)});
  }
  for (int rows = 1; rows < 100; rows += 1 + static_cast<int>(random() % 9)) {
    const double before = c.curve.empty() ? 1 : c.curve.back().seconds;
    c.curve.push_back({rows, before + static_cast<double>(random() % 100) / 400});
  }
  if (random() % 3 == 0) c.limits.rows_max = requests + static_cast<int>(random() % 10);
  if (random() % 3 == 0) c.limits.drafts_max = static_cast<int>(random() % 10);
  return c;
}

std::vector<int> chosen(const Case& c) {
  DraftLengths lengths;
  lengths.begin();
  for (size_t r = 0; r < c.requests.size(); ++r) {
    DraftCandidate candidate = c.requests[r];
    candidate.newest = c.newest[r];
    candidate.older = c.older[r];
    lengths.add(candidate);
  }
  const std::span<const int> verify = lengths.choose(StepTime(c.curve), c.limits);
  return {verify.begin(), verify.end()};
}

// Step 1 and step 2 as the specification states them, quadratic and without any trick.
std::vector<int> expected(const Case& c) {
  struct Item {
    float a;
    int place, request;
  };
  const int n = static_cast<int>(c.requests.size());
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return c.requests[a].tokens > c.requests[b].tokens; });
  const auto ranked = [&](const std::vector<std::vector<float>>& lists) {
    std::vector<Item> items;
    for (int place = 0; place < n; ++place) {
      const int r = order[place];
      for (int j = 0; j < c.requests[r].drafts; ++j) items.push_back({lists[r].empty() ? 1.0f : lists[r][j], place, r});
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& x, const Item& y) {
      return x.a != y.a ? x.a > y.a : x.place < y.place;
    });
    return items;
  };
  const auto time = [&](int rows) {
    for (const StepTime::Point& p : c.curve) {
      if (p.rows >= rows) return p.seconds;
    }
    return -1.0;
  };
  const std::vector<Item> budget = ranked(c.older);
  float tokens = static_cast<float>(n);
  double best = tokens / time(n);
  int m = 0;
  for (int k = 1; k <= std::ssize(budget); ++k) {
    if (k > c.limits.drafts_max || n + k > c.limits.rows_max || time(n + k) < 0) break;
    tokens += budget[k - 1].a;
    if (tokens / time(n + k) > best) {
      best = tokens / time(n + k);
      m = k;
    }
  }
  std::vector<int> verify(n, 0);
  const std::vector<Item> split = ranked(c.newest);
  for (int k = 0; k < m; ++k) ++verify[split[k].request];
  return verify;
}

TEST(DraftLengths, EqualTheDefinition) {
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    const Case c = random_case(seed);
    ASSERT_EQ(chosen(c), expected(c)) << "seed " << seed;
  }
}

// Bug kind of spec/deepinfer.md C7: whether draft j is verified may not depend on confidences behind j of its round.
TEST(DraftLengths, LaterConfidencesDoNotDecide) {
  std::mt19937 random(7);
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    Case c = random_case(seed);
    const std::vector<int> before = chosen(c);
    const int r = static_cast<int>(random() % c.requests.size());
    if (c.newest[r].empty()) continue;
    const int j = static_cast<int>(random() % c.newest[r].size());
    float a = c.newest[r][j];
    for (int k = j + 1; k < std::ssize(c.newest[r]); ++k) c.newest[r][k] = a *= static_cast<float>(random() % 9) / 8;
    const std::vector<int> after = chosen(c);
    EXPECT_EQ(before[r] > j, after[r] > j) << "seed " << seed << ", draft " << j;
  }
}

TEST(DraftLengths, CountWithoutACurve) {
  DraftLengths lengths;
  lengths.begin();
  for (int r = 0; r < 3; ++r) lengths.add({.drafts = 5, .tokens = r});
  const std::span<const int> all = lengths.choose(StepTime(), {});
  EXPECT_EQ(std::vector<int>(all.begin(), all.end()), (std::vector<int>{5, 5, 5}));
  const std::span<const int> limited = lengths.choose(StepTime(), {.rows_max = 3 + 7});
  EXPECT_EQ(std::vector<int>(limited.begin(), limited.end()), (std::vector<int>{0, 2, 5}));  // longest first
}

TEST(DraftLengths, HopelessAndBrokenConfidences) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> rising = {0.2f, 0.9f, nan, 2.0f, -1.0f};
  DraftLengths lengths;
  lengths.begin();
  lengths.add({.drafts = 5, .tokens = 1, .newest = rising, .older = rising});
  const StepTime flat({{1, 1.0}, {64, 1.0}});
  // 0.2, 0.2 and then nothing.
  EXPECT_EQ(lengths.choose(flat, {})[0], 2);
  EXPECT_NEAR(lengths.expected_tokens(), 1.4, 1e-6);
}

TEST(StepTime, ConvergesToSyntheticTimes) {
  StepTime time({{1, 0.004}, {8, 0.004}, {64, 0.005}});
  EXPECT_DOUBLE_EQ(time.seconds(3, 2), 0.004);
  EXPECT_DOUBLE_EQ(time.seconds(9, 2), 0.005);
  EXPECT_EQ(time.rows_max(), 64);
  std::mt19937 random(3);
  const auto noise = [&random] { return (static_cast<double>(random() % 1000) / 1000 - 0.5) * 1e-4; };
  for (int i = 0; i < 1000; ++i) {
    time.observe_forward(8, 0.004 + 8 * 1e-5 + noise());
    time.observe_forward(40, 0.005 + 64 * 1e-5 + noise());
    if (i % 10 == 0) time.observe_forward(8, 0.5);  // outliers
    time.observe_sampling(2, 0.0003);
  }
  EXPECT_NEAR(time.slope(), 1e-5, 2e-6);
  EXPECT_NEAR(time.seconds(40, 2), 0.005 + 64e-5 + 0.0003, 1e-4);
  EXPECT_NEAR(time.seconds(40, 3), 0.005 + 64e-5 + 0.0003, 1e-4);  // of all requests
}

TEST(StepTime, FasterThanMeasuredIsNotBelieved) {
  StepTime time({{8, 0.004}});
  for (int i = 0; i < 200; ++i) time.observe_forward(8, 0.001);
  EXPECT_LT(time.slope(), 0);
  EXPECT_DOUBLE_EQ(time.seconds(8, 1), 0.004);
}

}  // namespace
}  // namespace deepinfer::sched
