#include <algorithm>

#include "engine/engine_impl.h"

namespace deepinfer::engine {

using sched::Plan;

Answer* Engine::Impl::find(int64_t id) const {
  const auto it = by_id.find(id);
  return it == by_id.end() ? nullptr : it->second;
}

bool Engine::Impl::step() {
  const double t0 = step_clock(), step_begin = now();
  const Plan& plan = scheduler->plan(step_begin);
  const double t1 = step_clock(), forward_begin = now();
  StepMoments at{.begin = step_begin, .planned = forward_begin};
  const bool empty = plan.empty();
  result.failed.clear();
  result.samples.resize(plan.samples.size());
  for (sched::SampleResult& s : result.samples) {
    s.tokens.clear();
    s.stop = false;
  }
  drawn.assign(plan.samples.size(), -1);
  std::span<const float> logits;
  const Status status = run(plan, &logits);
  const double t2 = step_clock();
  at.ready = now();
  stats.times.forward += at.ready - forward_begin;
  if (status.ok()) {
    int outputs = 0;
    for (const model::StepSequence& s : plan.step.sequences) {
      read_prompt_logprobs(s, logits.subspan(static_cast<size_t>(outputs) * static_cast<size_t>(limits.vocab_size)));
      outputs += s.outputs;
    }
    sample(plan, 0, outputs, logits);
  } else {
    isolate(plan, status);
    logits = kept_logits;
  }
  const double t3 = step_clock();
  at.sampled = now();
  stream_tokens(plan, logits);
  const double t4 = step_clock();
  stats.steps += !plan.step.sequences.empty();
  if (options.observer && !empty) {
    at.streamed = now();
    options.observer->on_step({plan, result, logits, at});
  }
  const double committed = now();
  scheduler->commit(result, committed);
  const double t5 = step_clock();
  if (options.observer && !empty) options.observer->on_commit(committed, now());
  collect_ends();
  const double t6 = step_clock();
  stats.times.plan += t1 - t0;
  stats.times.sample += t3 - t2;
  stats.times.commit += t5 - t4;
  stats.times.stream += (t4 - t3) + (t6 - t5);
  return !empty;
}

Status Engine::Impl::run(const Plan& plan, std::span<const float>* logits) {
  DI_RETURN_IF_ERROR(executor->copy(plan.before, scheduler->host()));
  if (plan.step.sequences.empty()) return Status();
  DI_RETURN_IF_ERROR(executor->forward(plan.step));
  int outputs = 0;
  for (const model::StepSequence& s : plan.step.sequences) outputs += s.outputs;
  DI_ASSIGN_OR_RETURN(*logits, executor->logits(outputs));
  return Status();
}

void Engine::Impl::isolate(const Plan& plan, const Status& failure) {
  ++stats.failed_steps;
  int outputs = 0;
  for (const model::StepSequence& s : plan.step.sequences) outputs += s.outputs;
  kept_logits.assign(static_cast<size_t>(outputs) * static_cast<size_t>(limits.vocab_size), 0.0f);
  for (size_t i = 0, first = 0; i < plan.step.sequences.size(); ++i) {
    run_alone(plan, i, static_cast<int>(first), failure);
    first += static_cast<size_t>(plan.step.sequences[i].outputs);
  }
}

// A failed forward may have overwritten ring rows that the first rows of a long piece need; up to `backtrack` rows
// can run again, as rejected drafts do.
void Engine::Impl::run_alone(const Plan& plan, size_t i, int first_output, const Status& failure) {
  const model::StepSequence& s = plan.step.sequences[i];
  const ExecutorInfo& info = executor->info();
  const auto cut = [](const std::vector<int32_t>& list, int first, int count) {
    return std::span<const int32_t>(list).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  };
  alone.clear();
  alone.step = plan.step.step;
  alone.add_sequence(
      s, cut(plan.step.tokens, s.first_token, s.count),
      cut(plan.step.history, static_cast<int>(i) * info.history_tokens, info.history_tokens),
      cut(plan.step.blocks, s.first_block, s.block_count),
      plan.step.image_rows.empty() ? std::span<const int32_t>() : cut(plan.step.image_rows, s.first_token, s.count));
  Status status = s.count <= info.backtrack || failure.code() == Code::kInvalidArgument
                      ? executor->forward(alone)
                      : failure.with_context("The step that read this prompt failed");
  std::span<const float> logits;
  if (status.ok()) {
    Result<std::span<const float>> rows = executor->logits(s.outputs);
    status = rows.status();
    if (rows.ok()) logits = rows.value();
  }
  if (!status.ok()) {
    result.failed.push_back(s.id);
    if (Answer* a = find(s.id); a != nullptr) a->error = status;
    for (const sched::SampleRow& row : plan.samples) {
      if (row.logits_row < first_output || row.logits_row >= first_output + s.outputs) continue;
      if (Answer* a = find(row.id); a != nullptr) a->error = status;
    }
    return;
  }
  read_prompt_logprobs(s, logits);
  const auto vocab = static_cast<size_t>(limits.vocab_size);
  std::ranges::copy(logits.first(static_cast<size_t>(s.outputs) * vocab),
                    kept_logits.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(first_output) * vocab));
  sample(plan, first_output, s.outputs, kept_logits);
}

