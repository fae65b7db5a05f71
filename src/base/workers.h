// A few threads for work that would hold up the thread that asks for it.
//
//   Workers workers(2, 1024);                                   // threads, jobs that may wait
//   if (!workers.submit([=] { ... })) respond_overloaded();     // false: the queue is full
//
// Jobs run in order, several at a time. The destructor is stop().
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer {

class Workers {
 public:
  Workers(int threads, size_t queue_max);
  ~Workers();
  // Drops what has not begun and waits for what has.
  void stop();
  [[nodiscard]] bool submit(std::function<void()> job);

 private:
  void work();

  const size_t queue_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer
