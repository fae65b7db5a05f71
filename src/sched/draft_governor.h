// Whether guessing ahead pays, decided step by step: off at first, and on only where measured costs and measured
// acceptance say that it brings more tokens a second. Pure policy; what it says never changes a token.
//
//   DraftGovernor governor(costs, {.drafts_max = 5, .rows_max = 256});
//   governor.observe(step);                       // a step that has run
//   governor.begin();
//   for (r : requests) governor.add({.text = chances, .model = survivals, .ready = true});
//   DraftChoice c = governor.choose();            // for the steps to come
//   if (c.way == DraftWay::kModel && governor.asks_model(0)) ...   // request 0 gets a draft round
//
// Costs. A plain step of n requests takes forward(n) + n draws + the gap between steps; one with drafts is planned
// only when the step before it is committed, so its gap is longer, and it takes forward(n + m) and the drafter's round.
// Where that costs a plain step nothing, or drafts were in use just now, plain steps are planned so as well (`wait`).
// forward() is a curve measured at start, with the machine's speed followed live; the rest is measured live.
// Gains. The caller brings survivals: text drafts are judged in the shadow (they cost nothing to make), the drafter's
// by what came true for the request so far, else by prior(), which is learnt from the first rounds of the requests of
// its kind. With them the best number of rows is found, and plain steps are left only for a gain of kMargin, or
// kMarginMany where requests are too many to be looked at in every step.
// Probes. Requests differ, so the drafter is asked once for a new request beside its first plain steps (nothing is
// verified): if it would pay with acceptance as good as it may be, and while the probes that found nothing stay within
// kProbeShare of the time; each of those also makes the time to the next longer. Where no new request comes, a running
// one is probed. The drafter's rings are fed only while it is used or probed.
// Safety. While drafts run, what they bring is compared with what was expected, and so much less (or more) is expected
// from then on; and with plain steps: a loss ends them for a time that doubles.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/step_time.h"

namespace deepinfer::sched {

// Measured at start.
struct DraftCosts {
  std::vector<StepTime::Point> forward;  // rows increasing; empty: nothing is known, and drafts stay off
  double round_s = 0, sequence_s = 0;    // a draft round, and each sequence in it; both 0: no drafter
  double feed = 0;                       // part of a forward that feeding the drafter's rings adds
};

struct DraftGovernorLimits {
  int drafts_max = 5;  // a request
  int rows_max = 256;  // a step
};

// A step without prompt rows.
struct DraftStep {
  int requests = 0, rows = 0, tokens = 0;
  double interval_s = 0;  // since the draws of the step before it; 0: not known
  double forward_s = 0, sample_s = 0, draft_s = 0;
  double host_s = 0;  // planning, streaming and commit
  int drafting = 0;   // sequences of its draft round
  bool fed = false;   // its rows entered the drafter's rings
  bool serial = false;  // planned when the step before it was committed
  bool model = false;   // drafts of the drafter were verified
};

enum class DraftWay : uint8_t { kPlain, kText, kModel };  // kModel: both drafters

struct DraftChoice {
  DraftWay way = DraftWay::kPlain;
  bool wait = false;   // plan the step after the next commit even without drafts: they can then come at once
  bool feed = false;   // the drafter's rings
  bool probe = false;  // a draft round beside plain steps for requests that have had none,
  bool probe_all = false;  // or for all
};

// Chances that the first, the first two, .. drafts come true; empty: none.
struct DraftHope {
  std::span<const float> text, model;
  bool ready = false;  // the rings hold enough of the request for a draft round
};

class DraftGovernor {
 public:
  static constexpr int kDraftsMax = 16;
  static constexpr int kKinds = 2;  // of requests: the caller's, such as with tools and without
  static constexpr double kMargin = 1.02, kMarginMany = 1.05;
  static constexpr double kProbeShare = 0.01;

  DraftGovernor(const DraftCosts& costs, const DraftGovernorLimits& limits);

  void observe(const DraftStep& step);
  // A draft round, behind any step.
  void observe_round(int sequences, double seconds);
  // A verified or shadowed round of the drafter: one of the first of its request, which is of that kind.
  void learn(int kind, int judged, int accepted);
  // Survivals expected of a request of a kind that nothing else is known of; empty before the first round.
  std::span<const float> prior(int kind) const {
    const Prior& p = priors_[static_cast<size_t>(kind)];
    return {p.survival.data(), p.count};
  }

  // Whether the choice to come hangs on what requests hope for: of many it is looked at now and then only.
  bool looks(int requests) const;
  // Text drafts that are less likely to come true, beside so many requests, are far from worth a row.
  double least_chance(int requests) const;
  void begin();
  void add(const DraftHope& hope);
  DraftChoice choose();
  bool asks_model(size_t request) const { return asks_[request] != 0; }
  // Of new requests of a kind the drafter's rings are fed from the prompt on.
  bool feeds_prompts(int kind) const { return feeds_prompts_[static_cast<size_t>(kind)] || probing_; }