// Draws from the logits rows [first_output, first_output + outputs) of the plan; `logits` begins with row 0.
void Engine::Impl::sample(const Plan& plan, int first_output, int outputs, std::span<const float> logits) {
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    const sched::SampleRow& row = plan.samples[i];
    if (row.logits_row >= first_output && row.logits_row < first_output + outputs) sample_row(row, logits, i);
  }
}

void Engine::Impl::sample_row(const sched::SampleRow& row, std::span<const float> logits, size_t i) {
  Answer* a = find(row.id);
  if (a == nullptr) return;  // it has ended meanwhile
  const auto vocab = static_cast<size_t>(limits.vocab_size);
  const Result<int32_t> token =
      a->draw(sampler, logits.subspan(static_cast<size_t>(row.logits_row) * vocab, vocab), row.position, mask);
  if (!token.ok()) {
    a->error = token.status();
    return;
  }
  drawn[i] = token.value();
}

void Engine::Impl::name_bytes(TokenLogprob* t) const {
  if (tokenizer) t->bytes = tokenizer->token_bytes(t->token);
}

void Engine::Impl::read_prompt_logprobs(const model::StepSequence& s, std::span<const float> logits) {
  if (s.outputs == 0 || s.kind != model::RowKind::kPrefill) return;
  Answer* a = find(s.id);
  if (a == nullptr || !a->live.request.prompt_logprobs) return;
  const Request& r = a->live.request;
  const auto vocab = static_cast<size_t>(limits.vocab_size);
  for (int k = 0; k < s.outputs; ++k) {
    const auto at = static_cast<size_t>(s.first_position + s.count - s.outputs + k + 1);
    if (at >= r.prompt.size()) return;
    const std::span<const float> values = logits.subspan(static_cast<size_t>(k) * vocab, vocab);
    if (r.on_logits) r.on_logits(a->index, static_cast<int32_t>(at), values);
    const LogSoftmax row(values);
    PromptLogprob& p = a->live.stream->prompt_logprobs[at];
    p.token = {r.prompt[at], row.of(r.prompt[at]), {}};
    name_bytes(&p.token);
    row.top(r.top_logprobs, &p.top);
    for (TokenLogprob& t : p.top) name_bytes(&t);
  }
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

void Engine::Impl::stream_tokens(const Plan& plan, std::span<const float> logits) {
  const auto vocab = static_cast<size_t>(limits.vocab_size);
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    if (drawn[i] < 0) continue;
    const sched::SampleRow& row = plan.samples[i];
    Answer& a = *find(row.id);
    Live& l = a.live;
    EventQueue& queue = l.stream->queue;
    Event& e = queue.slot();
    e.sample = a.index;
    e.ends_answer = e.finished = e.has_logprob = false;
    e.text.clear();
    e.top.clear();
    e.stop_text.clear();
    if (!e.error.ok()) e.error = Status();
    result.samples[i].stop = a.take(drawn[i], &e);
    result.samples[i].tokens.push_back(drawn[i]);
    const std::span<const float> values = logits.subspan(static_cast<size_t>(row.logits_row) * vocab, vocab);
    if (l.request.on_logits) l.request.on_logits(a.index, row.position, values);
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
    const auto n = static_cast<size_t>(l.request.n);
    if (l.paused || queue.free_slots() >= 3 * n) continue;
    l.paused = true;
    l.stream->paused = true;
    paused.push_back(&l);
    for (const std::unique_ptr<Answer>& other : l.answers) scheduler->pause(other->id, true);
  }
}

}  // namespace deepinfer::engine
