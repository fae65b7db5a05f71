#include "sched/draft_governor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

namespace deepinfer::sched {
namespace {

constexpr double kShare = 0.05;        // of the newest in an average
constexpr double kLeast = 0.7, kMost = 1.5;  // of the curve, in what is measured later
constexpr int kMeasured = 5;           // steps of as many rows that count more than the curve
constexpr int64_t kMeasuredFor = 500;  // steps that this is believed without another
constexpr int kPlainKnown = 4;         // plain steps before drafts are thought of
constexpr int64_t kLookEvery = 16;     // steps between looks at what changes slowly
constexpr int64_t kLookEveryMost = 64; // of many requests, where looks find nothing
constexpr int kFewRequests = 2;        // a step; the way of more is looked at in such looks
constexpr int kSerialRequests = 16;    // of more, plain steps are never planned behind the one before
constexpr int kRowsAhead = 4;          // over which the price of a row is taken
constexpr double kPriceShare = 0.5, kChanceLeast = 0.05, kChanceMost = 0.5;
constexpr double kForget = 0.95;       // of the first rounds
constexpr double kHopeful = 0.95;      // a draft of a drafter that nobody knows
constexpr double kLoss = 1.02;         // of drafts against plain steps, that ends them
constexpr double kForgetTruth = 0.98;  // a step
constexpr double kForgiveTruth = 0.999;  // a step without such drafts
// Plain steps that are planned behind the one before, over the others: to begin with it, and to go on.
constexpr double kSerialFree = 1.005, kSerialStays = 1.015;
constexpr int kSerialTry = 12;         // steps of a trial of these
constexpr int64_t kStay = 4;           // steps since drafts were in use
constexpr double kFeedLittle = 0.1;    // of a step that feeding the drafter's rings takes: worth it to be ready
constexpr int64_t kFedFor = 512;       // steps since the drafter was wanted; few requests are cheap to be ready for
constexpr int kProbeShows = 3;         // steps in which a probe must show something
constexpr int kProbeWaits = 128;       // steps that a probe waits for a new request

// The measured points below which none lies: what others on the machine held up is left out, and the cost of another
// row never falls.
std::vector<StepTime::Point> lower_hull(const std::vector<StepTime::Point>& points) {
  std::vector<StepTime::Point> hull;
  const auto slope = [](const StepTime::Point& a, const StepTime::Point& b) {
    return (b.seconds - a.seconds) / (b.rows - a.rows);
  };
  for (const StepTime::Point& p : points) {
    while (hull.size() > 1 && slope(hull[hull.size() - 2], p) <= slope(hull[hull.size() - 2], hull.back()))
      hull.pop_back();
    if (hull.size() == 1 && p.seconds < hull.back().seconds) hull.back().seconds = p.seconds;
    hull.push_back(p);
  }
  return hull;
}

// Forward seconds by rows: straight lines between those points, and the last one goes on.
std::vector<double> dense(const std::vector<StepTime::Point>& measured, int rows_max) {
  const std::vector<StepTime::Point> points = lower_hull(measured);
  std::vector<double> out;
  if (points.empty()) return out;
  out.assign(static_cast<size_t>(rows_max) + 1, 0);
  size_t next = 0;
  for (int rows = 1; rows <= rows_max; ++rows) {
    while (next + 1 < points.size() && points[next].rows < rows) ++next;
    const StepTime::Point& b = points[next];
    const StepTime::Point& a = points[next > 0 ? next - 1 : 0];
    const double slope = b.rows > a.rows ? (b.seconds - a.seconds) / (b.rows - a.rows) : 0;
    out[static_cast<size_t>(rows)] = std::max(out[static_cast<size_t>(rows) - 1], b.seconds + slope * (rows - b.rows));
  }
  return out;
}

StepTime step_time(const std::vector<double>& curve) {
  std::vector<StepTime::Point> points;
  for (size_t rows = 1; rows < curve.size(); ++rows) points.push_back({static_cast<int>(rows), curve[rows]});
  return StepTime(std::move(points));
}

}  // namespace

void DraftGovernor::Recent::add(double x) {
  if (std::isnan(x)) return;
  float& oldest = values_[static_cast<size_t>(count_ % kValues)];
  const auto value = static_cast<float>(x);
  const int64_t known = std::min<int64_t>(count_, kValues);
  // From the place of the one that leaves, or the end, to its own.
  auto at = sorted_.begin() + (count_ < kValues ? known : std::ranges::find(sorted_, oldest) - sorted_.begin());
  oldest = value;
  ++count_;
  const int64_t held = std::min<int64_t>(count_, kValues);
  for (; at != sorted_.begin() && *(at - 1) > value; --at) *at = *(at - 1);
  for (; at + 1 < sorted_.begin() + held && *(at + 1) < value; ++at) *at = *(at + 1);
  *at = value;
  median_ = sorted_[static_cast<size_t>(held / 2)];
}

DraftGovernor::DraftGovernor(const DraftCosts& costs, const DraftGovernorLimits& limits)
    : costs_(costs),
      limits_(limits),
      curve_(dense(costs.forward, limits.rows_max)),
      measured_(curve_.size()),
      measured_at_(curve_.size()),
      time_(step_time(curve_)),
      look_every_(kLookEvery),
      next_look_(kLookEvery) {}

DraftGovernor::Batch& DraftGovernor::batch_of(int requests) {
  return batches_[std::min(batches_.size() - 1, static_cast<size_t>(std::bit_width(static_cast<unsigned>(requests))))];
}
const DraftGovernor::Batch& DraftGovernor::batch_of(int requests) const {
  return const_cast<DraftGovernor*>(this)->batch_of(requests);
}

double DraftGovernor::forward_s(int rows) const {
  if (curve_.empty()) return 0;
  const size_t r = std::min(static_cast<size_t>(std::max(rows, 0)), curve_.size() - 1);
  if (measured_[r].count() >= kMeasured && steps_ - measured_at_[r] < kMeasuredFor)
    return scale_.value() * measured_[r].value();
  return scale_.value() * (curve_[r] + std::max(0.0, time_.slope()) * static_cast<double>(r));
}

// The scale is measured on such steps; what steps with drafts take above the curve is not theirs.
double DraftGovernor::plain_s(int requests) const {
  if (curve_.empty()) return 0;
  const size_t rows = std::min(static_cast<size_t>(std::max(requests, 0)), curve_.size() - 1);
  return scale_.value() * curve_[rows] + sample_row_.value() * requests + batch_of(requests).gap_plain.value();
}

double DraftGovernor::least_chance(int requests) const {
  if (requests <= 0 || requests + kRowsAhead >= static_cast<int>(curve_.size())) return kChanceLeast;
  const auto rows = static_cast<size_t>(requests);
  const double row_s = scale_.value() * (curve_[rows + kRowsAhead] - curve_[rows]) / kRowsAhead;
  return std::clamp(kPriceShare * row_s * requests / plain_s(requests), kChanceLeast, kChanceMost);
}

double DraftGovernor::serial_gap(int requests) const {
  const Batch& b = batch_of(requests);
  return b.gap_serial.count() >= kMeasured ? b.gap_serial.value() : b.gap_plain.value() + b.host.value();
}

double DraftGovernor::draft_s(int sequences) const {
  return sequences == 0 ? 0 : scale_.value() * round_scale_.value() * (costs_.round_s + costs_.sequence_s * sequences);
}

void DraftGovernor::observe(const DraftStep& s) {
  if (curve_.empty() || s.requests <= 0 || s.rows <= 0 || s.rows >= static_cast<int>(curve_.size())) return;
  Batch& b = batch_of(s.requests);
  const auto rows = static_cast<size_t>(s.rows);
  const double forward = s.forward_s / (s.fed ? 1 + costs_.feed : 1);
  if (s.rows == s.requests) {
    scale_.add(forward / curve_[rows]);
  } else {
    // A few steps that others held up must not rule out for good that such steps are tried again.
    const double seconds = curve_[rows] * std::clamp(forward / scale_.value() / curve_[rows], kLeast, kMost);
    measured_[rows].add(seconds);
    measured_at_[rows] = steps_;
    time_.observe_forward(s.rows, seconds);
  }
  if (s.tokens > 0) sample_row_.add(s.sample_s / s.tokens);
  if (s.host_s > 0) b.host.add(s.host_s);
  if (s.interval_s > 0) {
    const double gap = std::max(0.0, s.interval_s - s.forward_s - s.sample_s - s.draft_s);
    (s.serial ? b.gap_serial : b.gap_plain).add(gap);
  }
  if (s.serial) {
    time_.observe_sampling(s.requests, (serial_gap(s.requests) + s.sample_s + draft_s(s.drafting)) / scale_.value());
    if (++since_plain_ >= kPlainAfter) plain_left_ = kPlainSteps;
  } else {
    since_plain_ = 0;
    if (s.fed && s.drafting == 0) probes_s_ += costs_.feed * forward;
  }
  if (s.interval_s <= 0) return;
  // What interrupts a step counts, but only as much again as the step: of both ways alike.
  const double plain = plain_s(s.requests);
  const double expected =
      s.serial ? forward_s(s.rows) + s.draft_s + sample_row_.value() * s.tokens + serial_gap(s.requests) : plain;
  const double interval = std::min(s.interval_s, 2 * expected);
  total_s_ += interval;
  if (s.rows == s.requests && s.drafting == 0) (s.serial ? b.serial : b.plain).add(interval);
  if (s.serial) {
    if (s.rows == s.requests && s.drafting == 0) return;
    ++trial_steps_;
    trial_s_ += interval;
    trial_plain_s_ += b.plain_share * plain * s.tokens / s.requests;
    // A round counts where it is made, what it brings where that is verified.
    const bool verified = s.rows > s.requests;
    const size_t way = s.model || !verified;
    Truth& truth = truths_[way];
    truth.forget(kForgetTruth);
    if (verified) truth.came += s.tokens;
    const double spent = verified ? interval : std::min(interval, s.draft_s);
    truth.expected += expected_rates_[way] * spent / b.plain_share;  // plain steps are interrupted as well
  } else if (s.drafting == 0 && plain > 0) {
    b.plain_share += kShare * (interval / plain - b.plain_share);
  }
}

void DraftGovernor::observe_round(int sequences, double seconds) {
  const double expected = scale_.value() * (costs_.round_s + costs_.sequence_s * sequences);
  if (expected > 0) round_scale_.add(seconds / expected);
  if (way_ == DraftWay::kModel) return;
  probing_ = false;
  probe_waits_ = kProbeShows;
  probe_s_ = seconds;
  next_look_ = std::min(next_look_, steps_ + 1);
}

void DraftGovernor::learn(int kind, int judged, int accepted) {
  Prior& p = priors_[static_cast<size_t>(kind)];
  for (int j = 0; j < std::min({judged, accepted + 1, limits_.drafts_max}); ++j) {
    const auto at = static_cast<size_t>(j);
    p.tried[at] = kForget * p.tried[at] + 1;
    p.came[at] = kForget * p.came[at] + (j < accepted);
  }
  p.count = static_cast<size_t>(limits_.drafts_max);
  double survival = 1;
  for (size_t j = 0; j < p.count; ++j) {
    survival *= (p.came[j] + 0.5) / (p.tried[j] + 1);
    p.survival[j] = static_cast<float>(survival);
  }
}

bool DraftGovernor::looks(int requests) const {
  if (requests <= kFewRequests || way_ != DraftWay::kPlain) return true;
  return steps_ + 1 >= next_look_ && steps_ + 1 >= batch_of(requests).held_until;
}

void DraftGovernor::begin() { requests_.clear(); }

void DraftGovernor::add(const DraftHope& hope) {
  Request& r = requests_.emplace_back();
  const auto drafts_max = static_cast<size_t>(limits_.drafts_max);
  r.texts = static_cast<int>(std::min(hope.text.size(), drafts_max));
  r.models = static_cast<int>(std::min(hope.model.size(), drafts_max));
  std::copy_n(hope.text.begin(), r.texts, r.text.begin());
  std::copy_n(hope.model.begin(), r.models, r.model.begin());
  r.ready = hope.ready;
}

bool DraftGovernor::asks(const Request& r, bool ready_only) const {
  const int n = static_cast<int>(requests_.size()), k = r.models;
  if (k == 0 || (ready_only && !r.ready)) return false;
  const std::span<const float> survivals(r.model.data(), static_cast<size_t>(k));
  const auto sum = [](auto begin, auto end) { return std::accumulate(begin, end, 0.0f); };
  if (sum(survivals.begin(), survivals.end()) <= sum(r.text.begin(), r.text.begin() + r.texts)) return false;
  const double token_s = plain_s(n) / n, row_s = (forward_s(n + k) - forward_s(n)) / k;
  double gain = 0, best = 0;
  for (const float a : survivals) best = std::max(best, gain += a * token_s - row_s);
  return best > scale_.value() * round_scale_.value() * costs_.sequence_s;
}

DraftGovernor::Value DraftGovernor::best(bool model, bool ready_only) {
  const int n = static_cast<int>(requests_.size());
  ranked_.clear();
  Value v;
  for (const Request& r : requests_) {
    const bool asked = model && asks(r, ready_only);
    v.asked += asked;
    const std::array<float, kDraftsMax>& list = asked ? r.model : r.text;
    ranked_.insert(ranked_.end(), list.begin(), list.begin() + (asked ? r.models : r.texts));
  }
  std::sort(ranked_.begin(), ranked_.end(), std::greater<>());
  const double feed = v.asked > 0 ? 1 + costs_.feed : 1, fixed = serial_gap(n) + draft_s(v.asked);
  double expected = n;
  const int rows_max = static_cast<int>(curve_.size()) - 1;
  for (int m = 0; m < static_cast<int>(ranked_.size()) && n + m < rows_max; ++m) {
    expected += ranked_[static_cast<size_t>(m)];
    v.rate = std::max(v.rate, expected / (feed * forward_s(n + m + 1) + sample_row_.value() * expected + fixed));
  }
  return v;
}

// While drafts run they must bring more than plain steps would.
void DraftGovernor::judge_trial() {
  if (trial_steps_ < kTrial) return;
  Batch& b = batch_of(std::max(1, last_requests_));
  if (trial_s_ > kLoss * trial_plain_s_) {
    b.held_until = steps_ + b.hold;
    b.hold = std::min(2 * b.hold, kHoldMax);
  } else {
    b.hold = kHoldMin;
  }
  trial_steps_ = 0;
  trial_s_ = trial_plain_s_ = 0;
}

// Whether asking the drafter would pay if all requests were like that.
bool DraftGovernor::model_pays(double plain, std::span<const float> survivals) {
  if (survivals.empty() || !has_drafter()) return false;
  const std::vector<Request> measured = requests_;
  for (Request& r : requests_) {
    r.texts = 0;
    r.models = static_cast<int>(survivals.size());
    std::copy(survivals.begin(), survivals.end(), r.model.begin());
  }
  const Value v = best(true, false);
  requests_ = measured;
  return v.asked > 0 && v.rate > kMargin * plain;
}

void DraftGovernor::consider_probe(double plain) {
  if (probing_ || probe_waits_ > 0 || steps_ < next_probe_ || !has_drafter()) return;
  if (probes_s_ + draft_s(1) > kProbeShare * total_s_) return;
  std::array<float, kDraftsMax> hopeful = {};
  double survival = 1;
  for (float& a : hopeful) a = static_cast<float>(survival *= kHopeful);
  next_probe_ = steps_ + kLookEvery;
  probing_ = model_pays(plain, std::span(hopeful).first(static_cast<size_t>(limits_.drafts_max)));
  probe_since_ = steps_;
}

// A probe that found nothing is a cost.
void DraftGovernor::judge_probe() {
  if (probe_waits_ == 0) return;
  const bool found = way_ == DraftWay::kModel;
  if (!found && --probe_waits_ > 0) return;
  probe_waits_ = 0;
  probe_after_ = std::clamp(found ? probe_after_ / 2 : probe_after_ * 3 / 2, kProbeAfterMin, kProbeAfterMax);
  next_probe_ = steps_ + probe_after_;
  if (!found) probes_s_ += probe_s_;
}

void DraftGovernor::choose_way(double plain) {
  const bool few = static_cast<int>(requests_.size()) <= kFewRequests;
  const double wanted = plain * (way_ == DraftWay::kPlain ? few ? kMargin : kMarginMany : few ? 1 : kMargin);
  const Value all = has_drafter() ? best(true, false) : Value();
  model_wanted_ = all.asked > 0 && all.rate > kMargin * plain;
  const Value text = best(false, false), model = has_drafter() ? best(true, true) : Value();
  const double text_rate = text.rate * truths_[0].value(), model_rate = model.rate * truths_[1].value();
  way_ = DraftWay::kPlain;
  if (model.asked > 0 && model_rate > std::max(wanted, text_rate)) {
    way_ = DraftWay::kModel;
    expected_rates_[1] = model.rate;
  } else if (text_rate > wanted) {
    way_ = DraftWay::kText;
    expected_rates_[0] = text.rate;
  }
  if (way_ != DraftWay::kText) truths_[0].forget(kForgiveTruth);
  if (way_ != DraftWay::kModel) truths_[1].forget(kForgiveTruth);
}

// Steps without drafts are planned behind the one before all the same.
bool DraftGovernor::waits(int requests) {
  if (requests > kSerialRequests) return false;
  Batch& b = batch_of(requests);
  if (steps_ >= b.serial_until && steps_ - b.serial_at >= kSerialAgain && b.plain.count() >= kSerialTry) {
    b.serial_at = steps_;
    b.serial_until = steps_ + kSerialTry;
  }
  if (way_ != DraftWay::kPlain) drafted_at_ = steps_;
  if (steps_ < b.serial_until || steps_ - drafted_at_ < kStay) return true;
  const double most = wait_ ? kSerialStays : kSerialFree;
  return b.serial.count() >= kMeasured && b.serial.value() <= most * b.plain.value();
}

DraftChoice DraftGovernor::choose() {
  ++steps_;
  const int n = static_cast<int>(requests_.size());
  asks_.assign(requests_.size(), 0);
  const bool soon = n <= kFewRequests && steps_ - wanted_at_ < kFedFor && costs_.feed < kFeedLittle;
  if (n == 0 || n >= static_cast<int>(curve_.size())) return {.wait = wait_, .feed = soon, .probe = probing_};
  judge_trial();
  last_requests_ = n;
  const Batch& b = batch_of(n);
  if (b.gap_plain.count() < kPlainKnown || steps_ < b.held_until) {
    way_ = DraftWay::kPlain;
    wait_ = false;
    return {};
  }
  if (plain_left_ > 0) {  // what a plain step takes is measured again
    --plain_left_;
    since_plain_ = 0;
    return {.feed = way_ == DraftWay::kModel};
  }
  const double plain = n / plain_s(n);
  const bool look = steps_ >= next_look_;
  if (n <= kFewRequests || look) choose_way(plain);
  if (look) {
    const bool rarer = n > kFewRequests && way_ == DraftWay::kPlain;
    look_every_ = rarer ? std::min(2 * look_every_, kLookEveryMost) : kLookEvery;
    next_look_ = steps_ + look_every_;
  }
  judge_probe();
  if (way_ != DraftWay::kModel) consider_probe(plain);
  for (int kind = 0; look && kind < kKinds; ++kind)
    feeds_prompts_[static_cast<size_t>(kind)] = model_pays(plain, prior(kind));
  for (size_t i = 0; i < requests_.size(); ++i) asks_[i] = way_ == DraftWay::kModel && asks(requests_[i], true);
  const bool waited = probing_ && steps_ - probe_since_ > kProbeWaits;
  wait_ = waits(n);
  if (model_wanted_) wanted_at_ = steps_;
  return {.way = way_,
          .wait = wait_,
          .feed = way_ == DraftWay::kModel || model_wanted_ || waited || soon,
          .probe = probing_,
          .probe_all = waited};
}

}  // namespace deepinfer::sched
