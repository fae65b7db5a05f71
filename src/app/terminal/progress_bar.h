// A progress bar on standard error for work measured in bytes or items: one line that is redrawn on a terminal, a
// plain line now and then elsewhere.
//
//   ProgressBar bar("Fetching", 1000ms);     // shown only if the work takes longer than that
//   bar.update(done, total, "3 of 7 files");
//   bar.finish();                            // leaves a clean line
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::app {

class ProgressBar {
 public:
  enum class Unit : uint8_t { kBytes, kItems };
  ProgressBar(std::string label, std::chrono::milliseconds show_after, Unit unit = Unit::kBytes);
  ~ProgressBar() { finish(); }

  void update(uint64_t done, uint64_t total, std::string_view note);
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string amount(double n) const;

  std::string label_;
  Unit unit_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now(), show_at_, last_drawn_{};
  uint64_t first_done_ = 0;  // what was there when the work began does not count as speed
  bool started_ = false;
};

}  // namespace deepinfer::app
