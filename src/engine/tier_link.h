// Moves pages between a lower tier and the scheduler's host memory (internal to engine/; policy: sched/tiers.h).
//
//   TierLink link(tier, info, timeout_s);
//   link.pump(scheduler, now_s);        // between steps: what came goes in, what is wanted goes out; never waits
//   if (link.in_flight() > 0) ...       // pump again soon
//
// Errors: none; whatever fails is a miss or a block that is not written, and counted. One thread.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "kv/tier_reader.h"
#include "kv/tier_writer.h"

namespace deepinfer::engine {

inline constexpr int kTierGetsMax = 256, kTierPutsMax = 64;

class TierLink {
 public:
  TierLink(std::shared_ptr<kv::Tier> tier, const ExecutorInfo& info, double timeout_s);

  // Whether the scheduler has got answers, so that it may have something to plan.
  bool pump(sched::Scheduler& scheduler, double now_s);
  int in_flight() const { return reader_.in_flight() + writer_.in_flight(); }
  int gets_in_flight() const { return reader_.in_flight(); }
  TierStats stats() const;

 private:
  const std::shared_ptr<kv::Tier> tier_;
  kv::TierWriter writer_;
  kv::TierReader reader_;
  std::vector<sched::TierGet> gets_;
  std::vector<sched::TierPut> puts_;
};

}  // namespace deepinfer::engine
