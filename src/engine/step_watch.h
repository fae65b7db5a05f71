// Waiting for the end of a step without being asleep when it comes (internal to engine/).
//
// To wake a sleeping thread costs its waker a call of the kernel, and where the sleeper's core has halted, or the
// kernel puts it beside its waker, tens of microseconds to milliseconds until it runs. Steps of the same size take
// about the same time: so the waiting thread sleeps by a timer until shortly before the step should end, and then
// looks. Looking takes at most a quarter of a step's time, and is left out for a while where it does not help. It is
// done on another core than the step's thread had: some kernels would put both on one, and then nobody gains.
//
//   StepDuration duration;                                    // one thread
//   duration.learn(rows, seconds);
//   ReadyTime ready = duration.expect(rows, started);         // of the calling thread's step
//   StepWatch watch;                                          // another
//   watch.begin(ready);
//   while (!done()) watch.wait(news, news.count(), clock);    // read the count first, then look
//   watch.end();
//
// watching() may be asked by any thread; it is a hint.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

#include "base/affinity.h"
#include "base/event_count.h"
#include "base/thread_pool.h"

namespace deepinfer::engine {

// When a step should end, and how long before that to look; seconds of the engine's clock. lead 0: not known.
struct ReadyTime {
  double at = 0, lead = 0;
  int core = -1;  // where the step's thread was when it began
};

class StepDuration {
 public:
  void learn(size_t rows, double seconds) {
    if (rows != rows_) known_ = 0;
    // Nearer to the short ones: to look too early costs less than to come too late.
    typical_ = known_ == 0 ? seconds : typical_ + (seconds < typical_ ? 0.5 : 0.1) * (seconds - typical_);
    rows_ = rows;
    known_ = std::min(known_ + 1, kKnown);
  }
  ReadyTime expect(size_t rows, double started) const {
    if (rows != rows_ || known_ < kKnown || typical_ < kShortest) return {};
    return {started + typical_, std::min(typical_ / 8, kLeadMax), current_core()};
  }

 private:
  static constexpr int kKnown = 3;
  static constexpr double kShortest = 500e-6, kLeadMax = 150e-6;
  size_t rows_ = 0;
  int known_ = 0;  // steps of rows_ in a row, up to kKnown
  double typical_ = 0;
};

class StepWatch {
 public:
  void begin(const ReadyTime& ready) {
    ready_ = ready;
    if (pause_ > 0) --pause_;
    if (pause_ > 0 || !has_core_) ready_.lead = 0;
  }
  template <class Clock>
  void wait(EventCount& news, int seen, const Clock& now) {
    if (ready_.lead == 0) return news.wait(seen);
    if (const double early = ready_.at - ready_.lead - now(); early > 0) {
      news.sleep(seen, early);
      if (news.count() != seen) return missed();
      if (now() < ready_.at - ready_.lead) return;
    }
    leave_core(ready_.core);
    watching_.store(true, std::memory_order_relaxed);
    while (now() < ready_.at + ready_.lead) {
      for (int i = 0; i < kLooksAtOnce; ++i) {
        if (news.count() != seen) return helped();
        __builtin_ia32_pause();
      }
      std::this_thread::yield();  // whoever else is here: perhaps the other thread itself, on the same core
    }
    watching_.store(false, std::memory_order_relaxed);
    missed();
  }
  void end() { watching_.store(false, std::memory_order_relaxed); }
  bool watching() const { return watching_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kLooksAtOnce = 16, kMissesMax = 8, kPause = 64;

  void missed() {
    ready_.lead = 0;
    if (++misses_ < kMissesMax) return;
    misses_ = kMissesMax / 2;
    pause_ = kPause;
  }
  void helped() {
    ready_.lead = 0;  // what else comes for this step comes at once
    misses_ = std::max(0, misses_ - 1);
  }

  const bool has_core_ = available_cores() > 1;
  ReadyTime ready_;
  int misses_ = 0, pause_ = 0;
  std::atomic<bool> watching_{false};
};

}  // namespace deepinfer::engine
