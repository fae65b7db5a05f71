#include "ops/cuda/watchdog.h"

#include <gtest/gtest.h>

namespace deepinfer::ops::cuda {
namespace {

// A clock that moves when the test says so.
struct TestClock {
  using time_point = std::chrono::steady_clock::time_point;
  static time_point now() { return time_point(std::chrono::microseconds(micros)); }
  inline static int64_t micros = 0;
};
using TestWatchdog = BasicWatchdog<TestClock>;

TEST(Watchdog, WaitsUntilTheDeviceIsDone) {
  TestWatchdog watchdog(60);
  int asked = 0;
  EXPECT_TRUE(watchdog.wait([&] { return ++asked < 1000; }));
  EXPECT_EQ(asked, 1000);
  EXPECT_FALSE(watchdog.stuck());
}

TEST(Watchdog, ADeviceThatIsBusyBeyondTheLimitIsStuckForEver) {
  TestWatchdog watchdog(60);
  int asked = 0;
  EXPECT_FALSE(watchdog.wait([&] {
    TestClock::micros += 500'000;
    return ++asked < 100'000;
  }));
  EXPECT_EQ(asked, 121);
  EXPECT_TRUE(watchdog.stuck());
  EXPECT_FALSE(watchdog.wait([&] { return ++asked < 0; }));
  EXPECT_EQ(asked, 121) << "a device that is stuck is not asked again";
}

TEST(Watchdog, EachWaitHasTheWholeLimit) {
  TestWatchdog watchdog(60);
  for (int wait = 0; wait < 10; ++wait) {
    int asked = 0;
    EXPECT_TRUE(watchdog.wait([&] {
      TestClock::micros += 500'000;
      return ++asked < 110;
    }));
  }
}

TEST(Watchdog, TimeInWhichTheProcessStoodStillDoesNotCount) {
  TestWatchdog watchdog(60);
  int asked = 0;
  EXPECT_TRUE(watchdog.wait([&] {
    TestClock::micros += 3'600'000'000;  // an hour between two looks
    return ++asked < 50;
  }));
  EXPECT_FALSE(watchdog.stuck());
}

}  // namespace
}  // namespace deepinfer::ops::cuda
