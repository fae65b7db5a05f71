// From the confidence head's logits to the chance that a draft survives (spec/model.md 11.3, 11.5), and the
// temperatures that make these chances true (spec/deepinfer.md C15).
//
//   DraftTemperatures t = fit_draft_temperatures(outcomes);        // one a draft position, first to last
//   draft_survival(confidence_logits, t, survival);                // survival[j]: drafts 0 .. j all accepted
//
// acceptance of draft j given that those before it were accepted: sigma(clamp(logit / T[j], -60, 60)). T[j] minimises
// the cross entropy over the rounds whose drafts before j were accepted; the target is "the draft equals the token". A
// position with fewer than kOutcomesMin such rounds keeps the temperature of the one before it (1 at first).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::sched {

using DraftTemperatures = std::vector<float>;  // positions behind the last one use the last one; empty: 1

inline constexpr float kDraftTemperatureMin = 1e-5f, kDraftTemperatureMax = 100.0f;
inline constexpr int kOutcomesMin = 50;

float draft_acceptance(float logit, float temperature);
void draft_survival(std::span<const float> logits, const DraftTemperatures& temperatures, std::span<float> survival);

// One verified draft round.
struct DraftOutcome {
  std::span<const float> confidence;  // logits
  int accepted = 0;                   // drafts that came true, from the first on
  int verified = -1;                  // drafts that were verified; -1: all
};

DraftTemperatures fit_draft_temperatures(std::span<const DraftOutcome> outcomes);

// How true the chances are: drafts whose predecessors were accepted, in ten bins of predicted acceptance.
struct ReliabilityBin {
  int64_t drafts = 0;
  double predicted = 0, measured = 0;  // means
};
std::vector<ReliabilityBin> draft_reliability(std::span<const DraftOutcome> outcomes,
                                              const DraftTemperatures& temperatures, int position);

}  // namespace deepinfer::sched
