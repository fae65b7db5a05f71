#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

void OpenPlan::clear() {
  plan.step.clear();
  plan.before.clear();
  plan.beside.clear();
  plan.samples.clear();
  rows.clear();
  draws.clear();
  pinned.clear();
  thrown = nullptr;
}

bool Scheduler::Impl::wants_prefill(const Sequence& s) const {
  const int64_t need = s.known() + s.ahead - s.planned;
  return s.phase == Phase::kRunning && !s.paused && (need > 1 || s.planned < s.state.prompt_tokens);
}

// With drafts in an open plan `planned` is beyond the one token that is sure to come: nothing is wanted until its
// commit, or, with drafts_ahead, all the drafts are counted as if they had come true.
bool Scheduler::Impl::wants_decode(const Sequence& s) const {
  if (s.phase != Phase::kRunning || s.paused || s.planned < s.state.prompt_tokens ||
      s.in_plan == current().plan.step.step)
    return false;
  const int64_t hoped = config.drafts_ahead ? s.open_drafts : 0;
  return s.known() + s.ahead + hoped - s.planned == 1 && s.outputs() + s.ahead < s.max_output;
}

const Plan& Scheduler::Impl::make_plan(double now) {
  now_s = std::max(now_s, now);
  if (open_count == 2) {
    std::fprintf(stderr, "deepinfer: plan() was called with two plans open; commit the older one first\n");
    std::abort();
  }
  if (loading != nullptr) end_load(false);
  pass_deadlines(now_s);
  retire_ended();
  advance_fetches();
  OpenPlan& p = open[(first_open + open_count) % 2];
  ++open_count;
  p.clear();
  p.plan.step.step = plan_count++;
  p.plan.step.feeds_drafter = feeds_drafter;
  p.plan.before.swap(pending);
  logits_used = 0;
  planning = true;
  if (config.preempt_drill) {
    walk = running;
    for (Sequence* s : walk) {
      if (s->outputs() > 0 && config.preempt_drill(s->state.id, s->outputs())) preempt(*s);
    }
  }
  plan_decode();
  admit_waiting(plan_prefill(prefill_budget()));
  if (loading != nullptr && loading->in_plan != p.plan.step.step) {  // no room for its rows
    p.plan.beside.clear();
    end_load(false);
  }
  planning = false;
  ++stats.plans;
  stats.rows += static_cast<int64_t>(p.plan.step.tokens.size());
  return p.plan;
}

bool Scheduler::Impl::has_room_for(const Sequence& s, int end) const {
  const model::StepPlan& step = current().plan.step;
  if (static_cast<int>(step.sequences.size()) >= config.sequences_max) return false;
  const int held = std::max(pages(end), static_cast<int>(s.blocks.size()));
  return config.blocks_per_step_max == 0 || static_cast<int>(step.blocks.size()) + held <= config.blocks_per_step_max;
}

// Draws may be more than running sequences: a prompt whose own answer was cancelled draws once more for the others'
// sake and has given its place to the next by then.
int Scheduler::Impl::draws_left() const {
  return config.outputs_max - static_cast<int>(current().plan.samples.size());
}

void Scheduler::Impl::plan_decode() {
  walk = running;  // growing may preempt, which changes `running`
  int rows = 0;
  bool prompts = queue.size() > 0;
  for (const Sequence* s : walk) {
    rows += wants_decode(*s);
    prompts |= wants_prefill(*s);
  }
  // Every sequence has a right to one row; drafts share what is left, but do not crowd out prompts.
  int spare_rows = std::min(config.rows_max, config.outputs_max) - rows - (prompts ? config.prefill_rows_min : 0);
  for (Sequence* s : walk) {
    if (wants_decode(*s)) spare_rows -= add_decode(*s, std::max(0, spare_rows));
  }
}

