#include "engine/step_watch.h"

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

constexpr size_t kRows = 8;

TEST(StepDuration, IsKnownAfterSomeStepsOfTheSameSize) {
  StepDuration d;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(d.expect(kRows, 5).lead, 0);
    d.learn(kRows, 0.004);
  }
  const ReadyTime ready = d.expect(kRows, 5);
  EXPECT_DOUBLE_EQ(ready.at, 5.004);
  EXPECT_GT(ready.lead, 0);
  EXPECT_LE(ready.lead, 0.0005);
  EXPECT_EQ(d.expect(kRows + 1, 5).lead, 0);
  d.learn(kRows + 1, 0.1);  // a prompt between them: what comes behind it is learnt again
  EXPECT_EQ(d.expect(kRows, 5).lead, 0);
}

TEST(StepDuration, FollowsShortStepsFasterThanLongOnes) {
  StepDuration d;
  for (int i = 0; i < 3; ++i) d.learn(kRows, 0.004);
  d.learn(kRows, 0.040);  // an outlier
  EXPECT_LT(d.expect(kRows, 0).at, 0.008);
  for (int i = 0; i < 20; ++i) d.learn(kRows, 0.002);
  EXPECT_NEAR(d.expect(kRows, 0).at, 0.002, 1e-4);
}

TEST(StepDuration, ShortStepsAreNotWatched) {
  StepDuration d;
  for (int i = 0; i < 5; ++i) d.learn(kRows, 1e-4);
  EXPECT_EQ(d.expect(kRows, 0).lead, 0);
}

// A clock that goes on by a fixed step whenever it is read.
struct Clock {
  double at, step;
  double operator()() { return at += step; }
};

class StepWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (available_cores() < 2) GTEST_SKIP() << "one core: nothing is ever watched";
  }
  // A step whose end is looked for and does not come: the time is over after some looks.
  void miss() {
    watch_.begin({.at = 1, .lead = 0.1});
    Clock clock{0.95, 0.01};
    watch_.wait(news_, news_.count(), [&] { return clock(); });
    EXPECT_GE(clock.at, 1.1);  // it has looked until then
    EXPECT_FALSE(watch_.watching());
    watch_.end();
  }
  EventCount news_;
  StepWatch watch_;
};

TEST_F(StepWatchTest, SaysThatItLooks) {
  watch_.begin({.at = 1, .lead = 0.1});
  Clock clock{0.95, 0.01};
  bool watched = false;
  const int seen = news_.count();
  watch_.wait(news_, seen, [&] {
    if (!watched && watch_.watching()) {
      watched = true;
      news_.add();
    }
    return clock();
  });
  EXPECT_TRUE(watched);
  EXPECT_TRUE(watch_.watching());  // until the step is done
  watch_.end();
  EXPECT_FALSE(watch_.watching());
}

TEST_F(StepWatchTest, IsLeftOutForAWhileWhereItDoesNotHelp) {
  for (int i = 0; i < 8; ++i) miss();
  int clock_reads = 0, left_out = 0;
  for (; left_out < 1000; ++left_out) {
    watch_.begin({.at = 1, .lead = 0.1});
    const int seen = news_.count();
    news_.add();
    watch_.wait(news_, seen, [&] { return ++clock_reads, 0.95; });
    watch_.end();
    if (clock_reads > 0) break;
  }
  EXPECT_GT(left_out, 10);
  EXPECT_LT(left_out, 1000);
}

TEST_F(StepWatchTest, ReturnsAtOnceWhenTheStepEndedBeforeItsTime) {
  const int seen = news_.count();
  news_.add();
  watch_.begin({.at = 1e6, .lead = 0.1});
  watch_.wait(news_, seen, [] { return 0.0; });
  EXPECT_FALSE(watch_.watching());
}

}  // namespace
}  // namespace deepinfer::engine
