#include "engine/step_runner.h"

#include <time.h>

#include <algorithm>

#include "engine/stream_state.h"

namespace deepinfer::engine {
namespace {

constexpr int kLooks = 2000;  // for the last shared draw; about 50 us
// What is worth sharing with a thread that must be woken, and with one that is watching, in draws of the likeliest
// token; one with top-p costs so many more.
constexpr int kShareFrom = 24, kShareWatched = 4, kWholeDraw = 6;

const model::StepSequence& sequence_of(const StepJob& job, const sched::SampleRow& row) {
  return job.plan->step.sequences[job.sequence_of_row[static_cast<size_t>(row.logits_row)]];
}

// Null: there is nothing to run.
const model::StepPlan* plan_of(const StepJob& job) {
  return job.device_failure.ok() && !job.plan->step.sequences.empty() ? &job.plan->step : nullptr;
}

std::span<const int32_t> drafts_of(const StepJob& job, const sched::SampleRow& row) {
  return std::span<const int32_t>(job.plan->step.tokens)
      .subspan(static_cast<size_t>(sequence_of(job, row).first_token) + 1, static_cast<size_t>(row.rows) - 1);
}

}  // namespace

void StepJob::begin(const sched::Plan& p) {
  plan = &p;
  sequence_of_row.clear();
  for (uint32_t i = 0; i < p.step.sequences.size(); ++i)
    sequence_of_row.insert(sequence_of_row.end(), static_cast<size_t>(p.step.sequences[i].outputs), i);
  outputs = static_cast<int>(sequence_of_row.size());
  answers.assign(p.samples.size(), nullptr);
  readers.assign(p.step.sequences.size(), nullptr);
  keep_all = thrown = isolated = learnt = false;
  drawn.assign(p.samples.size(), -1);
  first_token.clear();
  token_count.assign(p.samples.size(), 0);
  uint32_t rows = 0;
  for (const sched::SampleRow& row : p.samples) {
    first_token.push_back(rows);
    rows += static_cast<uint32_t>(row.rows);
  }
  row_tokens.assign(rows, -1);
  row_certainty.assign(rows, 0);
  wants_certainty = false;
  drafts = 0;
  wants_drafts.assign(p.samples.size(), 0);
  draft_s = 0;
  result.failed.clear();
  failures.clear();
  result.samples.resize(p.samples.size());
  for (sched::SampleResult& s : result.samples) {
    s.tokens.clear();
    s.stop = false;
  }
  device_failure = Status();
  at = StepMoments();
  sample_s = launch_s = 0;
}

StepRunner::StepRunner(StepExecutor& executor, sched::Scheduler& scheduler, const text::Tokenizer* tokenizer,
                       bool own_thread, bool cpu_times, Clock now, const void* clock)
    : executor_(executor),
      scheduler_(scheduler),
      tokenizer_(tokenizer),
      own_thread_(own_thread),
      cpu_times_(cpu_times),
      now_(now),
      clock_(clock),
      vocab_(static_cast<size_t>(executor.info().vocab_size)),
      sampler_(executor.info().vocab_size),
      second_sampler_(executor.info().vocab_size) {
  if (own_thread_) {
    thread_ = std::thread([this] { loop(); });
  } else {
    drawers_ = std::make_unique<ThreadPool>(std::min(2, available_cores()));
  }
}

StepRunner::~StepRunner() {
  if (!own_thread_) return;
  stopping_ = true;
  posted_.add();
  thread_.join();
}

double StepRunner::work_clock() const {
  if (!cpu_times_) return now_(clock_);
  timespec t = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void StepRunner::post(const Command& command) {
  command_ = command;
  if (!own_thread_) return;
  watch_.begin(command.finish != nullptr ? ready_ : ReadyTime());
  posted_.add();
}

void StepRunner::wait() {
  if (!own_thread_) return static_cast<void>(run(command_));
  const int posted = posted_.count();
  for (;;) {
    const int news = news_.count();
    if (done_.load(std::memory_order_acquire) == posted) break;
    if (next_shared_.load(std::memory_order_acquire) < shared_count_.load(std::memory_order_acquire)) {
      shared_draws_.fetch_add(static_cast<int64_t>(take_draws(second_sampler_)), std::memory_order_relaxed);
    } else {
      watch_.wait(news_, news, [this] { return now_(clock_); });
    }
  }
  watch_.end();
}

void StepRunner::loop() {
  for (int seen = 0;; ++seen) {
    while (posted_.count() == seen) posted_.wait(seen);
    if (stopping_) return;
    StepJob* start = run(command_);
    // Nothing of the job but its plan is used from here on: the caller goes on with it while the forward runs.
    const model::StepPlan* step = start != nullptr ? plan_of(*start) : nullptr;
    ready_ = step != nullptr ? duration_.expect(step->tokens.size(), start->at.started) : ReadyTime();
    done_.fetch_add(1, std::memory_order_release);
    news_.add();
    started_ = step != nullptr ? executor_.forward(*step) : Status();
  }
}

// All but the forward of what it gives.
StepJob* StepRunner::run(const Command& command) {
  if (command.finish != nullptr) finish(*command.finish);
  StepJob* start = command.between != nullptr ? (*command.between)() : command.start;
  if (command.place != nullptr && command.finish != nullptr && start != nullptr)
    (*command.place)(*command.finish, *start);
  if (start != nullptr) prepare(*start, command.between != nullptr ? nullptr : command.finish);
  return start;
}

void StepRunner::prepare(StepJob& job, const StepJob* before) {
  const double begin = work_clock();
  if (before != nullptr) scheduler_.fill_drawn(before->drawn);
  job.device_failure = executor_.copy(job.plan->before, scheduler_.host());
  job.launch_s = work_clock() - begin;
  job.at.started = now_(clock_);
}

// Nobody draws from it or reads it.
void StepRunner::throw_away(StepJob& job) {
  job.thrown = true;
  std::ranges::fill(job.answers, nullptr);
  std::ranges::fill(job.readers, nullptr);
}

void StepRunner::finish(StepJob& job) {
  if (!job.device_failure.ok()) return;
  if (!own_thread_) {
    const model::StepPlan* step = plan_of(job);
    job.at.started = now_(clock_);
    started_ = step == nullptr     ? Status()
               : job.loads.empty() ? executor_.forward(*step)
                                   : executor_.forward_loading(*step, job.loads);
    if (job.loads.lost()) throw_away(job);
  }
  Status status = started_;
  std::span<const float> logits;
  if (status.ok() && !job.plan->step.sequences.empty()) {
    Result<std::span<const float>> rows = executor_.logits(job.outputs);
    status = rows.status();
    if (rows.ok()) logits = rows.value();
  }
  job.at.ready = now_(clock_);
  if (executor_.info().leaves_cores && status.ok())
    duration_.learn(job.plan->step.tokens.size(), job.at.ready - job.at.started);
  const double begin = work_clock();
  if (status.ok()) {
    size_t first = 0;
    for (size_t i = 0; i < job.readers.size(); ++i) {
      if (job.readers[i] != nullptr) read_prompt(job, i, logits.subspan(first * vocab_));
      first += static_cast<size_t>(job.plan->step.sequences[i].outputs);
    }
    if (worth_sharing(job)) {
      own_thread_ ? draw_shared(job, logits) : draw_divided(job, logits);
    } else {
      draw(job, 0, job.outputs, logits);
    }
    keep_rows(job, logits);
  } else {
    isolate(job, status);
  }
  job.sample_s = work_clock() - begin;
  job.at.sampled = now_(clock_);
  if (job.drafts > 0 && status.ok()) draft(job);
}

// Draws from the logits rows [first_output, first_output + outputs) of the job; `logits` begins with row 0.
void StepRunner::draw(StepJob& job, int first_output, int outputs, std::span<const float> logits) {
  const std::vector<sched::SampleRow>& samples = job.plan->samples;
  for (size_t i = 0; i < samples.size(); ++i) {
    const sched::SampleRow& row = samples[i];
    Answer* a = job.answers[i];
    if (a == nullptr || row.logits_row < first_output || row.logits_row >= first_output + outputs) continue;
    draw_rows(job, i, logits, sampler_);
  }
}

bool StepRunner::worth_sharing(const StepJob& job) const {
  int cost = 0, answers = 0;
  for (size_t i = 0; i < job.answers.size(); ++i) {
    if (job.plan->samples[i].rows != 1) return false;  // drafts: the rows of an answer follow each other
    if (job.answers[i] == nullptr) continue;
    cost += job.answers[i]->draws_likeliest() ? 1 : kWholeDraw;
    ++answers;
  }
  return answers > 1 && cost >= (watch_.watching() ? kShareWatched : kShareFrom);
}

void StepRunner::draw_divided(StepJob& job, std::span<const float> logits) {
  const std::thread::id runner = std::this_thread::get_id();
  const auto draw_some = [&](int64_t begin, int64_t end) {
    const bool second = std::this_thread::get_id() != runner;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (job.answers[i] == nullptr) continue;
      draw_rows(job, i, logits, second ? second_sampler_ : sampler_);
      if (second) shared_draws_.fetch_add(1, std::memory_order_relaxed);
    }
  };
  drawers_->parallel_for(static_cast<int64_t>(job.answers.size()), std::ref(draw_some));
}

// Nothing is posted before the waiting thread has seen that this command is done, so what it finds here is of this job.
void StepRunner::draw_shared(StepJob& job, std::span<const float> logits) {
  shared_job_ = &job;
  shared_logits_ = logits;
  shared_made_.store(0, std::memory_order_relaxed);
  next_shared_.store(0, std::memory_order_relaxed);
  shared_count_.store(job.answers.size(), std::memory_order_release);
  news_.add();
  take_draws(sampler_);
  for (int looks = 0; shared_made_.load(std::memory_order_acquire) < job.answers.size(); ++looks) {
    if (looks < kLooks) {
      __builtin_ia32_pause();
    } else {
      std::this_thread::yield();  // the other thread has lost its core
    }
  }
  shared_count_.store(0, std::memory_order_relaxed);
}

size_t StepRunner::take_draws(ops::Sampler& sampler) {
  const size_t count = shared_count_.load(std::memory_order_acquire);
  size_t made = 0;
  for (size_t i = 0; (i = next_shared_.fetch_add(1, std::memory_order_relaxed)) < count; ++made) {
    if (shared_job_->answers[i] != nullptr) draw_rows(*shared_job_, i, shared_logits_, sampler);
    shared_made_.fetch_add(1, std::memory_order_release);
  }
  return made;
}

// A verified draft counts as long as it is what would have been drawn.
void StepRunner::draw_rows(StepJob& job, size_t i, std::span<const float> logits, ops::Sampler& sampler) {
  const sched::SampleRow& row = job.plan->samples[i];
  Answer& a = *job.answers[i];
  const std::span<const int32_t> drafts = drafts_of(job, row);
  for (int k = 0; k < row.rows; ++k) {
    const size_t at = static_cast<size_t>(row.logits_row + k) * vocab_;
    const Result<int32_t> token = a.draw(sampler, logits.subspan(at, vocab_), row.position + k);
    if (!token.ok()) {
      a.error = token.status();
      job.drawn[i] = -1;
      job.token_count[i] = 0;
      return;
    }
    const uint32_t place = job.first_token[i] + job.token_count[i]++;
    job.drawn[i] = job.row_tokens[place] = token.value();
    if (job.wants_certainty && a.drafts != nullptr)
      job.row_certainty[place] = sampler.certainty(logits.subspan(at, vocab_));
    if (k + 1 == row.rows || token.value() != drafts[static_cast<size_t>(k)] || a.ends_with(token.value())) return;
    if (Status status = a.advance(token.value()); !status.ok()) {
      a.error = std::move(status);
      return;
    }
    if (a.ends_with(token.value())) return;  // the grammar's end, which need not be an end token of the request
  }
}

// What follows the last draws, for the answers that want it. The round changes nothing that others read.
void StepRunner::draft(StepJob& job) {
  const sched::Plan& plan = *job.plan;
  draft_plan_.drafts = job.drafts;
  draft_plan_.sequences.clear();
  drafting_.clear();
  bool likeliest = true;
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    const sched::SampleRow& row = plan.samples[i];
    Answer* a = job.answers[i];
    if (a == nullptr || !job.wants_drafts[i] || job.drawn[i] < 0 || a->ends_with(job.drawn[i])) continue;
    const model::StepSequence& s = sequence_of(job, row);
    if (s.id != row.id) continue;  // a fork that has no slot yet
    drafting_.push_back(i);
    draft_plan_.sequences.push_back({.id = row.id,
                                     .slot = s.slot,
                                     .position = row.position + static_cast<int32_t>(job.token_count[i]) - 2,
                                     .decoder_begin = std::max(s.decoder_begin, s.draft_begin),
                                     .token = job.drawn[i]});
    likeliest = likeliest && a->draws_likeliest();
  }
  const auto drafts = static_cast<size_t>(job.drafts);
  job.draft_tokens.assign(plan.samples.size() * drafts, -1);
  job.draft_confidence.assign(plan.samples.size() * drafts, 0);
  if (drafting_.empty()) return;
  for (size_t i : drafting_) job.answers[i]->begin_drafts(job.drawn[i]);
  const auto choose = [&](int index, std::span<const float> logits, std::span<int32_t> tokens) {
    for (size_t s = 0; s < drafting_.size(); ++s) {
      const size_t i = drafting_[s];
      const int32_t place = draft_plan_.sequences[s].position + 2 + index;
      const int32_t token = job.answers[i]->draw_draft(sampler_, logits.subspan(s * vocab_, vocab_), place);
      tokens[s] = std::max(token, 0);
      job.draft_tokens[i * drafts + static_cast<size_t>(index)] = token;
    }
    return Status();
  };
  round_tokens_.resize(drafting_.size() * drafts);
  round_confidence_.resize(drafting_.size() * drafts);
  const double begin = now_(clock_);
  const Status status = executor_.draft(draft_plan_, likeliest ? StepExecutor::DraftChooser() : choose, round_tokens_,
                                        round_confidence_);
  job.draft_s = now_(clock_) - begin;
  for (size_t s = 0; s < drafting_.size(); ++s) {
    const size_t i = drafting_[s];
    job.answers[i]->end_drafts();
    for (size_t j = 0; j < drafts; ++j) {
      int32_t& token = job.draft_tokens[i * drafts + j];
      if (likeliest) token = round_tokens_[s * drafts + j];
      if (!status.ok()) token = -1;  // no drafts: that costs time and nothing else
      job.draft_confidence[i * drafts + j] = round_confidence_[s * drafts + j];
    }
  }
}

