// The device's half of a step: forwards, and between two of them only what the second has to wait for. On a thread of
// its own where the device leaves the host a core for it, else on the thread that waits (internal to engine/).
//
//   StepRunner runner(executor, scheduler, tokenizer, true, cpu_times, now, clock);
//   runner.post({.finish = nullptr, .start = &first});      // returns at once
//   runner.wait();                                          // until `finish` is done and `start` is under way
//   ... plan `second`, prepare first's answers: while first runs ...
//   runner.post({.finish = &first, .start = &second});
//   runner.wait();                                          // first.drawn is there, second runs
//   ... stream and commit first: while second runs ...
//   runner.post({.finish = &second, .between = &end_and_plan});   // what runs next hangs on what was drawn
//   runner.wait();
//
// To finish a step is to wait for its logits and to draw from them. Before the next one starts, its tokens that name
// draws of the finished step are filled in (`place`, Scheduler::fill_drawn) and its copies run. `between` ends the
// finished step and gives the next one: on the runner's thread, so that no thread has to wake up between two forwards.
// From post() to the return of wait() the runner alone uses the scheduler, its host store and the answers of the jobs,
// and with `between` all that the caller owns; the caller waits. Outside of that it uses the executor and the started
// job's plan only. Where the draws of a step take long the waiting thread makes some of them: a draw touches its own
// answer and its own places of the job only. To be there in time it does not sleep until it is woken, where the device
// leaves it a core (engine/step_watch.h).
//
// Without a thread of its own wait() runs the command itself, and a started job's forward runs where it is finished. On
// a device that uses all cores of the host a second thread takes from the forward what it saves between two of them,
// and the way from one to the other besides. Long draws are then divided with a thread that sleeps otherwise.
//
// Failures. If a forward fails, its sequences run again one by one, in finish: those that fail alone are in
// result.failed and their answers have the error. If a copy fails, KV memory is not what the plan says: the job's
// `device_failure` is set and nothing of it runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_count.h"
#include "base/thread_pool.h"
#include "engine/answer.h"
#include "engine/executor.h"
#include "engine/step_loads.h"
#include "engine/step_observer.h"
#include "engine/step_watch.h"
#include "ops/cpu/sampler.h"
#include "sched/scheduler.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

// A step from its plan to its commit. Kept and reused.
struct StepJob {
  const sched::Plan* plan = nullptr;
  std::vector<Answer*> answers;  // of plan->samples; null: it has ended. Set before finish
  std::vector<Answer*> readers;  // of plan->step.sequences: who wants logits of their prompt rows, else null
  int outputs = 0;               // logits rows
  bool keep_all = false;         // all logits are wanted afterwards
  StepLoads loads;               // of plan->beside; only where the runner has no thread of its own
  bool thrown = false;           // a page did not come: nothing of the step counts

  std::vector<int32_t> drawn;    // of plan->samples, the last one if there are several; -1: none
  // All that was drawn for sample i: the accepted drafts and the token behind them.
  std::span<const int32_t> tokens_of(size_t i) const {
    return std::span<const int32_t>(row_tokens).subspan(first_token[i], token_count[i]);
  }
  std::vector<int32_t> row_tokens;
  bool wants_certainty = false;      // of answers that draft
  std::vector<float> row_certainty;  // as row_tokens: Sampler::certainty() of what each was drawn from
  std::span<const float> certainty_of(size_t i) const {
    return std::span<const float>(row_certainty).subspan(first_token[i], wants_certainty ? token_count[i] : 0);
  }
  std::vector<uint32_t> first_token, token_count;
  std::vector<uint32_t> sequence_of_row;  // of every logits row, its place in plan->step.sequences

