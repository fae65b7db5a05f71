// Waits for a device that may never answer again (a GPU that fell off its bus, a kernel that never ends).
//
//   Watchdog watchdog(60);
//   if (!watchdog.wait([&] { return cudaStreamQuery(stream) == cudaErrorNotReady; })) ...  // 60 s, and it is busy yet
//
// A device that was found stuck stays so: later waits return false at once. Time in which the process itself stood
// still (a debugger, a machine asleep) does not count. One thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace deepinfer::ops::cuda {

template <class Clock>
class BasicWatchdog {
 public:
  explicit BasicWatchdog(double limit_s) : limit_s_(limit_s) {}

  bool stuck() const { return stuck_; }
  double limit_s() const { return limit_s_; }

  // Polls busy() until it says false: without a pause for as long as a step takes, then with naps. False: stuck.
  template <class Busy>
  bool wait(const Busy& busy) {
    if (stuck_) return false;
    double waited = 0;
    for (auto before = Clock::now(); busy();) {
      const auto now = Clock::now();
      waited += std::min(std::chrono::duration<double>(now - before).count(), kPollMost_s);
      before = now;
      if (waited > limit_s_) {
        stuck_ = true;
        return false;
      }
      if (waited > kNoNap_s) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }

 private:
  static constexpr double kPollMost_s = 1, kNoNap_s = 0.05;

  double limit_s_;
  bool stuck_ = false;
};

using Watchdog = BasicWatchdog<std::chrono::steady_clock>;

}  // namespace deepinfer::ops::cuda
