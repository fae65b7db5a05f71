#include "serve/tier_metrics.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace deepinfer::serve {
namespace {

using kv::TierCount;

struct Figure {
  const char *name, *help;
  double (*value)(const TierCount&);
};

constexpr Figure kFigures[] = {
    {"deepinfer_kv_tier_reads_total", "Blocks asked for.",
     [](const TierCount& c) { return static_cast<double>(c.gets); }},
    {"deepinfer_kv_tier_hits_total", "Blocks that the tier had.",
     [](const TierCount& c) { return static_cast<double>(c.hits); }},
    {"deepinfer_kv_tier_read_bytes_total", "Bytes of those.",
     [](const TierCount& c) { return static_cast<double>(c.read_bytes); }},
    {"deepinfer_kv_tier_damaged_total", "Records whose checksum did not fit.",
     [](const TierCount& c) { return static_cast<double>(c.damaged); }},
    {"deepinfer_kv_tier_late_total", "Reads that were given up.",
     [](const TierCount& c) { return static_cast<double>(c.late); }},
    {"deepinfer_kv_tier_errors_total", "Reads that failed otherwise.",
     [](const TierCount& c) { return static_cast<double>(c.errors); }},
    {"deepinfer_kv_tier_writes_total", "Blocks written.",
     [](const TierCount& c) { return static_cast<double>(c.puts); }},
    {"deepinfer_kv_tier_write_failures_total", "Of those, the ones that failed.",
     [](const TierCount& c) { return static_cast<double>(c.put_failures); }},
    {"deepinfer_kv_tier_written_bytes_total", "Bytes of blocks written.",
     [](const TierCount& c) { return static_cast<double>(c.written_bytes); }},
};

}  // namespace

std::string TierMetrics::label_of(std::string name) {
  if (named_.contains(name)) return name;
  if (named_.size() >= kTenantsNamed) return std::string(kOther);
  named_.insert(name);
  return name;
}

void TierMetrics::begin(std::span<const std::string> tiers, std::string_view tenant) {
  std::vector<TierCount> none;
  for (const std::string& tier : tiers) {
    for (const kv::Traffic traffic : {kv::Traffic::kChat, kv::Traffic::kAgent}) {
      none.push_back({.tier = tier, .traffic = traffic});
    }
  }
  update(none, [tenant](uint64_t) { return std::string(tenant); });
  shown_.clear();  // its keys are views of what `tiers` holds
}

void TierMetrics::update(std::span<const TierCount> counts, const std::function<std::string(uint64_t)>& tenant) {
  // A tenant may have several spaces: one for each of its users.
  std::map<std::tuple<std::string_view, std::string, kv::Traffic>, std::array<double, std::size(kFigures)>> sums;
  std::map<LatencyKey, Latency> latency;
  for (const TierCount& c : counts) {
    auto& sum = sums[{c.tier, label_of(tenant(c.space)), c.traffic}];
    for (size_t i = 0; i < std::size(kFigures); ++i) sum[i] += kFigures[i].value(c);
    Latency& l = latency[{c.tier, c.traffic}];
    for (size_t i = 0; i < c.latency.size(); ++i) l.classes[i] += c.latency[i];
    l.seconds += c.read_seconds;
  }
  for (const auto& [of, sum] : sums) {
    const auto& [tier, name, traffic] = of;
    const observe::Labels labels = {
        {"tier", std::string(tier)}, {"tenant", name}, {"traffic", std::string(kv::traffic_name(traffic))}};
    for (size_t i = 0; i < std::size(kFigures); ++i) {
      metrics_.counter(kFigures[i].name, kFigures[i].help, labels).raise_to(sum[i]);
    }
  }
  update_latency(latency);
}

void TierMetrics::update_latency(const std::map<LatencyKey, Latency>& totals) {
  static const std::vector<double> bounds(TierCount::kLatencies.begin(), TierCount::kLatencies.end());
  for (const auto& [of, total] : totals) {
    Latency& shown = shown_[of];
    std::vector<double> more;
    for (size_t i = 0; i < total.classes.size(); ++i) {
      more.push_back(static_cast<double>(std::max<int64_t>(0, total.classes[i] - shown.classes[i])));
    }
    metrics_
        .histogram("deepinfer_kv_tier_hit_seconds", "From question to answer, of blocks that the tier had.", bounds,
                   {{"tier", std::string(of.first)}, {"traffic", std::string(kv::traffic_name(of.second))}})
        .record_many(more, std::max(0.0, total.seconds - shown.seconds));
    shown = total;
  }
}

}  // namespace deepinfer::serve
