// Counters, gauges and histograms of the process, and their Prometheus text.
//
//   Metrics metrics;
//   Counter& errors = metrics.counter("deepinfer_errors_total", "Responses with an error.", {{"code", "400"}});
//   errors.add();
//   Histogram& first = metrics.histogram("deepinfer_time_to_first_token_seconds", "...", {0.1, 1, 10});
//   first.record(0.3);
//   std::string page = metrics.text();                       // text/plain; version=0.0.4
//
// A metric is made once and kept by reference; add, set and record are cheap and may come from any thread. Names follow
// Prometheus: base units (seconds, bytes), _total for counters.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace deepinfer::observe {

using Labels = std::map<std::string, std::string>;

class Counter {
 public:
  void add(double value = 1);
  // For counters that others count: moves to `total`, which never falls.
  void raise_to(double total);

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter& counter) : counter_(counter) {}
  prometheus::Counter& counter_;
};

class Gauge {
 public:
  void set(double value);
  void add(double value);

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  prometheus::Gauge& gauge_;
};

class Histogram {
 public:
  void record(double value);
  // Values that were sorted elsewhere: how many more for each bucket, that above all bounds last, and their sum.
  void record_many(const std::vector<double>& counts, double sum);

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  prometheus::Histogram& histogram_;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();

  // The same name and labels give the same metric; one name has one help text.
  Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `bounds`: upper ends of the buckets, ascending; one more is above them all.
  Histogram& histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                       const Labels& labels = {});

  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::observe