void StepRunner::keep_rows(StepJob& job, std::span<const float> logits) {
  const auto keep = [&](size_t row) {
    if (job.kept.size() < (row + 1) * vocab_) job.kept.resize(static_cast<size_t>(job.outputs) * vocab_);
    std::ranges::copy(logits.subspan(row * vocab_, vocab_),
                      job.kept.begin() + static_cast<std::ptrdiff_t>(row * vocab_));
  };
  if (job.keep_all) {
    for (size_t row = 0; row < static_cast<size_t>(job.outputs); ++row) keep(row);
    return;
  }
  for (size_t i = 0; i < job.answers.size(); ++i) {
    if (job.answers[i] == nullptr || !job.answers[i]->reads_logits()) continue;
    for (uint32_t k = 0; k < job.token_count[i]; ++k) keep(static_cast<size_t>(job.plan->samples[i].logits_row) + k);
  }
}

void StepRunner::isolate(StepJob& job, const Status& failure) {
  job.isolated = true;
  job.kept.assign(static_cast<size_t>(job.outputs) * vocab_, 0.0f);
  for (size_t i = 0, first = 0; i < job.plan->step.sequences.size(); ++i) {
    run_alone(job, i, static_cast<int>(first), failure);
    first += static_cast<size_t>(job.plan->step.sequences[i].outputs);
  }
}

