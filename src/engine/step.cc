#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/engine_impl.h"

namespace deepinfer::engine {

using sched::Plan;

Answer* Engine::Impl::find(int64_t id) const {
  const auto it = by_id.find(id);
  return it == by_id.end() ? nullptr : it->second;
}

// One turn of the loop. On a device that leaves the host its cores: plans a step while the one before it runs, then ends
// that one while the new one runs. Where the next plan hangs on what is drawn, the runner does both between two
// forwards.
bool Engine::Impl::step() {
  if (alone) return step_alone();
  if (running != nullptr && running->plan->empty()) end_step(*std::exchange(running, nullptr));
  const bool ahead = running == nullptr || (options.overlap && !speculation.waits());
  StepJob* next = ahead ? plan_step() : nullptr;
  if (running == nullptr && next == nullptr) return false;
  if (running != nullptr) prepare(*running);
  if (ahead) {
    runner.post({.finish = running, .start = next, .place = speculation.ahead() ? &place : nullptr});
    runner.wait();
    StepJob* done = std::exchange(running, next);
    if (done != nullptr) end_step(*done);
  } else {
    runner.post({.finish = running, .between = &end_and_plan});
    runner.wait();
  }
  if (running != nullptr && !running->device_failure.ok()) fail_device();
  return true;
}

// Forwards take all cores: one thing after the other, on this thread.
bool Engine::Impl::step_alone() {
  running = plan_step();
  if (running == nullptr) return false;
  prepare(*running);
  runner.post({.start = running});
  runner.wait();
  if (!running->device_failure.ok()) {
    fail_device();
  } else {
    runner.post({.finish = running});
    runner.wait();
    end_step(*std::exchange(running, nullptr));
  }
  return true;
}

void Engine::Impl::settle() {
  if (running == nullptr) return;
  prepare(*running);
  runner.post({.finish = running});
  runner.wait();
  end_step(*std::exchange(running, nullptr));
}

StepJob* Engine::Impl::plan_step() {
  if (device_failed || !scheduler->has_work()) return nullptr;
  const double t0 = step_clock(), begin_s = now();
  const Plan& plan = scheduler->plan(begin_s);
  if (plan.empty() && running == nullptr) {
    empty_result.samples.clear();
    scheduler->commit(empty_result, begin_s);
    collect_ends();  // of requests whose time was over before they ran
    return nullptr;
  }
  if (!plan.beside.empty()) tier->pump(*scheduler, now());  // asked for before the step takes the cores
  StepJob& job = running == &jobs[0] ? jobs[1] : jobs[0];
  job.begin(plan);
  job.loads.begin(plan.beside, scheduler->host(), executor->info().block_bytes, &bring);
  job.at.begin = begin_s;
  job.at.planned = now();
  stats.times.plan += step_clock() - t0;
  return &job;
}

// The pages that a running step waits for, in the middle of it: false throws it away.
bool Engine::Impl::bring_pages() {
  constexpr std::chrono::microseconds kPoll(20);
  const double until = now() + options.tier_beside_s;
  sched::LoadState state = scheduler->load_state();
  for (; state == sched::LoadState::kComing && now() < until; state = scheduler->load_state()) {
    if (!tier->pump(*scheduler, now())) std::this_thread::sleep_for(kPoll);
  }
  scheduler->end_load(state == sched::LoadState::kHere);
  return state == sched::LoadState::kHere;
}

// What the draws of a running step need: the answers as they are after the step before it.
void Engine::Impl::prepare(StepJob& job) {
  const double t0 = step_clock();
  const Plan& plan = *job.plan;
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    job.answers[i] = find(plan.samples[i].id);
    if (job.answers[i] != nullptr) job.answers[i]->prepare();
  }
  for (size_t i = 0; i < plan.step.sequences.size(); ++i) {
    const model::StepSequence& s = plan.step.sequences[i];
    if (s.outputs == 0 || s.kind != model::RowKind::kPrefill) continue;
    Answer* a = find(s.id);
    if (a != nullptr && a->live.request.prompt_logprobs) job.readers[i] = a;
  }
  job.keep_all = options.observer != nullptr && options.observer->wants_logits();
  speculation.start_step(job);
  stats.times.prepare += step_clock() - t0;
}

// Everything behind the draws of a step, while the next one runs.
void Engine::Impl::end_step(StepJob& job) {
  const double t0 = step_clock();
  for (const auto& [id, why] : job.failures) {
    if (Answer* a = find(id); a != nullptr) a->error = why;
  }
  stream_tokens(job);
  speculation.learn(job);
  const double t1 = step_clock();
  const bool rows = !job.plan->step.sequences.empty();
  stats.steps += rows;
  stats.failed_steps += job.isolated;
  const bool observed = options.observer != nullptr && !job.plan->empty() && !job.thrown;
  if (observed) {
    job.at.streamed = now();
    const auto vocab = static_cast<size_t>(limits.vocab_size);
    const size_t kept = job.keep_all ? static_cast<size_t>(job.outputs) * vocab : 0;
    options.observer->on_step({*job.plan, job.result, std::span<const float>(job.kept).first(kept), job.at});
  }
  const double commit_s = now(), t2 = step_clock();
  scheduler->commit(job.result, commit_s);
  const double t3 = step_clock();
  if (observed) options.observer->on_commit(commit_s, now());
  const double t4 = step_clock();
  collect_ends();
  if (speculation.enabled() && !job.thrown) {
    for (size_t i = 0; i < job.answers.size(); ++i) job.answers[i] = find(job.plan->samples[i].id);
    const StepTimes& t = stats.times;
    speculation.end_step(job, *scheduler,
                         {.next_runs = running != nullptr, .host_s = t.plan + t.prepare + t.stream + t.commit});
  }
  stats.times.stream += (t1 - t0) + (step_clock() - t4);
  stats.times.commit += t3 - t2;
  stats.times.sample += job.sample_s;
  stats.times.launch += job.launch_s;
  if (rows) stats.times.forward += job.at.ready - job.at.started;
  if (tier && job.loads.empty()) learn_cost(job);
}

