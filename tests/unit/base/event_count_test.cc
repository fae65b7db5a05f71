#include "base/event_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace deepinfer {
namespace {

TEST(EventCount, EveryEventIsSeenByAThreadThatLooksBeforeItSleeps) {
  constexpr int kEvents = 3000;
  EventCount there, back;
  int value = 0;  // guarded by the counts: a race here is one of theirs
  std::thread other([&] {
    for (int seen = 0; seen < kEvents; ++seen) {
      while (there.count() == seen) there.wait(seen);
      ++value;
      back.add();
    }
  });
  for (int i = 0; i < kEvents; ++i) {
    const int seen = back.count();
    ++value;
    there.add();
    while (back.count() == seen) back.wait(seen);
    ASSERT_EQ(value, 2 * (i + 1));
  }
  other.join();
}

TEST(EventCount, ASleeperIsWoken) {
  EventCount news;
  std::atomic<bool> woken{false};
  std::thread sleeper([&] {
    while (news.count() == 0) news.sleep(0, 1e12);
    woken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that it most likely sleeps
  EXPECT_FALSE(woken);
  news.add();
  sleeper.join();
}

TEST(EventCount, ASleepEndsByItselfAndNotAtAllWhenTheCountIsOld) {
  EventCount news;
  news.sleep(0, 1e-4);
  news.sleep(0, 0);
  news.sleep(0, -1);
  news.add();
  news.sleep(0, 1e12);
  EXPECT_EQ(news.count(), 1);
}

}  // namespace
}  // namespace deepinfer
