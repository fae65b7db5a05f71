#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cmath>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>

namespace deepinfer {

struct ThreadPool::Impl {
  struct Job {
    const std::function<void(int64_t, int64_t)>* body = nullptr;
    int64_t n = 0;
    int64_t chunk = 1;
    std::atomic<int64_t> next{0};
    std::atomic<int> busy{0};
  };

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  Job job;
  uint64_t generation = 0;
  bool stop = false;

  void run_chunks() {
    for (;;) {
      const int64_t begin = job.next.fetch_add(job.chunk, std::memory_order_relaxed);
      if (begin >= job.n) return;
      (*job.body)(begin, std::min(job.n, begin + job.chunk));
    }
  }

  void worker() {
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || generation != seen; });
        if (stop) return;
        seen = generation;
      }
      run_chunks();
      if (job.busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex);
        done.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([impl = impl_.get()] { impl->worker(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  for (std::thread& t : impl_->workers) t.join();
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t, int64_t)>& body, int64_t grain) {
  if (n <= 0) return;
  const int64_t total = threads();
  grain = std::max<int64_t>(grain, 1);
  if (total == 1 || n <= grain) {
    body(0, n);
    return;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->job.body = &body;
    impl_->job.n = n;
    // Four ranges a thread even out unequal rows without making the shared counter hot.
    impl_->job.chunk = std::max(grain, (n + 4 * total - 1) / (4 * total));
    impl_->job.next.store(0, std::memory_order_relaxed);
    impl_->job.busy.store(static_cast<int>(impl_->workers.size()), std::memory_order_relaxed);
    ++impl_->generation;
  }
  impl_->wake.notify_all();
  impl_->run_chunks();
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->job.busy.load(std::memory_order_acquire) == 0; });
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                             : static_cast<int>(std::thread::hardware_concurrency());
  if (std::FILE* f = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    double quota = 0, period = 0;
    if (std::fscanf(f, "%lf %lf", &quota, &period) == 2 && period > 0) {
      cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
    }
    std::fclose(f);
  }
  return std::max(cores, 1);
}

}  // namespace deepinfer
