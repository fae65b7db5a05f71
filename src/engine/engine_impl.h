// Inside the engine (internal to engine/):  engine.cc  calls from other threads    loop.cc  the loop    step.cc  one
// step
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/stream_state.h"
#include "engine/tier_link.h"
#include "ops/cpu/sampler.h"
#include "recipe/output_vocabulary.h"

namespace deepinfer::engine {

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
  double now() const;
  double step_clock() const;  // for StepTimes

  // step.cc
  bool step();  // false: nothing to run
  Status run(const sched::Plan& plan, std::span<const float>* logits);
  void isolate(const sched::Plan& plan, const Status& failure);
  void run_alone(const sched::Plan& plan, size_t i, int first_output, const Status& failure);
  void sample(const sched::Plan& plan, int first_output, int outputs, std::span<const float> logits);
  void sample_row(const sched::SampleRow& row, std::span<const float> logits, size_t i);
  void read_prompt_logprobs(const model::StepSequence& s, std::span<const float> logits);
  void stream_tokens(const sched::Plan& plan, std::span<const float> logits);
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
  ops::Sampler sampler;
  std::vector<uint32_t> mask;
  std::vector<int32_t> drawn;  // of the plan's samples; -1: none
  sched::StepResult result;
  model::StepPlan alone;
  std::vector<float> kept_logits;  // rows of a step whose sequences ran one by one
  EngineStats stats;
  double next_expiry_s = 60;
  std::thread thread;
};

}  // namespace deepinfer::engine
