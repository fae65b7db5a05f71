#include "observe/metrics.h"

#include <mutex>
#include <utility>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace deepinfer::observe {

void Counter::add(double value) { counter_.Increment(value); }

void Counter::raise_to(double total) {
  const double more = total - counter_.Value();
  if (more > 0) counter_.Increment(more);
}

void Gauge::set(double value) { gauge_.Set(value); }
void Gauge::add(double value) { gauge_.Increment(value); }
void Histogram::record(double value) { histogram_.Observe(value); }
void Histogram::record_many(const std::vector<double>& counts, double sum) { histogram_.ObserveMultiple(counts, sum); }

struct Metrics::Impl {
  using Key = std::pair<std::string, Labels>;
  std::mutex mutex;
  prometheus::Registry registry;
  std::map<Key, std::unique_ptr<Counter>> counters;
  std::map<Key, std::unique_ptr<Gauge>> gauges;
  std::map<Key, std::unique_ptr<Histogram>> histograms;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter& Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  auto& slot = impl_->counters[{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
    slot.reset(new Counter(family.Add(labels)));
  }
  return *slot;
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  auto& slot = impl_->gauges[{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry);
    slot.reset(new Gauge(family.Add(labels)));
  }
  return *slot;
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                              const Labels& labels) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  auto& slot = impl_->histograms[{name, labels}];
  if (!slot) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
    slot.reset(
        new Histogram(family.Add(labels, prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end()))));
  }
  return *slot;
}

std::string Metrics::text() const { return prometheus::TextSerializer().Serialize(impl_->registry.Collect()); }

}  // namespace deepinfer::observe
