// Which answers draft, how, and how many of their drafts the next step verifies (internal to engine/). Nothing here
// changes a token: a draft counts only as long as it is what would have been drawn.
//
//   Speculation speculation(options.drafts, info, draft_costs(executor, options.drafts));
//   speculation.start_step(job);                                         // before a step's draws
//   if (speculation.ahead()) speculation.place(job, next, scheduler);    // behind them: drafts of a planned step
//   speculation.learn(job);                                              // before its commit
//   speculation.end_step(job, scheduler, {.next_runs = true});           // behind it: drafts for the next one
//   if (!speculation.waits()) ...                                        // the next step may be planned meanwhile
//
// Drafters: the model's own (DSpark) and texts that are there already (engine/text_guess.h). Per answer the one that is
// expected to bring more, by the confidence head's survival chances and by how often such text drafts came true.
// Whether any of it pays: sched/draft_governor.h. How many are verified: sched/draft_lengths.h.
// Beside plain steps text drafts are made all the same and compared with what comes (shadows), which costs no row.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/model_chances.h"
#include "engine/step_runner.h"
#include "engine/text_guess.h"
#include "sched/draft_governor.h"
#include "sched/draft_lengths.h"

namespace deepinfer::engine {

enum class DraftSource : uint8_t { kNone, kModel, kText };

// What an answer knows of its drafts.
struct DraftState {
  static constexpr int kDraftsMax = sched::DraftGovernor::kDraftsMax;

  // Drafts that nobody verifies: the tokens that come are compared with them.
  struct Shadow {
    std::array<int32_t, kDraftsMax> tokens = {};
    int count = 0;
    int judged = 0, accepted = 0;
    bool alive() const { return judged < count; }
    // False: nothing more is to be learnt from it.
    bool follow(int32_t token) {
      const bool right = tokens[static_cast<size_t>(judged)] == token;
      ++judged;
      accepted += right;
      if (!right) count = 0;
      return alive();
    }
  };

  NgramIndex text;
  bool text_known = false;               // the prompt is in it
  std::shared_ptr<TextHistory> history;  // null: none
  size_t history_at = 0;                 // what is before this of the text is in it
  TextGuess guess;                       // behind the text
  bool guessed = false;                  // since its last token
  DraftSource source = DraftSource::kNone;  // of the drafts that wait for verification
  int count = 0;                            // of these
  std::array<int32_t, kDraftsMax> tokens = {};
  std::array<float, kDraftsMax> newest = {}, older = {};  // survivals of the last two rounds
  bool has_newest = false, has_older = false;
  std::array<float, kDraftsMax> confidence = {};  // logits of the model's drafts
  int text_streak = 0;  // rounds in a row that the text's drafts were chosen

  Shadow text_shadow, model_shadow;
  TextGuess shadow_guess;  // behind text_shadow
  // What came true here, the newest rounds counting most.
  TextLean lean;
  std::array<float, kDraftsMax> model_expected = {}, model_came = {};
  int model_rounds = 0;
  std::array<float, kDraftsMax> said = {};  // survivals of the model's last round, as it sees them
  bool has_said = false;
  bool asks_model = false;  // in the step that runs
  // Chances of the drafts of a round, each if those before it are right.
  struct Usual {
    std::array<float, kDraftsMax> chance = {};
    int count = 0;
    int bin = -1;  // of ModelChances; -1: not from there
  };
  Usual asked, round;  // when the step that runs was decided on; of the model's last round
  float sure = ModelChances::kUnknown;
  bool sure_known = false;
};

class Speculation {
 public:
  struct Now {
    bool next_runs = false;  // the next step is under way: drafts would come too late
    double host_s = 0;       // seconds of planning, streaming and commits since the start
  };

  Speculation(const DraftOptions& options, const ExecutorInfo& info, const sched::DraftCosts& costs, bool overlap);

