// A counter that one thread raises and others wait for, without a call of the kernel where nobody sleeps.
//
//   EventCount news;
//   ... work.push(x); news.add(); ...                            // one thread
//   for (int seen = news.count(); !work.pop(&x); seen = news.count()) news.wait(seen);    // another
//
// What happened before add() is seen by a thread that has seen its count. To read count() first and then to look for
// work, as above, loses nothing. wait() may return without reason; count() wraps around.
#pragma once

#include <atomic>

namespace deepinfer {

class EventCount {
 public:
  int count() const { return count_.load(std::memory_order_acquire); }
  void add();
  // Until count() is no longer `seen`. First looks for a moment (about 50 us), which is shorter than a way through the
  // kernel and back, then sleeps.
  void wait(int seen);
  // Sleeps at once, but no longer than so many seconds.
  void sleep(int seen, double seconds);

 private:
  std::atomic<int> count_{0}, sleepers_{0};
};

}  // namespace deepinfer
