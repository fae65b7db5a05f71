#include "sched/draft_calibration.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::sched {
namespace {

constexpr int kBins = 10;
constexpr double kClamp = 60;

struct Sample {
  double logit = 0;
  bool accepted = false;
};

// Drafts at `position` that were verified and whose predecessors were accepted.
std::vector<Sample> samples_at(std::span<const DraftOutcome> outcomes, int position) {
  std::vector<Sample> out;
  for (const DraftOutcome& o : outcomes) {
    const int verified = o.verified < 0 ? static_cast<int>(o.confidence.size()) : o.verified;
    if (position >= verified || position >= std::ssize(o.confidence) || o.accepted < position) continue;
    if (const float logit = o.confidence[static_cast<size_t>(position)]; std::isfinite(logit))
      out.push_back({logit, o.accepted > position});
  }
  return out;
}

double cross_entropy(std::span<const Sample> samples, double temperature) {
  double sum = 0;
  for (const Sample& s : samples) {
    const double x = std::clamp(s.logit / temperature, -kClamp, kClamp);
    sum += std::log1p(std::exp(-std::abs(x))) + (s.accepted ? std::max(0.0, -x) : std::max(0.0, x));
  }
  return sum;
}

// The cross entropy is convex in 1/T, so a search by golden section in log T finds the minimum.
double fit(std::span<const Sample> samples) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double low = std::log(static_cast<double>(kDraftTemperatureMin)),
         high = std::log(static_cast<double>(kDraftTemperatureMax));
  double a = high - ratio * (high - low), b = low + ratio * (high - low);
  double at_a = cross_entropy(samples, std::exp(a)), at_b = cross_entropy(samples, std::exp(b));
  while (high - low > 1e-4) {
    if (at_a < at_b) {
      high = b;
      b = a;
      at_b = at_a;
      a = high - ratio * (high - low);
      at_a = cross_entropy(samples, std::exp(a));
    } else {
      low = a;
      a = b;
      at_a = at_b;
      b = low + ratio * (high - low);
      at_b = cross_entropy(samples, std::exp(b));
    }
  }
  return std::exp((low + high) / 2);
}

float temperature_at(const DraftTemperatures& temperatures, size_t position) {
  if (temperatures.empty()) return 1;
  return std::max(kDraftTemperatureMin, temperatures[std::min(position, temperatures.size() - 1)]);
}

}  // namespace

float draft_acceptance(float logit, float temperature) {
  const double x = static_cast<double>(logit) / std::max(kDraftTemperatureMin, temperature);
  if (std::isnan(x)) return 0;
  return static_cast<float>(1 / (1 + std::exp(-std::clamp(x, -kClamp, kClamp))));
}

void draft_survival(std::span<const float> logits, const DraftTemperatures& temperatures, std::span<float> survival) {
  float product = 1;
  for (size_t j = 0; j < survival.size(); ++j) {
    product *= j < logits.size() ? draft_acceptance(logits[j], temperature_at(temperatures, j)) : 0;
    survival[j] = product;
  }
}

DraftTemperatures fit_draft_temperatures(std::span<const DraftOutcome> outcomes) {
  size_t positions = 0;
  for (const DraftOutcome& o : outcomes) positions = std::max(positions, o.confidence.size());
  DraftTemperatures out;
  for (size_t j = 0; j < positions; ++j) {
    const std::vector<Sample> samples = samples_at(outcomes, static_cast<int>(j));
    if (std::ssize(samples) < kOutcomesMin) {
      out.push_back(j == 0 ? 1.0f : out.back());
    } else {
      out.push_back(static_cast<float>(fit(samples)));
    }
  }
  return out;
}

std::vector<ReliabilityBin> draft_reliability(std::span<const DraftOutcome> outcomes,
                                              const DraftTemperatures& temperatures, int position) {
  std::vector<ReliabilityBin> bins(kBins);
  for (const Sample& s : samples_at(outcomes, position)) {
    const double p = static_cast<double>(
        draft_acceptance(static_cast<float>(s.logit), temperature_at(temperatures, static_cast<size_t>(position))));
    ReliabilityBin& bin = bins[static_cast<size_t>(std::min(kBins - 1, static_cast<int>(p * kBins)))];
    ++bin.drafts;
    bin.predicted += p;
    bin.measured += s.accepted;
  }
  for (ReliabilityBin& bin : bins) {
    if (bin.drafts == 0) continue;
    bin.predicted /= static_cast<double>(bin.drafts);
    bin.measured /= static_cast<double>(bin.drafts);
  }
  return bins;
}

}  // namespace deepinfer::sched
