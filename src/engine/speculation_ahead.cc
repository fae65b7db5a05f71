// Drafts of steps that are planned while the step before runs (DraftOptions::ahead; spec/deepinfer.md C4).
#include <algorithm>

#include "engine/speculation.h"

namespace deepinfer::engine {

// Rows for drafts in the plan that comes next: those drafts are made behind the step that runs now, so that what is
// known is the round before it, or how often drafts came true.
void Speculation::keep_rows(const StepJob& job, sched::Scheduler& scheduler) {
  lengths_.begin();
  for (const size_t i : drafting_) {
    const Answer& a = *job.answers[i];
    const DraftState& d = *a.drafts;
    const bool asked = model_drafts_ > 0 && (fixed() ? d.text_streak < kTextStreak : d.asks_model);
    const int n = std::min(limit_of(a), options_.text ? drafts_max_ : asked ? model_drafts_ : 0);
    std::span<const float> known;
    if (d.has_newest) {
      known = std::span<const float>(d.newest).first(static_cast<size_t>(std::min(d.count, n)));
    } else if (!asked) {
      known = d.guess.known().first(static_cast<size_t>(std::min(d.guess.count, n)));
    }
    lengths_.add(
        {.drafts = n, .tokens = a.usage.prompt_tokens + a.usage.output_tokens, .newest = known, .older = known});
  }
  static const sched::StepTime kAll;
  const std::span<const int> rows = lengths_.choose(fixed() ? kAll : governor_.time(),
                                                    {.rows_max = rows_max_, .drafts_max = step_drafts_max_});
  for (size_t k = 0; k < drafting_.size(); ++k) scheduler.set_draft_rows(job.answers[drafting_[k]]->id, rows[k]);
}

void Speculation::place(StepJob& job, StepJob& next, sched::Scheduler& scheduler) {
  learn(job);
  placed_.assign(job.answers.size(), {});
  placing_.clear();
  lengths_.begin();
  for (size_t i = 0; i < job.answers.size(); ++i) {
    placed_[i].drawn = job.tokens_of(i);
    Answer* a = job.answers[i];
    if (a == nullptr || a->drafts == nullptr) continue;
    DraftState& d = *a->drafts;
    d.source = DraftSource::kNone;
    d.count = 0;
    d.has_newest = false;
    if (!drafting_now_ || placed_[i].drawn.empty() || a->ends_with(job.drawn[i])) continue;
    const int room = scheduler.draft_room(job.plan->samples[i].id);
    if (room == 0 || !propose(job, i, *a)) continue;
    const auto n = static_cast<size_t>(std::min(d.count, room));
    lengths_.add({.drafts = static_cast<int>(n),
                  .tokens = a->usage.prompt_tokens + a->usage.output_tokens,
                  .newest = std::span<const float>(d.newest).first(n),
                  .older = {}});
    placing_.push_back(i);
  }
  const std::span<const int> lengths = lengths_.split(scheduler.draft_rows_kept());
  for (size_t k = 0; k < placing_.size(); ++k) {
    const DraftState& d = *job.answers[placing_[k]]->drafts;
    stats_.saved_rows += d.count - lengths[k];
    placed_[placing_[k]].drafts = std::span<const int32_t>(d.tokens).first(static_cast<size_t>(lengths[k]));
  }
  scheduler.place_drafts(placed_);
  const StepMoments at = next.at;
  next.begin(*next.plan);
  next.at = at;
}

}  // namespace deepinfer::engine
