// Which answers draft, how, and how many of their drafts the next step verifies (internal to engine/). Nothing here
// changes a token: a draft counts only as long as it is what would have been drawn.
//
//   Speculation speculation(options.drafts, info);
//   speculation.start_step(job);                                         // before a step's draws
//   speculation.learn(job);                                              // before its commit
//   speculation.end_step(job, scheduler, now_s);                         // behind it: drafts for the next one
//
// Drafters: the model's own (DSpark) and the answer's own text (engine/ngram_index.h). Per answer the one that is
// expected to bring more, by the confidence head's survival chances and by how often n-gram drafts of such a match came
// true. Lengths: sched/draft_lengths.h. Whether drafting pays at all is measured: seconds a token with and without it,
// for each size of batch; the better one runs, the other is tried again now and then, more and more rarely.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/ngram_index.h"
#include "engine/step_runner.h"
#include "sched/draft_lengths.h"

namespace deepinfer::engine {

enum class DraftSource : uint8_t { kNone, kModel, kText };

// What an answer knows of its drafts.
struct DraftState {
  static constexpr int kDraftsMax = sched::DraftLengths::kDraftsMax;

  NgramIndex text;
  bool text_known = false;  // the prompt is in the index
  DraftSource source = DraftSource::kNone;  // of the drafts that wait for verification
  int count = 0;                            // of these
  std::array<int32_t, kDraftsMax> tokens = {};
  std::array<float, kDraftsMax> newest = {}, older = {};  // survivals of the last two rounds
  bool has_newest = false, has_older = false;
  std::array<float, kDraftsMax> confidence = {};  // logits of the model's drafts
  int matched = 0;  // length class of the n-gram match
  int text_streak = 0;  // rounds in a row that the text's drafts were chosen
};

class Speculation {
 public:
  Speculation(const DraftOptions& options, const ExecutorInfo& info, std::span<const double> row_seconds);

  bool enabled() const { return options_.mode != DraftMode::kOff; }
  // Whether this answer may speculate at all.
  static bool suits(const Request& request) { return !request.processed_logprobs && !request.on_logits; }
  // Sets job.drafts and job.wants_drafts; answers of the job are set.
  void start_step(StepJob& job);
  // Before the commit of the job: what became of its drafts.
  void learn(const StepJob& job);
  // Behind it, with the answers that still run: the drafts of the next step.
  void end_step(StepJob& job, sched::Scheduler& scheduler, double now_s);
  const DraftStats& stats() const { return stats_; }

 private:
  struct Rate {  // of one size of batch
    double on_s = 0, off_s = 0;  // seconds a token
    int steps = 0;               // of the current period
    double seconds = 0, tokens = 0;
    bool on = true;
    int period = kPeriod, since_probe = 0, probe_after = kProbeAfter;
    bool probing = false;
  };
  static constexpr int kPeriod = 12, kProbe = 6, kProbeAfter = 200, kProbeAfterMax = 4000;

  Rate& rate_of(int sequences);
  void measure(Rate& rate, double seconds, double tokens);
  void learn_of(const StepJob& job, size_t i, Answer& a);
  void propose(const StepJob& job, size_t i, Answer& a, sched::Scheduler& scheduler);
  float text_chance(int matched) const;
  static int match_class(int matched);

  const DraftOptions options_;
  const int drafts_max_;
  const int model_drafts_;  // of a round; 0: the model has no drafter, or it is not asked
  const int rows_max_;
  sched::StepTime time_;
  sched::DraftLengths lengths_;
  std::vector<Answer*> speculating_;
  std::array<Rate, 16> rates_;
  double last_end_s_ = -1;
  struct Hits {
    double tried = 2, came = 1;
  };
  std::array<Hits, 4> text_hits_;
  DraftStats stats_;
};

// Seconds of a forward of 1, 2, 4, .. decode rows, for the first guess of what rows cost. Runs on memory that holds
// nothing yet. Empty if drafts are off or a forward fails.
std::vector<double> profile_rows(StepExecutor& executor, const DraftOptions& options);

}  // namespace deepinfer::engine
