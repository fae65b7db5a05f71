// Inside the engine (internal to engine/):
//   engine.cc  calls from other threads     step.cc         one turn of the loop
//   loop.cc    the loop, requests, ends     step_runner.cc  forwards and draws, on a thread of their own
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/speculation.h"
#include "engine/step_runner.h"
#include "engine/stream_state.h"
#include "engine/tier_link.h"
#include "recipe/output_vocabulary.h"

namespace deepinfer::engine {

// Whether steps have the host's cores for themselves: nothing is done beside them.
bool runs_alone(const ExecutorInfo& info, const EngineOptions& options);
sched::SchedulerConfig scheduler_config(const ExecutorInfo& info, const EngineOptions& options);

struct Engine::Impl {
  Impl(std::unique_ptr<StepExecutor> e, std::unique_ptr<sched::Scheduler> s, std::optional<text::Tokenizer> t,
       const EngineOptions& o);
  ~Impl();

  // loop.cc
  Status check_end_tokens() const;
  void start();
  void loop();
  bool read_mail();  // false: the engine ends
  void wait_for_mail(double seconds);
  void wait_for_work();
  void flush_tier();
  void add(Submission&& submission);
  void cancel(const StreamState& stream);
  void resume_read_streams();
  void collect_ends();
  void end_answer(Answer& a, FinishReason reason);
  void request_ended();
  // Runs `job` on the engine's thread and waits for it; not at all once the engine has ended.
  void on_loop(std::function<void()> job);
  size_t mask_words() const { return (static_cast<size_t>(limits.vocab_size) + 31) / 32; }
  static Status device_error();
  double now() const;
  double step_clock() const;  // for StepTimes

  // step.cc
  bool step();        // false: nothing to run
  bool step_alone();  // the same, with nothing beside it
  StepJob* plan_step();
  void prepare(StepJob& job);
  bool bring_pages();
  void end_step(StepJob& job);
  void settle();  // ends the running step without starting another
  void fail_device();
  void learn_cost(const StepJob& job);
  void stream_tokens(StepJob& job);
  bool stream_token(StepJob& job, size_t i, int k, int32_t token);
  // Events that may still come once its reader is found to be behind: of this step, of the one that runs already, and
  // the ends.
  size_t events_ahead(const Live& l) const {
    return 3 * static_cast<size_t>(l.request.n) * static_cast<size_t>(1 + drafts_max);
  }
  void fill_logprobs(const Answer& a, std::span<const float> logits, Event* event);
  void name_bytes(TokenLogprob* t) const;
  Answer* find(int64_t id) const;

  const EngineOptions options;
  std::unique_ptr<StepExecutor> executor;
  std::unique_ptr<sched::Scheduler> scheduler;
  std::unique_ptr<TierLink> tier;  // null: none
  std::optional<text::Tokenizer> tokenizer;
  recipe::OutputVocabulary vocabulary;
  RequestLimits limits;
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  // Shared with other threads.
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::atomic<bool> draining{false};
  std::atomic<bool> device_failed{false};  // set by the loop
  std::atomic<int> live_count{0};
  std::mutex ended_mutex;
  std::condition_variable all_ended;
  bool loop_ended = false;  // under mailbox->mutex

  // The loop's.
  std::vector<std::unique_ptr<Live>> live;
  std::unordered_map<int64_t, Answer*> by_id;
  uint64_t requests = 0;
  std::vector<Submission> new_submissions;
  std::vector<std::shared_ptr<StreamState>> new_cancels;
  std::vector<std::function<void()>> new_jobs;
  std::vector<Live*> paused;
  std::vector<Live*> touched;  // streams with new events, to be told at the end of the step
  std::vector<sched::Ended> ends;
  StepJob jobs[2];
  StepJob* running = nullptr;  // started and not finished
  const std::function<StepJob*()> end_and_plan = [this] {
    end_step(*std::exchange(running, nullptr));
    return running = plan_step();
  };
  const std::function<void(StepJob&, StepJob&)> place = [this](StepJob& done, StepJob& next) {
    speculation.place(done, next, *scheduler);
  };
  const std::function<bool()> bring = [this] { return bring_pages(); };
  sched::StepResult empty_result;
  std::vector<Answer*> device_ends;
  const bool alone;  // runs_alone()
  StepRunner runner;
  const int drafts_max;  // of a sequence and step
  Speculation speculation;
  EngineStats stats;
  double prefill_row_s = 0;  // measured; 0: not yet
  double next_expiry_s = 60;
  std::thread thread;
};

}  // namespace deepinfer::engine
