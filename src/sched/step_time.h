// How long a step of B rows takes: a curve measured at start, corrected by what the steps then really took
// (spec/deepinfer.md C3, C9 .. C11). What the draft scheduler divides by.
//
//   StepTime time({{1, 0.004}, {8, 0.0042}, {64, 0.0052}});   // rows, seconds; rows increasing
//   time.observe_forward(12, 0.0049);                         // after every step
//   time.observe_sampling(4, 0.0003);                         // requests, seconds
//   double s = time.seconds(13, 4);                           // of the measured size that 13 rows are padded to
//
// time(B) = curve[g] + max(0, slope) * g + sampling(requests), g = the smallest measured size >= B. slope: for each g
// with >= 10 samples among the last 5,000 steps the median of (measured - curve[g]) / g, then the median over g.
// sampling: the median of the last 9 times with as many requests (>= 5 of them), else of all, else 0.
// Plain data, no clock; one thread. Memory is bounded by the size of the curve and kRequestsMax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::sched {

class StepTime {
 public:
  struct Point {
    int rows = 0;
    double seconds = 0;
  };
  static constexpr int kSteps = 5000;         // steps that the slope looks back
  static constexpr int kSlopeSamplesMin = 10;
  static constexpr int kSamplingTimes = 9;
  static constexpr int kSamplingTimesMin = 5;
  static constexpr int kRequestsMax = 4096;   // more requests count as so many

  explicit StepTime(std::vector<Point> curve = {});

  bool empty() const { return curve_.empty(); }
  int rows_max() const { return curve_.empty() ? 0 : curve_.back().rows; }
  // Index of the smallest measured size >= rows; the last one for more rows.
  int bucket(int rows) const;
  int bucket_rows(int bucket) const { return curve_[bucket].rows; }
  double seconds(int rows, int requests) const;
  double slope() const { return slope_; }

  void observe_forward(int rows, double seconds);
  void observe_sampling(int requests, double seconds);

 private:
  struct Sample {
    int32_t bucket = -1;
    float slope = 0;
  };
  struct Recent {
    float times[kSamplingTimes] = {};
    int count = 0;
    int next = 0;
  };

  void update_slope();
  static void add(Recent& recent, double seconds);
  static double median(const Recent& recent);

  std::vector<Point> curve_;
  std::vector<Sample> samples_;  // ring of the last kSteps
  size_t next_sample_ = 0;
  int since_update_ = 0;
  double slope_ = 0;
  std::vector<Recent> by_requests_;
  Recent all_;
  std::vector<float> scratch_, medians_;
};

}  // namespace deepinfer::sched