  // For sched/draft_lengths.h.
  const StepTime& time() const { return time_; }
  // Seconds, as expected now.
  double forward_s(int rows) const;
  double plain_s(int requests) const;
  double draft_s(int sequences) const;

 private:
  // Median of the last values: others on the machine make single steps many times as long.
  class Recent {
   public:
    explicit Recent(float first = 0) : median_(first) {}
    void add(double x);
    double value() const { return median_; }
    int64_t count() const { return count_; }

   private:
    static constexpr int kValues = 15;
    std::array<float, kValues> values_ = {}, sorted_ = {};
    float median_;
    int64_t count_ = 0;
  };
  static constexpr int64_t kSerialAgain = 1024;  // steps between trials of serial plain steps
  struct Batch {  // of about as many requests
    Recent gap_plain, gap_serial, host;
    Recent plain, serial;      // intervals of steps without drafts, planned meanwhile or behind the one before
    int64_t serial_until = 0;  // is tried,
    int64_t serial_at = -kSerialAgain;  // was tried
    double plain_share = 1;  // plain steps on the average, in those that are expected
    int64_t held_until = 0;
    int64_t hold = kHoldMin;
  };
  struct Value {
    double rate = 0;  // tokens a second
    int asked = 0;    // requests in the draft round
  };
  static constexpr int64_t kHoldMin = 128, kHoldMax = 8192;
  // What a way of drafting brought, over what was expected of it.
  struct Truth {
    double came = 0, expected = 0;  // tokens
    double value() const { return (came + kTruthWeight) / (expected + kTruthWeight); }
    void forget(double share) {
      came *= share;
      expected *= share;
    }
  };
  static constexpr double kTruthWeight = 20;
  static constexpr int kTrial = 48, kPlainAfter = 256, kPlainSteps = 5;
  static constexpr int64_t kProbeAfterMin = 64, kProbeAfterMax = 1024;

  Batch& batch_of(int requests);
  const Batch& batch_of(int requests) const;
  double serial_gap(int requests) const;
  bool has_drafter() const { return costs_.round_s > 0 || costs_.sequence_s > 0; }
  struct Request {
    std::array<float, kDraftsMax> text = {}, model = {};
    int texts = 0, models = 0;
    bool ready = false;
  };
  // The drafter is the better one for it, and its round pays for itself.
  bool asks(const Request& r, bool ready_only) const;
  // The best that a step can bring: with text drafts, with the model's of requests that are ready (or of all).
  Value best(bool model, bool ready_only);
  void judge_trial();
  void consider_probe(double plain);
  void judge_probe();
  bool model_pays(double plain, std::span<const float> survivals);
  void choose_way(double plain);
  bool waits(int requests);

  const DraftCosts costs_;
  const DraftGovernorLimits limits_;
  std::vector<double> curve_;     // by rows
  std::vector<Recent> measured_;  // the same, of steps that have run
  std::vector<int64_t> measured_at_;
  StepTime time_;
  Recent scale_{1}, sample_row_, round_scale_{1};
  std::array<Batch, 16> batches_;

  struct Prior {
    std::array<double, kDraftsMax> tried = {}, came = {};
    std::array<float, kDraftsMax> survival = {};
    size_t count = 0;
  };
  std::array<Prior, kKinds> priors_;

  std::vector<Request> requests_;
  std::vector<uint8_t> asks_;
  std::vector<float> ranked_;

  int64_t steps_ = 0;
  int64_t look_every_, next_look_;
  DraftWay way_ = DraftWay::kPlain;
  bool wait_ = false;
  int64_t drafted_at_ = 0;  // the step that drafts were last chosen for
  std::array<bool, kKinds> feeds_prompts_ = {};
  bool model_wanted_ = false;
  int64_t wanted_at_ = -(int64_t{1} << 32);  // the last step in which it was
  int last_requests_ = 0;
  std::array<Truth, 2> truths_;  // of text drafts, and of steps with the model's
  std::array<double, 2> expected_rates_ = {};  // when they were last chosen
  // Of the trial under way.
  int trial_steps_ = 0, since_plain_ = 0, plain_left_ = 0;
  double trial_s_ = 0, trial_plain_s_ = 0;
  // Probes.
  bool probing_ = false;
  int64_t probe_since_ = 0, next_probe_ = 0, probe_after_ = kProbeAfterMin;
  int probe_waits_ = 0;  // steps that the last one still has to show something
  double probe_s_ = 0;   // what it cost
  double probes_s_ = 0, total_s_ = 0;
};

}  // namespace deepinfer::sched
