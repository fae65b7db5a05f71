#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t n : {0, 1, 2, 7, 100, 1001}) {
      for (int64_t grain : {1, 5, 64}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        pool.parallel_for(n, [&](int64_t b, int64_t e) {
          for (int64_t i = b; i < e; ++i) hits[static_cast<size_t>(i)]++;
        }, grain);
        for (auto& h : hits) ASSERT_EQ(h.load(), 1);
      }
    }
  }
}

// Loops in quick succession, each reading what the one before wrote, with workers that spin, sleep or come late.
TEST(ThreadPool, LoopsFollowEachOther) {
  for (const ThreadPool::Idle idle : {ThreadPool::Idle::kSleep, ThreadPool::Idle::kSpin}) {
    for (int threads : {2, 5}) {
      ThreadPool pool(threads, idle);
      std::vector<int64_t> from(97, 1), to(97);
      for (int loop = 0; loop < 3000; ++loop) {
        pool.parallel_for(97, [&](int64_t b, int64_t e) {
          for (int64_t i = b; i < e; ++i) to[i] = from[96 - i] + 1;
        });
        from.swap(to);
        if (loop % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      for (int64_t v : from) ASSERT_EQ(v, 3001);
    }
  }
}

TEST(ThreadPool, KnowsTheCores) { EXPECT_GE(available_cores(), 1); }

}  // namespace
}  // namespace deepinfer
