// A fixed set of threads that run one loop at a time: parallel_for(n, body) calls body(begin, end) over [0, n).
//
//   ThreadPool pool(4);                                  // 3 workers; the caller is the fourth
//   pool.parallel_for(rows, [&](int64_t begin, int64_t end) { ... });
//
// Which thread runs which range is not fixed, so a body may not let its result depend on it. One caller at a time.
//
// And pieces of work beside the caller's own, for what is over within microseconds:
//
//   const uint64_t other = pool.start({[](void* self, int64_t) { static_cast<Mix*>(self)->run(); }, &mix});
//   ...                                                  // a worker that is free takes it meanwhile, the oldest first
//   pool.finish(other);                                  // done now: by that worker, or else here
//
// Waiting. An idle worker sleeps in the kernel; waking it takes tens of microseconds. With Idle::kSpin it first looks
// for work for about 50 us, so that loops in quick succession start within one microsecond; it then sleeps as well.
// Spinning is left out where there are more threads than cores. A loop never waits for a worker that has not begun a
// range.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace deepinfer {

class ThreadPool {
 public:
  enum class Idle : uint8_t { kSleep, kSpin };

  explicit ThreadPool(int threads, Idle idle = Idle::kSleep);  // values below 1 count as 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Ranges hold at least `grain` items (the last one may hold fewer). Returns when all are done.
  void parallel_for(int64_t n, const std::function<void(int64_t, int64_t)>& body, int64_t grain = 1);

  struct Side {
    void (*run)(void* self, int64_t argument) = nullptr;
    void* self = nullptr;  // stays until the piece is finished
    int64_t argument = 0;
  };
  static constexpr int kSidesMax = 16;  // not finished at a time; start() finishes the one kSidesMax before
  uint64_t start(const Side& side);     // by the caller of loops
  void finish(uint64_t id);             // from any thread, any number of times; 0: nothing

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Cores this process may use: its CPU affinity, further limited by the cgroup's CPU quota.
int available_cores();

}  // namespace deepinfer