int Scheduler::Impl::add_decode(Sequence& s, int drafts_max) {
  const bool known = s.planned < s.known();
  const int wanted = known ? static_cast<int>(s.drafts.size()) : config.drafts_ahead ? s.draft_rows : 0;
  int drafts = std::max(0, std::min({wanted, drafts_max, s.max_output - s.outputs() - s.ahead - 1}));
  if (drafts > 0 && !(has_room_for(s, s.planned + 1 + drafts))) drafts = 0;
  const int count = 1 + drafts;
  if (logits_used + count > config.outputs_max || draws_left() < 1 ||
      static_cast<int>(current().plan.step.tokens.size()) + count > config.rows_max)
    return 0;
  if (!has_room_for(s, s.planned + count) || !grow(s, s.planned + count)) return 0;
  if (!known) s.drafts.assign(static_cast<size_t>(drafts), 0);
  s.drafts.insert(s.drafts.begin(), known ? s.state.tokens[s.planned] : -1 - s.drawn_at);
  s.draft_rows = 0;
  s.open_drafts = drafts;
  const auto held = static_cast<int>(s.blocks.size()) * config.block_tokens;
  s.draft_room = known ? 0 : std::min(config.drafts_max, held - s.planned - 1);
  const int logits_row = logits_used;
  add_rows(s, count, count, drafts > 0 ? model::RowKind::kVerify : model::RowKind::kDecode,
           std::span<const int32_t>(s.drafts).first(count));
  s.drafts.clear();
  add_draws(s, logits_row, count);
  stats.decode_rows += count;
  queue.charge(s.flow, count);
  return drafts;
}

int Scheduler::Impl::prefill_budget() const {
  const auto decode_rows = static_cast<int>(current().plan.step.tokens.size());
  const int left = config.rows_max - decode_rows;
  if (decode_rows == 0 || config.step_target_s <= 0 || cost.prefill_row_s <= 0) return left;
  const double rows =
      (config.step_target_s - cost.base_s - decode_rows * cost.decode_row_s) / cost.prefill_row_s + 1e-6;
  return std::min(left, std::max(config.prefill_rows_min, static_cast<int>(std::clamp(rows, 0.0, 1e9))));
}

int Scheduler::Impl::plan_prefill(int budget) {
  walk.clear();
  for (Sequence* s : running) {
    if (wants_prefill(*s)) walk.push_back(s);
  }
  // Equal parts for all prompts in work, and what short ones leave for the others: a long prompt holds nobody up.
  auto prompts = static_cast<int>(walk.size());
  for (Sequence* s : walk) {
    if (budget <= 0) break;
    const int part = std::max((budget + prompts - 1) / prompts, std::min(config.prefill_rows_min, budget));
    --prompts;
    if (s->phase == Phase::kRunning) budget -= add_prefill(*s, part);  // else preempted by one before it
  }
  return budget;
}

void Scheduler::Impl::admit_waiting(int budget) {
  if (admission_blocked_at == blocks.free_count() + index.evictable() && !running.empty()) return;
  passed_over.clear();
  while (budget > 0 && slots.free_count() > slots_reserved &&
         static_cast<int>(running.size()) + slots_reserved < config.sequences_max) {
    Sequence* s = queue.candidate(static_cast<int>(passed_over.size()));
    if (s == nullptr) return;
    if (!admit(*s)) {
      // Others may go first, but not for ever.
      if (s->skips >= config.skips_max || static_cast<int>(passed_over.size()) >= config.skip_ahead_max) return;
      passed_over.push_back(s);
      continue;
    }
    for (Sequence* waiting : passed_over) ++waiting->skips;
    passed_over.clear();
    if (wants_prefill(*s)) {
      budget -= add_prefill(*s, budget);
    } else if (wants_decode(*s)) {
      add_decode(*s, 0);
      --budget;
    }
    if (loading != nullptr) return;  // nobody else waits for its pages
  }
}

int Scheduler::Impl::add_prefill(Sequence& s, int rows) {
  int count = static_cast<int>(std::min<int64_t>(rows, s.known() - s.planned));
  const int logits_left = config.outputs_max - logits_used;
  const bool every_row = s.request.prompt_outputs && s.planned < s.state.prompt_tokens;
  if (every_row) count = std::min(count, logits_left);
  const int samples = s.forked ? 1 : s.request.samples;
  if (s.planned + count == s.known() && (logits_left < 1 || draws_left() < samples)) --count;
  if (count <= 0) return 0;
  const int end = s.planned + count;
  if (!has_room_for(s, end) || !grow(s, end)) return 0;
  const bool last = end == s.known();
  const int outputs = every_row ? count : (last ? 1 : 0);
  add_rows(s, count, outputs, model::RowKind::kPrefill,
           std::span<const int32_t>(s.state.tokens).subspan(s.planned, count));
  if (last) add_draws(s, logits_used - 1, 1);
  stats.prefill_rows += count;
  return count;
}

