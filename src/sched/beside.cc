#include <utility>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

// Where others have rows to compute, the pages come beside those: nobody waits within a step for another's.
bool Scheduler::Impl::may_load_beside(const Sequence& s) const {
  const Fetch& f = *s.fetch;
  return config.load_beside_s > 0 && f.sure && f.next >= f.end && f.windows_outstanding == 0 &&
         !f.thrown && s.forked && running.empty() &&
         queue.size() == 0 && fetching.size() == 1 &&
         load_rate.seconds(f.end - f.arrived) <= config.load_beside_s;
}

bool Scheduler::Impl::loads_beside(Sequence& s, int shared) {
  Fetch& f = *s.fetch;
  if (!f.beside || f.arrived >= f.end || shared < f.first || shared >= f.end) return false;
  return running.size() == 1 && current().plan.step.sequences.empty() && reserve_pages(f);
}

LoadState Scheduler::Impl::load_state() const {
  if (loading == nullptr) return LoadState::kNone;
  const Fetch& f = *loading->fetch;
  if (loading->phase != Phase::kRunning || f.end < loading->loaded_end) return LoadState::kLost;
  return f.arrived >= loading->loaded_end ? LoadState::kHere : LoadState::kComing;
}

// Its blocks and slot may be given to others at once: what they write comes behind the step that is thrown away.
void Scheduler::Impl::end_load(bool here) {
  if (loading == nullptr) return;
  Sequence& s = *std::exchange(loading, nullptr);
  Fetch& f = *s.fetch;
  if (here) {
    count_loaded(s);
    drop_pages(s);
    return;
  }
  ++stats.loads_thrown;
  current().thrown = &s;
  if (s.phase != Phase::kRunning) {
    s.end = EndReason::kFailed;  // what it wrote is not to be cached
    return;
  }
  stats.cached_tokens -= s.progress.cached_tokens;
  stats.replayed_rows -= s.progress.replayed_rows;
  s.progress = {};
  s.continues_answer = false;
  s.draft_begin = 0;
  stop_running(s);
  restart(s);
  release_device(s);
  f.beside = false;
  f.thrown = true;
  s.phase = Phase::kFetching;
  fetching.push_back(&s);
  admission_blocked_at = -1;
}

}  // namespace deepinfer::sched
