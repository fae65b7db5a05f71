#include "sched/step_time.h"

#include <algorithm>

namespace deepinfer::sched {
namespace {

// A new median of 5,000 values at every step would cost more than it tells.
constexpr int kStepsBetweenUpdates = 64;

float median_of(std::vector<float>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

StepTime::StepTime(std::vector<Point> curve) : curve_(std::move(curve)) {
  samples_.reserve(curve_.empty() ? 0 : kSteps);
  scratch_.reserve(samples_.capacity());
  medians_.reserve(curve_.size());
  by_requests_.resize(curve_.empty() ? 0 : kRequestsMax + 1);
}

int StepTime::bucket(int rows) const {
  const auto at = std::lower_bound(curve_.begin(), curve_.end(), rows,
                                   [](const Point& p, int wanted) { return p.rows < wanted; });
  return static_cast<int>(std::min<std::ptrdiff_t>(at - curve_.begin(), std::ssize(curve_) - 1));
}

double StepTime::seconds(int rows, int requests) const {
  if (curve_.empty()) return 0;
  const Point& p = curve_[bucket(rows)];
  const Recent& same = by_requests_[std::clamp(requests, 0, kRequestsMax)];
  double sampling = 0;
  if (same.count >= kSamplingTimesMin) {
    sampling = median(same);
  } else if (all_.count >= kSamplingTimesMin) {
    sampling = median(all_);
  }
  return p.seconds + std::max(0.0, slope_) * p.rows + sampling;
}

void StepTime::observe_forward(int rows, double seconds) {
  if (curve_.empty() || rows <= 0 || rows > rows_max()) return;
  const int b = bucket(rows);
  const Sample sample{.bucket = b, .slope = static_cast<float>((seconds - curve_[b].seconds) / curve_[b].rows)};
  if (samples_.size() < kSteps) {
    samples_.push_back(sample);
  } else {
    samples_[next_sample_] = sample;
    next_sample_ = (next_sample_ + 1) % kSteps;
  }
  if (++since_update_ >= kStepsBetweenUpdates) update_slope();
}

void StepTime::update_slope() {
  since_update_ = 0;
  medians_.clear();
  for (int b = 0; b < std::ssize(curve_); ++b) {
    scratch_.clear();
    for (const Sample& s : samples_) {
      if (s.bucket == b) scratch_.push_back(s.slope);
    }
    if (std::ssize(scratch_) >= kSlopeSamplesMin) medians_.push_back(median_of(scratch_));
  }
  if (!medians_.empty()) slope_ = median_of(medians_);
}

void StepTime::add(Recent& recent, double seconds) {
  recent.times[recent.next] = static_cast<float>(seconds);
  recent.next = (recent.next + 1) % kSamplingTimes;
  recent.count = std::min(recent.count + 1, kSamplingTimes);
}

double StepTime::median(const Recent& recent) {
  float times[kSamplingTimes];
  std::copy_n(recent.times, recent.count, times);
  std::nth_element(times, times + recent.count / 2, times + recent.count);
  return times[recent.count / 2];
}

void StepTime::observe_sampling(int requests, double seconds) {
  if (curve_.empty()) return;
  add(by_requests_[std::clamp(requests, 0, kRequestsMax)], seconds);
  add(all_, seconds);
}

}  // namespace deepinfer::sched