void Scheduler::Impl::add_rows(Sequence& s, int count, int outputs, model::RowKind kind,
                               std::span<const int32_t> tokens) {
  OpenPlan& open_plan = current();
  make_history(s, s.planned, {});
  row_images.clear();
  for (const ImageSpan& image : s.request.images) {
    const int first = std::max(image.begin, s.planned), end = std::min(image.begin + image.count, s.planned + count);
    if (first >= end) continue;
    row_images.resize(count, -1);
    for (int at = first; at < end; ++at) row_images[at - s.planned] = image.first_row + at - image.begin;
  }
  model::StepSequence step;
  step.id = s.state.id;
  step.slot = s.slot;
  step.first_position = s.planned;
  step.kind = kind;
  s.draft_begin = feeds_drafter ? std::min(s.draft_begin, s.planned) : s.planned + count;
  step.decoder_begin = s.state.decoder_begin;
  step.draft_begin = s.draft_begin;
  step.window_begin = s.state.window_begin;
  step.exact_begin = s.exact_begin;
  step.cached = s.state.cached;
  step.outputs = outputs;
  open_plan.plan.step.add_sequence(step, tokens, history, s.blocks, row_images);
  open_plan.rows.push_back(&s);
  s.in_plan = open_plan.plan.step.step;
  s.planned += count;
  s.written = std::max(s.written, s.planned);
  ++s.refs;
  logits_used += outputs;
}

void Scheduler::Impl::add_draws(Sequence& s, int logits_row, int rows) {
  OpenPlan& open_plan = current();
  const int samples = s.forked ? 1 : s.request.samples;
  for (int i = 0; i < samples; ++i) {
    Sequence* drawn = i == 0 ? &s : fork(s, i);
    if (drawn == nullptr) continue;
    open_plan.plan.samples.push_back({.id = drawn->state.id, .logits_row = logits_row, .rows = rows,
                                      .position = drawn->planned - rows + 1, .sample = drawn->state.sample});
    open_plan.draws.push_back(drawn);
    ++drawn->refs;
    ++drawn->ahead;
    drawn->drawn_at = static_cast<int32_t>(open_plan.plan.samples.size()) - 1;
  }
  if (s.forked) return;
  s.forked = true;
  slots_reserved -= s.reserved_slots;
  s.reserved_slots = 0;
  if (s.dropped[0]) finish(s, EndReason::kCancelled);  // it only carried the prompt for the others
}

Sequence* Scheduler::Impl::fork(Sequence& parent, int sample) {
  if (parent.dropped[sample]) return nullptr;
  Sequence& s = new_sequence();
  s.state = parent.state;
  s.state.id = parent.state.id + sample;
  s.state.sample = static_cast<uint32_t>(sample);
  s.state.computed = parent.planned;
  s.state.tokens.reserve(parent.state.tokens.capacity());
  s.request = parent.request;
  s.forked = true;
  s.dropped.assign(1, 0);
  s.max_output = parent.max_output;
  s.flow = parent.flow;
  s.arrival = parent.arrival;
  s.blocks.reserve(parent.blocks.capacity());
  s.blocks = parent.blocks;
  for (int32_t b : s.blocks) blocks.share(b);
  s.keys = parent.keys;
  s.node = parent.node;
  s.indexed = parent.indexed;
  index.hold(s.node);
  s.slot = slots.take();
  pending.push_back({.kind = MemoryOp::Kind::kCopySlot, .from = parent.slot, .to = s.slot});
  s.planned = parent.planned;
  s.draft_begin = parent.draft_begin;
  s.written = parent.written;
  s.loaded_begin = parent.loaded_begin;
  s.loaded_end = parent.loaded_end;
  s.drafts.reserve(config.drafts_max + 1);
  s.progress = parent.progress;
  by_id[s.state.id] = &s;
  run(s);
  ++stats.forks;
  return &s;
}

}  // namespace deepinfer::sched
