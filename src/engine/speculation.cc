#include "engine/speculation.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "ops/row_batch.h"
#include "sched/draft_calibration.h"

namespace deepinfer::engine {
namespace {

constexpr double kForget = 0.98;  // of how often n-gram drafts came true
constexpr int kTextStreak = 4;    // rounds after which the model's drafter is not asked any more

std::vector<sched::StepTime::Point> curve_of(std::span<const double> row_seconds) {
  std::vector<sched::StepTime::Point> curve;
  double least = 0;
  for (size_t i = 0; i < row_seconds.size(); ++i) {
    least = std::max(least, row_seconds[i]);  // more rows never take less
    curve.push_back({1 << i, least});
  }
  return curve;
}

}  // namespace

Speculation::Speculation(const DraftOptions& options, const ExecutorInfo& info, std::span<const double> row_seconds)
    : options_(options),
      drafts_max_(std::min(options.drafts_max, DraftState::kDraftsMax)),
      model_drafts_(options.model ? std::min(drafts_max_, info.drafts_max) : 0),
      rows_max_(std::min(info.rows_max, info.outputs_max)),
      time_(curve_of(row_seconds)) {}

Speculation::Rate& Speculation::rate_of(int sequences) {
  return rates_[std::min<size_t>(rates_.size() - 1, static_cast<size_t>(std::bit_width(static_cast<unsigned>(sequences))))];
}

int Speculation::match_class(int matched) { return matched >= 16 ? 3 : matched >= 8 ? 2 : matched >= 4 ? 1 : 0; }

float Speculation::text_chance(int matched) const {
  const Hits& h = text_hits_[static_cast<size_t>(match_class(matched))];
  return static_cast<float>(h.came / h.tried);
}

void Speculation::start_step(StepJob& job) {
  if (!enabled() || model_drafts_ == 0) return;
  const int samples = static_cast<int>(job.plan->samples.size());
  if (samples == 0 || (options_.mode == DraftMode::kConfidence && !rate_of(samples).on)) return;
  for (size_t i = 0; i < job.answers.size(); ++i) {
    const Answer* a = job.answers[i];
    if (a == nullptr || a->drafts == nullptr || a->drafts->text_streak >= kTextStreak) continue;
    job.wants_drafts[i] = 1;
    job.drafts = model_drafts_;
  }
}

// Counts what became of the drafts that this step verified.
void Speculation::learn_of(const StepJob& job, size_t i, Answer& a) {
  DraftState& d = *a.drafts;
  const std::span<const int32_t> tokens = job.tokens_of(i);
  if (d.text_known) d.text.append(tokens);
  const int verified = job.plan->samples[i].rows - 1, accepted = static_cast<int>(tokens.size()) - 1;
  if (verified <= 0 || tokens.empty()) return;
  stats_.verify_rows += verified;
  for (int j = 0; j < std::min(verified, accepted + 1); ++j) {
    ++stats_.verified[static_cast<size_t>(j)];
    stats_.accepted[static_cast<size_t>(j)] += j < accepted;
  }
  if (d.source == DraftSource::kModel && options_.on_round)
    options_.on_round(std::span<const float>(d.confidence).first(static_cast<size_t>(d.count)), verified, accepted);
  if (d.source != DraftSource::kText) return;
  ++stats_.text_rounds;
  stats_.text_accepted += accepted;
  Hits& h = text_hits_[static_cast<size_t>(match_class(d.matched))];
  h.tried = h.tried * kForget + std::min(verified, accepted + 1);
  h.came = h.came * kForget + accepted;
}

void Speculation::learn(const StepJob& job) {
  for (size_t i = 0; i < job.answers.size(); ++i) {
    if (job.answers[i] != nullptr && job.answers[i]->drafts != nullptr) learn_of(job, i, *job.answers[i]);
  }
}

// The drafts of the next round, and what is expected of them.
void Speculation::propose(const StepJob& job, size_t i, Answer& a, sched::Scheduler& scheduler) {
  DraftState& d = *a.drafts;
  d.older = d.newest;
  d.has_older = d.has_newest;
  d.source = DraftSource::kNone;
  d.count = 0;
  d.has_newest = false;
  float expected = 0;
  if (job.drafts > 0 && job.wants_drafts[i]) {
    const auto n = static_cast<size_t>(job.drafts);
    const std::span<const int32_t> drafted = std::span<const int32_t>(job.draft_tokens).subspan(i * n, n);
    while (d.count < job.drafts && drafted[static_cast<size_t>(d.count)] >= 0) {
      d.tokens[static_cast<size_t>(d.count)] = drafted[static_cast<size_t>(d.count)];
      ++d.count;
    }
    if (d.count > 0) {
      d.source = DraftSource::kModel;
      d.has_newest = true;
      const std::span<const float> confidence = std::span<const float>(job.draft_confidence).subspan(i * n, n);
      std::ranges::copy(confidence, d.confidence.begin());
      sched::draft_survival(confidence, options_.temperatures,
                            std::span<float>(d.newest).first(n));
      for (int j = 0; j < d.count; ++j) expected += d.newest[static_cast<size_t>(j)];
      ++stats_.rounds;
      stats_.drafted += d.count;
    }
  }
  if (options_.text) {
    if (!d.text_known) {
      d.text.append(scheduler.tokens(a.id));
      d.text_known = true;
    }
    std::array<int32_t, DraftState::kDraftsMax> tokens = {};
    const NgramIndex::Proposal p = d.text.propose(std::span(tokens).first(static_cast<size_t>(drafts_max_)));
    float survival = 1, sum = 0;
    std::array<float, DraftState::kDraftsMax> chances = {};
    for (int j = 0; j < p.count; ++j) sum += chances[static_cast<size_t>(j)] = survival *= text_chance(p.matched);
    if (p.count > 0 && sum > expected) {
      d.source = DraftSource::kText;
      d.count = p.count;
      d.matched = p.matched;
      d.tokens = tokens;
      d.newest = chances;
      d.has_newest = true;
    }
  }
  d.text_streak = d.source == DraftSource::kText ? d.text_streak + 1 : 0;
}

// Seconds a token with and without drafts, for this size of batch. The better way runs; the other is tried again after
// a while that doubles every time that it loses.
void Speculation::measure(Rate& r, double seconds, double tokens) {
  ++r.steps;
  r.seconds += seconds;
  r.tokens += tokens;
  ++r.since_probe;
  if (r.steps < (r.probing ? kProbe : kPeriod)) return;
  const double each = r.seconds / std::max(1.0, r.tokens);
  double& known = r.on ? r.on_s : r.off_s;
  known = known == 0 ? each : 0.5 * (known + each);
  r.steps = 0;
  r.seconds = r.tokens = 0;
  const double other = r.on ? r.off_s : r.on_s;
  const bool better = other == 0 || each <= other;
  if (r.probing) {
    r.probing = false;
    r.since_probe = 0;
    r.probe_after = better ? kProbeAfter : std::min(2 * r.probe_after, kProbeAfterMax);
    if (!better) r.on = !r.on;
  } else if (other == 0 || r.since_probe >= r.probe_after || each > 1.02 * other) {
    r.on = !r.on;
    r.probing = true;
  }
}

void Speculation::end_step(StepJob& job, sched::Scheduler& scheduler, double now_s) {
  if (!enabled()) return;
  speculating_.clear();
  lengths_.begin();
  const std::vector<sched::SampleRow>& samples = job.plan->samples;
  bool prompts = false;
  for (const model::StepSequence& s : job.plan->step.sequences) prompts |= s.kind == model::RowKind::kPrefill;
  const int rows = static_cast<int>(job.plan->step.tokens.size());
  double tokens = 0;
  for (size_t i = 0; i < samples.size(); ++i) tokens += job.token_count[i];
  stats_.draft_s += job.draft_s;
  Rate& rate = rate_of(std::max<int>(1, static_cast<int>(samples.size())));
  if (rows > 0 && !prompts) {
    time_.observe_forward(rows, job.at.ready - job.at.started);
    if (last_end_s_ >= 0 && options_.mode == DraftMode::kConfidence) measure(rate, now_s - last_end_s_, tokens);
  }
  last_end_s_ = rows > 0 ? now_s : -1;
  const bool on = options_.mode == DraftMode::kFixed || rate.on;
  ++(on ? stats_.steps_on : stats_.steps_off);
  for (size_t i = 0; i < samples.size(); ++i) {
    Answer* a = job.answers[i];
    if (a == nullptr || a->drafts == nullptr) continue;
    scheduler.set_stepwise(a->id, on);
    if (a->ended || job.token_count[i] == 0) continue;
    if (!on) {
      a->drafts->has_newest = a->drafts->has_older = false;
      continue;
    }
    propose(job, i, *a, scheduler);
    DraftState& d = *a->drafts;
    const auto n = static_cast<size_t>(d.count);
    lengths_.add({.drafts = d.count,
                  .tokens = a->usage.prompt_tokens + a->usage.output_tokens,
                  .newest = d.has_newest ? std::span<const float>(d.newest).first(n) : std::span<const float>(),
                  .older = d.has_older ? std::span<const float>(d.older).first(n) : std::span<const float>()});
    speculating_.push_back(a);
  }
  if (speculating_.empty()) return;
  static const sched::StepTime kAll;
  const std::span<const int> verify =
      lengths_.choose(options_.mode == DraftMode::kFixed ? kAll : time_, {.rows_max = rows_max_});
  for (size_t k = 0; k < speculating_.size(); ++k) {
    const DraftState& d = *speculating_[k]->drafts;
    (void)scheduler.set_drafts(speculating_[k]->id,
                               std::span<const int32_t>(d.tokens).first(static_cast<size_t>(verify[k]))).ok();
  }
}

std::vector<double> profile_rows(StepExecutor& executor, const DraftOptions& options) {
  std::vector<double> out;
  if (options.mode != DraftMode::kConfidence) return out;
  const ExecutorInfo& info = executor.info();
  const int sequences = std::min({info.sequences_max, info.slots, info.blocks});
  const int rows_max = std::min({info.rows_max, info.outputs_max, sequences * (1 + options.drafts_max)});
  std::vector<int32_t> history(static_cast<size_t>(info.history_tokens), ops::kNoToken);
  for (int rows = 1; rows <= rows_max; rows *= 2) {
    model::StepPlan plan;
    const int used = std::min(rows, sequences);
    for (int s = 0; s < used; ++s) {
      const int count = rows / used + (s < rows % used);
      const std::vector<int32_t> tokens(static_cast<size_t>(count), 1);
      const std::array<int32_t, 1> block = {s};
      plan.add_sequence({.id = s, .slot = s, .kind = model::RowKind::kVerify, .outputs = count}, tokens, history, block);
    }
    double best = 0;
    for (int i = 0; i < 2; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!executor.forward(plan).ok() || !executor.logits(rows).ok()) return {};
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best = i == 0 ? s : std::min(best, s);
    }
    out.push_back(best);
  }
  return out;
}

}  // namespace deepinfer::engine
