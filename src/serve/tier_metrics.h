// KV below device memory as metrics: what each tier did, by tenant (the API key's name) and kind of traffic.
//
//   TierMetrics tiers(metrics);
//   tiers.begin({"host", "ssd"}, "(no key)");                // series at zero, so that rates see the first blocks
//   tiers.update(engine_stats.tier_counts, [](uint64_t space) { return name_of_key(space); });
//
// Names and labels: docs/serving.md. The first kTenantsNamed tenants have series of their own, those after them share
// "(other)". Calls come one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kv/tier.h"
#include "observe/metrics.h"

namespace deepinfer::serve {

class TierMetrics {
 public:
  static constexpr size_t kTenantsNamed = 100;
  static constexpr std::string_view kOther = "(other)";

  explicit TierMetrics(observe::Metrics& metrics) : metrics_(metrics) {}
  void begin(std::span<const std::string> tiers, std::string_view tenant);
  // Totals since the start. `tenant` names a space; it may give the same name to several.
  void update(std::span<const kv::TierCount> counts, const std::function<std::string(uint64_t space)>& tenant);

 private:
  struct Latency {
    std::array<int64_t, kv::TierCount::kLatencies.size() + 1> classes = {};
    double seconds = 0;
  };
  using LatencyKey = std::pair<std::string_view, kv::Traffic>;  // tier, traffic

  std::string label_of(std::string name);
  void update_latency(const std::map<LatencyKey, Latency>& totals);

  observe::Metrics& metrics_;
  std::set<std::string> named_;
  std::map<LatencyKey, Latency> shown_;
};

}  // namespace deepinfer::serve
