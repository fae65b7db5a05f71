// What it takes to bring blocks up from lower tiers, as measured, so that computing them can be compared with it
// (internal to sched/).
//
//   LoadRate rate;
//   rate.asked(now_s);                       // the first get after none were in flight
//   rate.arrived(now_s);                     // a block that came
//   rate.other_arrived(now_s);               // something else that came: its time is no block's
//   if (rate.seconds(blocks) > computing_s)  // 0 as long as nothing has come yet
//
// Two averages over the last few: the time to the first block of a batch, and the time between two blocks. Plain data
// without a clock; one thread.
#pragma once

#include <algorithm>

namespace deepinfer::sched {

class LoadRate {
 public:
  void asked(double now_s) {
    last_s_ = now_s;
    first_is_due_ = true;
  }
  void arrived(double now_s) {
    const double took_s = std::max(0.0, now_s - last_s_);
    last_s_ = now_s;
    mix(first_is_due_ ? first_s_ : block_s_, took_s, first_is_due_ ? firsts_ : others_);
    first_is_due_ = false;
  }
  void other_arrived(double now_s) {
    if (!first_is_due_) last_s_ = now_s;
  }
  // Of so many blocks, those of others in flight included.
  double seconds(int blocks) const { return blocks <= 0 ? 0 : first_s_ + (blocks - 1) * block_s_; }
  // Nobody loads, so nothing is measured: what was slow once is tried again some time.
  void fade() {
    first_s_ *= kFade;
    block_s_ *= kFade;
  }

 private:
  static constexpr double kNew = 0.2, kFade = 0.9;
  static constexpr int kWarm = 5;  // the first few count alike

  static void mix(double& average, double value, int& count) {
    count = std::min(count + 1, kWarm);
    average += (value - average) * std::max(kNew, 1.0 / count);
  }

  double last_s_ = 0, first_s_ = 0, block_s_ = 0;
  int firsts_ = 0, others_ = 0;
  bool first_is_due_ = false;
};

}  // namespace deepinfer::sched