  // A draft round behind the draws.
  int drafts = 0;                        // drafts a sequence; 0: no round
  std::vector<uint8_t> wants_drafts;     // of plan->samples
  std::vector<int32_t> draft_tokens;     // [samples, drafts]; -1: none from here on
  std::vector<float> draft_confidence;   // [samples, drafts]
  double draft_s = 0;                    // the round took so long
  sched::StepResult result;      // `failed` after finish; the caller fills the samples
  std::vector<std::pair<int64_t, Status>> failures;  // of result.failed, why
  std::vector<float> kept;       // logits rows that are wanted after the next forward has begun, each at its row
  bool isolated = false;
  bool learnt = false;  // Speculation has seen what came of its drafts
  Status device_failure;

  // Seconds of the engine's clock; CPU seconds of the runner's thread if so asked.
  StepMoments at;
  double sample_s = 0, launch_s = 0;

  void begin(const sched::Plan& p);
};

class StepRunner {
 public:
  struct Command {
    StepJob* finish = nullptr;
    StepJob* start = nullptr;
    const std::function<StepJob*()>* between = nullptr;  // gives `start` once `finish` is done
    const std::function<void(StepJob&, StepJob&)>* place = nullptr;  // of both: gives `start` its drafts
  };
  using Clock = double (*)(const void*);

  // `now` gives the engine's time of `clock`.
  StepRunner(StepExecutor& executor, sched::Scheduler& scheduler, const text::Tokenizer* tokenizer, bool own_thread,
             bool cpu_times, Clock now, const void* clock);
  ~StepRunner();

  void post(const Command& command);
  void wait();
  // Draws that a second thread has made.
  int64_t shared_draws() const { return shared_draws_.load(std::memory_order_relaxed); }

 private:
  void loop();
  StepJob* run(const Command& command);
  void finish(StepJob& job);
  void throw_away(StepJob& job);
  void prepare(StepJob& job, const StepJob* before);
  void isolate(StepJob& job, const Status& failure);
  void run_alone(StepJob& job, size_t i, int first_output, const Status& failure);
  void draw(StepJob& job, int first_output, int outputs, std::span<const float> logits);
  void draw_rows(StepJob& job, size_t i, std::span<const float> logits, ops::Sampler& sampler);
  bool worth_sharing(const StepJob& job) const;
  void draw_shared(StepJob& job, std::span<const float> logits);
  void draw_divided(StepJob& job, std::span<const float> logits);
  size_t take_draws(ops::Sampler& sampler);
  void draft(StepJob& job);
  void keep_rows(StepJob& job, std::span<const float> logits);
  void read_prompt(const StepJob& job, size_t i, std::span<const float> logits);
  void name_bytes(TokenLogprob* t) const;
  double work_clock() const;

  StepExecutor& executor_;
  sched::Scheduler& scheduler_;
  const text::Tokenizer* const tokenizer_;  // null: none
  const bool own_thread_;
  const bool cpu_times_;
  const Clock now_;
  const void* const clock_;
  const size_t vocab_;

  ops::Sampler sampler_, second_sampler_;  // of the runner and of the thread that shares its draws
  model::StepPlan alone_;
  model::DraftPlan draft_plan_;
  std::vector<size_t> drafting_;  // samples of the round
  std::vector<int32_t> round_tokens_;
  std::vector<float> round_confidence_;
  Status started_;  // of the forward under way

  Command command_;
  bool stopping_ = false;
  // Commands posted and commands done; news_ counts what the posting thread waits for: done ones, and draws to share.
  EventCount posted_, news_;
  std::atomic<int> done_{0};
  StepDuration duration_;  // the runner's
  ReadyTime ready_;        // of the forward under way; the runner sets it before done_
  StepWatch watch_;        // the waiting thread's
  // Draws that both threads make. The runner sets them before news_, and ends no command before all are made.
  StepJob* shared_job_ = nullptr;
  std::span<const float> shared_logits_;
  std::atomic<size_t> shared_count_{0}, next_shared_{0}, shared_made_{0};
  std::atomic<int64_t> shared_draws_{0};
  std::unique_ptr<ThreadPool> drawers_;  // without a thread of its own: the waiting one and a second
  std::thread thread_;
};

}  // namespace deepinfer::engine
