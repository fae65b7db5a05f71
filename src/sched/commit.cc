#include <algorithm>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

// First to be served first: priority (sequences preempted too often above all), arrival, sample.
static bool served_before(const Sequence* a, const Sequence* b, int preemptions_max) {
  const bool a_urgent = a->progress.preemptions > preemptions_max, b_urgent = b->progress.preemptions > preemptions_max;
  if (a_urgent != b_urgent) return a_urgent;
  if (!a_urgent && a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
  return a->arrival != b->arrival ? a->arrival < b->arrival : a->state.sample < b->state.sample;
}

void Scheduler::Impl::run(Sequence& s) {
  s.phase = Phase::kRunning;
  const auto at = std::ranges::upper_bound(running, &s, [this](const Sequence* a, const Sequence* b) {
    return served_before(a, b, config.preemptions_max);
  });
  running.insert(at, &s);
}

void Scheduler::Impl::stop_running(Sequence& s) { running.erase(std::ranges::find(running, &s)); }

void Scheduler::Impl::report(int64_t id, EndReason reason) {
  ended.push_back({id, reason});
  ++stats.ended;
}

void Scheduler::Impl::finish(Sequence& s, EndReason reason) {
  if (s.phase == Phase::kEnded) return;
  if (s.phase == Phase::kWaiting) {
    queue.remove(s.flow, &s);
    drop_spill(s);
    admission_blocked_at = -1;
  } else if (s.phase == Phase::kFetching) {
    fetching.erase(std::ranges::find(fetching, &s));
  } else {
    stop_running(s);
  }
  s.phase = Phase::kEnded;
  s.end = reason;
  const int samples = s.forked ? 1 : s.request.samples;
  for (int i = 0; i < samples; ++i) {
    if (!s.dropped[i]) report(s.state.id + i, reason);
  }
  ++draining;
  if (s.idle()) retiring.push_back(&s);
}

void Scheduler::Impl::retire_ended() {
  for (Sequence* s : retiring) retire(*s);
  retiring.clear();
}

void Scheduler::Impl::retire(Sequence& s) {
  if (s.slot >= 0 && s.end != EndReason::kFailed) {
    index_blocks(s);
    if (s.outputs() > 0) save_windows(s, s.state.computed, true);
  }
  release_memory(s);
  --draining;
  admission_blocked_at = -1;
  for (int i = 0; i < s.request.samples; ++i) {
    if (const auto it = by_id.find(s.state.id + i); it != by_id.end() && it->second == &s) by_id.erase(it);
  }
  const size_t at = s.at;
  spare.push_back(std::move(all[at]));
  all[at] = std::move(all.back());
  all.pop_back();
  if (at < all.size()) all[at]->at = at;
}

void Scheduler::Impl::commit_draw(Sequence& s, int64_t step, const SampleRow& row, const SampleResult& result) {
  --s.ahead;
  if (s.in_plan == step) s.open_drafts = 0;
  if (s.phase == Phase::kEnded) {
    ++stats.late_rows;
    // Late rows may lie behind its end.
    s.state.computed = static_cast<int32_t>(std::min<int64_t>(s.state.computed, s.known()));
    return;
  }
  const int room = s.max_output - s.outputs();
  const int count = std::min({static_cast<int>(result.tokens.size()), row.rows, room});
  if (count == 0) return finish(s, EndReason::kFailed);  // the engine owes at least one token
  s.state.tokens.insert(s.state.tokens.end(), result.tokens.begin(), result.tokens.begin() + count);
  // Rows behind the last accepted draft are not part of the sequence.
  const bool restarted = s.phase == Phase::kWaiting && s.spill == kv::kNoEntry;
  if (row.rows > 1 && !restarted) {
    s.state.computed = row.position - 1 + count;
    if (s.in_plan == step) s.planned = s.state.computed;  // else the next plan's rows are placed
  }
  if (result.stop && count == static_cast<int>(result.tokens.size())) return finish(s, EndReason::kStop);
  if (s.outputs() < s.max_output) return;
  finish(s, s.known() >= config.context_max ? EndReason::kContextFull : EndReason::kMaxTokens);
}

// The next plan may have forked the sequence on top of the rows that failed.
void Scheduler::Impl::fail(Sequence& s) {
  finish(s, EndReason::kFailed);
  s.end = EndReason::kFailed;  // also if it had ended: what it wrote is not to be cached
  if (open_count < 2) return;
  const OpenPlan& next = current();
  const auto drawn = std::ranges::find(next.draws, &s);
  if (drawn == next.draws.end()) return;
  const auto row_of = [&next](size_t i) { return next.plan.samples[i].logits_row; };
  const int row = row_of(static_cast<size_t>(drawn - next.draws.begin()));
  for (size_t i = 0; i < next.draws.size(); ++i) {
    if (row_of(i) != row) continue;
    finish(*next.draws[i], EndReason::kFailed);
    next.draws[i]->end = EndReason::kFailed;
  }
}

void Scheduler::Impl::commit(const StepResult& result, double now) {
  now_s = std::max(now_s, now);
  if (open_count == 0) return;
  OpenPlan& p = open[first_open];
  if (loading != nullptr && loading->in_plan == p.plan.step.step) end_load(false);
  static const SampleResult kNothing;
  for (int64_t id : result.failed) {
    if (Sequence* s = find(id)) fail(*s);
  }
  for (size_t i = 0; i < p.rows.size(); ++i) {
    Sequence& s = *p.rows[i];
    const model::StepSequence& step = p.plan.step.sequences[i];
    --s.refs;
    if (&s == p.thrown) continue;
    s.state.computed = std::max(s.state.computed, step.first_position + step.count);
  }
  for (size_t i = 0; i < p.draws.size(); ++i) {
    Sequence& s = *p.draws[i];
    --s.refs;
    if (&s == p.thrown) {
      --s.ahead;
      continue;
    }
    commit_draw(s, p.plan.step.step, p.plan.samples[i], i < result.samples.size() ? result.samples[i] : kNothing);
  }
  for (size_t i = 0; i < p.rows.size(); ++i) {
    Sequence& s = *p.rows[i];
    const model::StepSequence& step = p.plan.step.sequences[i];
    if (s.phase == Phase::kEnded && s.idle() && std::ranges::find(retiring, &s) == retiring.end())
      retiring.push_back(&s);
    if (step.kind != model::RowKind::kPrefill || s.phase != Phase::kRunning) continue;
    index_blocks(s);
    const int end = step.first_position + step.count;
    if (end >= s.state.prompt_tokens && step.first_position < s.state.prompt_tokens)
      save_windows(s, s.state.prompt_tokens, false);
  }
  for (Sequence* draw : p.draws) {  // forks have draws without rows
    Sequence& s = *draw;
    // A fork holds the nodes of the blocks that it shares, so that the index does not count on getting them.
    if (s.phase == Phase::kRunning && s.state.sample > 0 && s.outputs() == 1) index_blocks(s);
    if (s.phase == Phase::kEnded && s.idle() && std::ranges::find(retiring, &s) == retiring.end())
      retiring.push_back(&s);
  }
  for (int id : p.pinned) host.unpin(id);
  first_open = (first_open + 1) % 2;
  --open_count;
  retire_ended();
}

}  // namespace deepinfer::sched