// What a row of a prompt takes, from steps with nothing else: the scheduler compares it with loading the row's block.
void Engine::Impl::learn_cost(const StepJob& job) {
  constexpr int kRowsMin = 64;
  constexpr double kNew = 0.2;
  if (options.step_cost.prefill_row_s > 0 || options.step_target_s > 0) return;  // the owner gives costs
  int rows = 0;
  for (const model::StepSequence& s : job.plan->step.sequences) {
    if (s.kind != model::RowKind::kPrefill) return;
    rows += s.count;
  }
  if (rows < kRowsMin) return;
  const double row_s = (job.at.ready - job.at.started) / rows;
  prefill_row_s = prefill_row_s == 0 ? row_s : prefill_row_s + kNew * (row_s - prefill_row_s);
  sched::StepCost cost = options.step_cost;
  cost.prefill_row_s = prefill_row_s;
  scheduler->set_cost(cost);
}

// Copies of KV memory failed: what the device holds is not known any more. All requests end, and no more are taken.
void Engine::Impl::fail_device() {
  const Status failure = std::exchange(running, nullptr)->device_failure;
  device_failed = true;
  for (const std::unique_ptr<Live>& l : live) {
    for (const std::unique_ptr<Answer>& a : l->answers) {
      if (a->ended) continue;
      a->error = failure;
      device_ends.push_back(a.get());
    }
  }
  for (Answer* a : device_ends) end_answer(*a, FinishReason::kFailed);
  device_ends.clear();
  collect_ends();
}

void Engine::Impl::name_bytes(TokenLogprob* t) const {
  if (tokenizer) t->bytes = tokenizer->token_bytes(t->token);
}

void Engine::Impl::fill_logprobs(const Answer& a, std::span<const float> logits, Event* event) {
  event->has_logprob = true;
  if (a.live.request.processed_logprobs) {
    event->logprob = a.processed;
    event->top = a.processed_top;
  } else {
    const LogSoftmax row(logits);
    event->logprob = {event->token, row.of(event->token), {}};
    row.top(a.live.request.top_logprobs, &event->top);
  }
  name_bytes(&event->logprob);
  for (TokenLogprob& t : event->top) name_bytes(&t);
}

void Engine::Impl::stream_tokens(StepJob& job) {
  for (size_t i = 0; i < job.drawn.size(); ++i) {
    const std::span<const int32_t> tokens = job.tokens_of(i);
    for (size_t k = 0; k < tokens.size(); ++k) {
      if (!stream_token(job, i, static_cast<int>(k), tokens[k])) break;
    }
  }
}

// False: no token comes behind this one.
bool Engine::Impl::stream_token(StepJob& job, size_t i, int k, int32_t token) {
  const auto vocab = static_cast<size_t>(limits.vocab_size);
  const sched::SampleRow& row = job.plan->samples[i];
  Answer& a = *job.answers[i];
  if (Status status = a.accept(token); !status.ok()) {
    a.error = std::move(status);
    return false;
  }
  Live& l = a.live;
  EventQueue& queue = l.stream->queue;
  Event& e = queue.slot();
  e.sample = a.index;
  e.ends_answer = e.finished = e.has_logprob = false;
  e.text.clear();
  e.top.clear();
  e.stop_text.clear();
  if (!e.error.ok()) e.error = Status();
  const bool stop = job.result.samples[i].stop = a.take(token, &e);
  job.result.samples[i].tokens.push_back(token);
  std::span<const float> values;
  if (a.reads_logits())
    values = std::span<const float>(job.kept).subspan(static_cast<size_t>(row.logits_row + k) * vocab, vocab);
  if (l.request.on_logits) l.request.on_logits(a.index, row.position + k, values);
  if (l.request.logprobs) fill_logprobs(a, values, &e);
  const sched::Progress progress = scheduler->progress(a.id);
  if (a.usage.output_tokens == 1) {
    a.usage.cached_tokens = progress.cached_tokens;
    a.usage.first_token_s = now() - l.submitted_s;
  }
  a.usage.replayed_tokens = progress.replayed_rows;
  a.usage.preemptions = progress.preemptions;
  e.usage = a.usage;
  queue.push();
  ++stats.output_tokens;
  touched.push_back(&l);
  if (l.paused || queue.free_slots() >= events_ahead(l)) return !stop;
  l.paused = true;
  l.stream->paused = true;
  paused.push_back(&l);
  for (const std::unique_ptr<Answer>& other : l.answers) scheduler->pause(other->id, true);
  return !stop;
}

}  // namespace deepinfer::engine
