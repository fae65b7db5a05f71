#include "sched/draft_calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace deepinfer::sched {
namespace {

// Rounds of a drafter that is exactly right once its logits are divided by `truth`.
struct Data {
  std::vector<std::vector<float>> logits;
  std::vector<DraftOutcome> outcomes;
};

Data rounds_with(const std::vector<float>& truth, int count) {
  Data d;
  std::mt19937 random(9);
  std::normal_distribution<float> normal(1, 2);
  d.logits.resize(static_cast<size_t>(count));
  for (std::vector<float>& row : d.logits) {
    int accepted = 0;
    bool alive = true;
    for (const float t : truth) {
      const float x = normal(random);
      row.push_back(x * t);
      alive = alive && static_cast<float>(random() % 100000) / 100000 < draft_acceptance(x, 1);
      accepted += alive;
    }
    d.outcomes.push_back({.confidence = row, .accepted = accepted});
  }
  return d;
}

TEST(Calibration, FindsTheTemperatures) {
  const std::vector<float> truth = {1.0f, 1.8f, 0.6f};
  const Data d = rounds_with(truth, 40000);
  const DraftTemperatures t = fit_draft_temperatures(d.outcomes);
  ASSERT_EQ(t.size(), truth.size());
  for (size_t j = 0; j < truth.size(); ++j) EXPECT_NEAR(t[j], truth[j], 0.05f * truth[j]) << j;
  for (int j = 0; j < 3; ++j) {
    for (const ReliabilityBin& bin : draft_reliability(d.outcomes, t, j)) {
      if (bin.drafts > 500) { EXPECT_NEAR(bin.predicted, bin.measured, 0.05) << j; }
    }
  }
}

TEST(Calibration, TooFewRoundsTakeTheTemperatureBefore) {
  const std::vector<float> sure = {4, 4};
  std::vector<DraftOutcome> outcomes(10, {.confidence = sure, .accepted = 2});
  EXPECT_EQ(fit_draft_temperatures(outcomes), (DraftTemperatures{1, 1}));
  EXPECT_TRUE(fit_draft_temperatures({}).empty());
}

// Only what was verified tells anything.
TEST(Calibration, UnverifiedDraftsDoNotCount) {
  const std::vector<float> logits = {0, 0};
  std::vector<DraftOutcome> outcomes(100, {.confidence = logits, .accepted = 1, .verified = 1});
  EXPECT_EQ(draft_reliability(outcomes, {}, 0)[5].drafts, 100);
  EXPECT_EQ(draft_reliability(outcomes, {}, 1)[5].drafts, 0);
}

TEST(Calibration, SurvivalIsAProductOfAcceptances) {
  const std::vector<float> logits = {0, 1e30f, -1e30f, 0};
  std::vector<float> survival(5);
  draft_survival(logits, {2, 1}, survival);
  EXPECT_FLOAT_EQ(survival[0], 0.5f);
  EXPECT_FLOAT_EQ(survival[1], 0.5f);
  EXPECT_NEAR(survival[2], 0, 1e-20);
  EXPECT_EQ(survival[4], 0);  // no such draft
  EXPECT_EQ(draft_acceptance(std::nanf(""), 1), 0);
  EXPECT_FLOAT_EQ(draft_acceptance(0.5f, 0), 1);  // the temperature is floored
}

}  // namespace
}  // namespace deepinfer::sched