// A failed forward may have overwritten ring rows that the first rows of a long piece need; up to `backtrack` rows
// can run again, as rejected drafts do.
void StepRunner::run_alone(StepJob& job, size_t i, int first_output, const Status& failure) {
  const sched::Plan& plan = *job.plan;
  const model::StepSequence& s = plan.step.sequences[i];
  const ExecutorInfo& info = executor_.info();
  const auto cut = [](const std::vector<int32_t>& list, int first, int count) {
    return std::span<const int32_t>(list).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  };
  alone_.clear();
  alone_.step = plan.step.step;
  alone_.add_sequence(
      s, cut(plan.step.tokens, s.first_token, s.count),
      cut(plan.step.history, static_cast<int>(i) * info.history_tokens, info.history_tokens),
      cut(plan.step.blocks, s.first_block, s.block_count),
      plan.step.image_rows.empty() ? std::span<const int32_t>() : cut(plan.step.image_rows, s.first_token, s.count));
  Status status = s.count <= info.backtrack || failure.code() == Code::kInvalidArgument
                      ? executor_.forward(alone_)
                      : failure.with_context("The step that read this prompt failed");
  std::span<const float> logits;
  if (status.ok()) {
    Result<std::span<const float>> rows = executor_.logits(s.outputs);
    status = rows.status();
    if (rows.ok()) logits = rows.value();
  }
  if (!status.ok()) {
    job.result.failed.push_back(s.id);
    for (size_t k = 0; k < plan.samples.size(); ++k) {
      const int row = plan.samples[k].logits_row;
      if (row >= first_output && row < first_output + s.outputs && job.answers[k] != nullptr)
        job.answers[k]->error = status;
    }
    job.failures.emplace_back(s.id, status);
    return;
  }
  if (job.readers[i] != nullptr) read_prompt(job, i, logits);
  std::ranges::copy(logits.first(static_cast<size_t>(s.outputs) * vocab_),
                    job.kept.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(first_output) * vocab_));
  draw(job, first_output, s.outputs, job.kept);
}

void StepRunner::name_bytes(TokenLogprob* t) const {
  if (tokenizer_ != nullptr) t->bytes = tokenizer_->token_bytes(t->token);
}

// `logits` begins with the first row of sequence i.
void StepRunner::read_prompt(const StepJob& job, size_t i, std::span<const float> logits) {
  const model::StepSequence& s = job.plan->step.sequences[i];
  Answer& a = *job.readers[i];
  const Request& r = a.live.request;
  for (int k = 0; k < s.outputs; ++k) {
    const auto at = static_cast<size_t>(s.first_position + s.count - s.outputs + k + 1);
    if (at >= r.prompt.size()) return;
    const std::span<const float> values = logits.subspan(static_cast<size_t>(k) * vocab_, vocab_);
    if (r.on_logits) r.on_logits(a.index, static_cast<int32_t>(at), values);
    const LogSoftmax row(values);
    PromptLogprob& p = a.live.stream->prompt_logprobs[at];
    p.token = {r.prompt[at], row.of(r.prompt[at]), {}};
    name_bytes(&p.token);
    row.top(r.top_logprobs, &p.top);
    for (TokenLogprob& t : p.top) name_bytes(&t);
  }
}

}  // namespace deepinfer::engine
