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

// Pieces beside the caller's work and between loops: each runs once, before finish() returns, whoever runs it and
// however many more were started than have a place.
TEST(ThreadPool, PiecesRunOnce) {
  struct Sum {
    int64_t runs = 0, sum = 0;
  };
  const auto add = [](void* self, int64_t argument) {
    auto* s = static_cast<Sum*>(self);
    ++s->runs;
    s->sum += argument;
  };
  for (const ThreadPool::Idle idle : {ThreadPool::Idle::kSleep, ThreadPool::Idle::kSpin}) {
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads, idle);
      for (int round = 0; round < 2000; ++round) {
        const int n = 1 + round % (2 * ThreadPool::kSidesMax);
        std::vector<Sum> sums(static_cast<size_t>(n));
        std::vector<uint64_t> ids;
        for (int i = 0; i < n; ++i) ids.push_back(pool.start({add, &sums[static_cast<size_t>(i)], i + 1}));
        if (round % 3 == 0) {
          std::atomic<int64_t> items{0};
          pool.parallel_for(2 + round % 9, [&](int64_t b, int64_t e) { items += e - b; }, 1 + round % 4);
          ASSERT_EQ(items.load(), 2 + round % 9);
        }
        for (int i = n - 1; i >= 0; --i) {
          pool.finish(ids[static_cast<size_t>(i)]);
          ASSERT_EQ(sums[static_cast<size_t>(i)].runs, 1);
          ASSERT_EQ(sums[static_cast<size_t>(i)].sum, i + 1);
        }
        pool.finish(ids[0]);  // once more is nothing
        pool.finish(0);
        if (round % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  }
}

// A piece may wait for one before it, even if the caller has taken that one or is about to.
TEST(ThreadPool, PiecesFollowEachOther) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads, ThreadPool::Idle::kSpin);
    struct Chain {
      ThreadPool* pool;
      int64_t value = 0;
    } chain{&pool};
    const auto first = [](void* self, int64_t v) { static_cast<Chain*>(self)->value = v; };
    const auto second = [](void* self, int64_t id) {
      auto* c = static_cast<Chain*>(self);
      c->pool->finish(static_cast<uint64_t>(id));
      c->value *= 2;
    };
    for (int64_t round = 1; round < 5000; ++round) {
      const uint64_t a = pool.start({first, &chain, round});
      const uint64_t b = pool.start({second, &chain, static_cast<int64_t>(a)});
      if (round % 2 == 0) pool.finish(a);
      pool.finish(b);
      ASSERT_EQ(chain.value, 2 * round);
    }
  }
}

TEST(ThreadPool, KnowsTheCores) { EXPECT_GE(available_cores(), 1); }

}  // namespace
}  // namespace deepinfer