  bool enabled() const { return options_.mode != DraftMode::kOff; }
  // Whether this answer may speculate at all.
  static bool suits(const Request& request) {
    return request.drafts_max != 0 && !request.processed_logprobs && !request.on_logits;
  }
  // A step is planned only once the one before it is committed.
  bool waits() const { return waits_; }
  // Steps with drafts are planned ahead (DraftOptions::ahead): end_step() keeps rows for them, by what the round before
  // the drafts said, and place() gives each answer a part of these, by what their own round says.
  bool ahead() const { return ahead_; }
  // Whether rows enter the drafter's rings from the next plan on.
  bool feeds_drafter() const { return feeds_; }
  // The answer is over.
  void answer_ended(Answer& a);
  // A request has come: its prompt is fed if drafts of new requests are worth it.
  void request_added(const Request& r) {
    if (!enabled() || !governor_.feeds_prompts(kind_of(r))) return;
    feeds_ = model_drafts_ > 0;
    prompt_feed_ = kYoung;
  }
  // Nothing runs: the time until the next step is nobody's.
  void idle() { last_drawn_s_ = -1; }

  // Sets job.drafts and job.wants_drafts; answers of the job are set.
  void start_step(StepJob& job);
  // Before the commit of the job: what became of its drafts. Once a job.
  void learn(StepJob& job);
  // With ahead(): between the draws of the job and the run of the next one, on any thread while no other uses either.
  void place(StepJob& job, StepJob& next, sched::Scheduler& scheduler);
  // Behind it, with the answers that still run: the drafts of the next step.
  void end_step(StepJob& job, sched::Scheduler& scheduler, const Now& now);
  const DraftStats& stats() const { return stats_; }

 private:
  static constexpr int kTextStreak = 4;  // rounds after which the model's drafter is not asked any more

  static constexpr int kYoung = 8;       // tokens of an answer whose rings are kept fed

  // Of one answer in a step.
  int limit_of(const Answer& a) const {
    const int asked = a.live.request.drafts_max;
    return asked < 0 ? drafts_max_ : std::min(asked, drafts_max_);
  }
  bool fixed() const { return options_.mode == DraftMode::kFixed; }
  void measure(const StepJob& job, const Now& now, bool prompts);
  void learn_of(const StepJob& job, size_t i, Answer& a);
  void judge_text(DraftState& d, const TextGuess& g, int judged, int accepted);
  void know_text(Answer& a, sched::Scheduler& scheduler);
  void enter_text(Answer& a);
  const TextGuess& guess_text(Answer& a);
  // Requests with tools repeat themselves more than others.
  static int kind_of(const Request& r) { return r.traffic == kv::Traffic::kAgent ? 1 : 0; }
  void judge_model(Answer& a, int judged, int accepted);
  void judge_confidence(const DraftState& d, int verified, int accepted);
  bool rests(const StepJob& job) const;
  void decide(StepJob& job, sched::Scheduler& scheduler, bool prompts);
  void shadow(const StepJob& job, size_t i, Answer& a);
  bool propose(const StepJob& job, size_t i, Answer& a);
  bool verify(StepJob& job, sched::Scheduler& scheduler);
  void keep_rows(const StepJob& job, sched::Scheduler& scheduler);
  void expect_usual(Answer& a) const;
  int model_hope(Answer& a, std::span<float> out) const;
  static bool ready(const StepJob& job, size_t i);
  static std::span<const int32_t> drafted(const StepJob& job, size_t i);

  const DraftOptions options_;
  const int drafts_max_;
  const int model_drafts_;  // of a round; 0: the model has no drafter, or it is not asked
  const int rows_max_;
  const int step_drafts_max_;
  sched::DraftGovernor governor_;
  sched::DraftLengths lengths_;
  sched::DraftChoice choice_;
  const bool overlap_;  // steps are planned while others run, but for those that wait
  const bool ahead_;
  int prompt_feed_ = 0;  // steps that the rings are still fed for prompts of a kind whose drafts pay
  bool drafting_now_ = false;  // drafts are in use
  bool model_verified_ = false;  // the model's, in the last step
  bool waits_ = false, feeds_ = false, serial_ = false;
  bool many_ = false;  // answers in the last step
  float least_ = 0;    // chance of a text draft that is thought of
  std::vector<size_t> drafting_;  // samples of the job whose answers go on and may draft
  std::vector<size_t> placing_;   // the same, in place()
  std::vector<sched::PlacedDrafts> placed_;
  double last_drawn_s_ = -1, last_host_s_ = 0;
  TextChances chances_;
  ModelChances model_chances_;
  TextHistories histories_;
  DraftStats stats_;
};

// Measures what steps and draft rounds cost, on memory that holds nothing yet. Empty if drafts are not by confidence,
// or a forward fails.
sched::DraftCosts draft_costs(StepExecutor& executor, const DraftOptions& options);

}  // namespace deepinfer::engine
