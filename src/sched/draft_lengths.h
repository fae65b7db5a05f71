// How many drafts of each request a step verifies: the most expected tokens a second (spec/model.md 11.5,
// spec/deepinfer.md C1 .. C8). Pure policy; what is chosen never changes a token, only how soon it comes.
//
//   DraftLengths lengths;
//   lengths.begin();
//   for (r : requests) lengths.add({.drafts = 5, .tokens = r.size(), .newest = survival_n1, .older = survival_n2});
//   std::span<const int> verify = lengths.choose(step_time, {.rows_max = 256});   // drafts per request, in add() order
//
// Survival a[j] is the product of the confidences of a request's first j + 1 drafts, so it falls with j.
// Step 1, the budget: rows B = requests + m that maximise (requests + sum of the m largest survivals of round N - 2) /
// time(B). Step 2, the split: the m largest survivals of round N - 1 win; since they fall, each request verifies a
// prefix of its drafts. A draft is judged by confidences up to its own place only, and the budget by none of its round.
// Asynchronous planning: choose() with round N - 2 for both while step N - 1 runs, which says how many rows to keep;
// split() with round N - 1 once it is drawn, which says whose they are. A missing list counts as certain (1) for a
// request with drafts, as hopeless (0) for one without. Ties: more tokens first, then the order of add(). At most
// kDraftsMax drafts a request. No allocation once grown.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sched/step_time.h"

namespace deepinfer::sched {

struct DraftCandidate {
  int drafts = 0;                 // that wait for verification, after the request's own limit
  int tokens = 0;                 // length of the sequence
  std::span<const float> newest;  // survivals of round N - 1
  std::span<const float> older;   // survivals of round N - 2
};

struct DraftLimits {
  int rows_max = std::numeric_limits<int>::max();    // of the step, all requests together
  int drafts_max = std::numeric_limits<int>::max();  // of the step
};

class DraftLengths {
 public:
  static constexpr int kDraftsMax = 16;

  void begin();
  void add(const DraftCandidate& candidate);
  // An empty time curve verifies every draft that the limits allow. Valid until the next begin().
  std::span<const int> choose(const StepTime& time, const DraftLimits& limits);
  // The split alone, of `extra` rows that are kept already. Valid until the next begin().
  std::span<const int> split(int extra);
  // Of the last choose() or split(): tokens expected of the step by the newest survivals.
  double expected_tokens() const { return expected_; }

 private:
  struct Ranked {
    float survival = 0;
    int32_t request = 0;  // place in order_
  };

  void order();
  void rank(bool newest);
  int budget(const StepTime& time, int extra_max) const;

  std::vector<int> drafts_, tokens_;
  std::vector<float> survival_;  // [request][2][kDraftsMax]: newest, older
  std::vector<int> order_, verify_;
  std::vector<Ranked> ranked_, scratch_;
  double expected_ = 0;
};

}  // namespace deepinfer::sched
