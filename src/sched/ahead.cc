// Plans with rows for drafts that are made only when the step before is drawn (SchedulerConfig::drafts_ahead).
#include <algorithm>

#include "sched/scheduler_impl.h"

namespace deepinfer::sched {

// In token lists: no token there (ops/row_batch.h).
static constexpr int32_t kNoToken = INT32_MIN;

// The tokens before `position`, newest first; those behind the known ones were drawn and are not committed yet. What is
// not there either is filled in later.
void Scheduler::Impl::make_history(const Sequence& s, int32_t position, std::span<const int32_t> drawn) {
  for (int k = 0; k < config.history_tokens; ++k) {
    const int64_t at = int64_t{position} - 1 - k, behind = at - s.known();
    history[k] = kNoToken;
    if (at >= 0 && behind < 0) {
      history[k] = s.state.tokens[at];
    } else if (behind >= 0 && behind < std::ssize(drawn)) {
      history[k] = drawn[behind];
    }
    for (const ImageSpan& image : s.request.images) {
      if (at >= image.begin && at < image.begin + image.count) history[k] = kNoToken;
    }
  }
}

int Scheduler::Impl::draft_rows_kept() const {
  if (open_count < 2) return 0;
  int rows = 0;
  for (const SampleRow& row : current().plan.samples) rows += row.rows - 1;
  return rows;
}

// Appends to `placed`; gives the drafts that it took.
int Scheduler::Impl::place_rows(Sequence& s, const model::StepSequence& at, const PlacedDrafts& p, int rows_left) {
  model::StepSequence step = at;
  int drafts = 0;
  if (!p.drawn.empty()) {
    const auto drawn = static_cast<int>(p.drawn.size());
    step.first_position = static_cast<int32_t>(s.known()) + drawn - 1;
    drafts = std::max(0, std::min({static_cast<int>(p.drafts.size()), rows_left, s.draft_room,
                                   s.max_output - s.outputs() - drawn - 1}));
  }
  row_images.clear();
  s.drafts.assign(1, p.drawn.empty() ? 0 : std::max(0, p.drawn.back()));
  s.drafts.insert(s.drafts.end(), p.drafts.begin(), p.drafts.begin() + drafts);
  make_history(s, step.first_position, p.drawn);
  s.planned = step.first_position + 1 + drafts;
  s.open_drafts = drafts;
  s.draft_begin = placed.feeds_drafter ? std::min(s.draft_begin, step.first_position) : s.planned;
  step.draft_begin = s.draft_begin;
  step.outputs = 1 + drafts;
  step.kind = drafts > 0 ? model::RowKind::kVerify : model::RowKind::kDecode;
  placed.add_sequence(step, s.drafts, history, s.blocks, row_images);
  s.drafts.clear();
  return drafts;
}

void Scheduler::Impl::place_drafts(std::span<const PlacedDrafts> by_sample) {
  if (open_count < 2) return;
  OpenPlan& p = current();
  model::StepPlan& step = p.plan.step;
  const int kept = draft_rows_kept();
  int left = kept;
  placed.clear();
  placed.step = step.step;
  placed.feeds_drafter = step.feeds_drafter;
  first_output.clear();
  int32_t outputs = 0;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const model::StepSequence& s = step.sequences[i];
    first_output.push_back(outputs);
    outputs += s.outputs;
    const int32_t token = step.tokens[s.first_token];
    const auto sample = static_cast<size_t>(-1 - int64_t{token});
    if (token < 0 && s.kind != model::RowKind::kPrefill) {
      left -= place_rows(*p.rows[i], s, sample < by_sample.size() ? by_sample[sample] : PlacedDrafts(), left);
      continue;
    }
    const auto cut = [](const std::vector<int32_t>& list, int64_t first, int64_t count) {
      return std::span<const int32_t>(list).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    };
    placed.add_sequence(s, cut(step.tokens, s.first_token, s.count),
                        cut(step.history, static_cast<int64_t>(i) * config.history_tokens, config.history_tokens),
                        cut(step.blocks, s.first_block, s.block_count),
                        step.image_rows.empty() ? std::span<const int32_t>()
                                                : cut(step.image_rows, s.first_token, s.count));
  }
  // Samples follow their sequences.
  size_t i = 0;
  int32_t before = 0;  // logits rows of the placed sequences before i
  for (SampleRow& row : p.plan.samples) {
    while (row.logits_row >= first_output[i] + step.sequences[i].outputs) before += placed.sequences[i++].outputs;
    row.logits_row += before - first_output[i];
    if (placed.sequences[i].kind == model::RowKind::kPrefill) continue;
    row.rows = placed.sequences[i].outputs;
    row.position = placed.sequences[i].first_position + 1;
  }
  std::swap(step, placed);
  stats.rows -= left;
  stats.decode_rows -= left;
}

}  // namespace deepinfer::sched
