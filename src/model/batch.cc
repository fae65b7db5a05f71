#include "model/batch.h"

#include <algorithm>

#include "checkpoint/config.h"

namespace deepinfer::model {

using ops::KvLayout;

void BatchBuilder::Set::clear() {
  sequences.clear();
  for (auto* v : {&blocks, &tokens, &positions, &sequence, &image_row, &history, &source, &outputs}) v->clear();
}

void BatchBuilder::Set::reserve(int rows, int sequence_count, int block_count, int history_count) {
  sequences.reserve(sequence_count);
  blocks.reserve(block_count);
  history.reserve(history_count);
  for (auto* v : {&tokens, &positions, &sequence, &image_row, &source, &outputs}) v->reserve(rows);
}

ops::RowBatch BatchBuilder::Set::view() const {
  ops::RowBatch b;
  b.rows = static_cast<int32_t>(tokens.size());
  b.sequences = sequences;
  b.blocks = blocks;
  b.tokens = tokens;
  b.positions = positions;
  b.sequence = sequence;
  b.image_row = image_row;
  b.history = history;
  b.source = source;
  b.outputs = outputs;
  return b;
}

BatchBuilder::BatchBuilder(const checkpoint::ModelConfig& config, const Options& options, bool drops_rows)
    : config_(config), options_(options), drops_rows_(drops_rows) {
  const ops::Limits& l = options.limits;
  const int history = l.sequences_max * static_cast<int>(config.engram_max_ngram_size);
  const int blocks = l.blocks_max > 0 ? l.blocks_max : l.sequences_max * KvLayout::pages_for(l.context_max);
  encoder_.reserve(l.rows_max, l.sequences_max, blocks, history);
  decoder_.reserve(l.rows_max, l.sequences_max, blocks, history);
  draft_.reserve(l.sequences_max * static_cast<int>(config.dspark_block_size), l.sequences_max, 0, 0);
  exact_begin_.reserve(l.sequences_max);
  narrowed_.reserve(l.sequences_max);
  narrowed_source_.reserve(l.rows_max);
}

Status BatchBuilder::check_sequence(const StepPlan& plan, const StepSequence& s) const {
  const auto bad = [&s](std::string_view what) {
    return make_error(Code::kInvalidArgument, "step plan: sequence {} {}", s.id, what);
  };
  if (s.slot < 0 || s.slot >= options_.slots) return bad("has a state slot that does not exist");
  if (s.count < 1 || s.first_position < 0) return bad("has no rows or a negative position");
  const int64_t end = int64_t{s.first_position} + s.count;
  if (end > options_.limits.context_max) return bad("goes beyond the context limit");
  if (s.first_token < 0 || static_cast<size_t>(s.first_token) + s.count > plan.tokens.size())
    return bad("names tokens that the plan does not hold");
  if (s.first_block < 0 || s.block_count < 0 || static_cast<size_t>(s.first_block) + s.block_count > plan.blocks.size())
    return bad("names pages that the plan does not hold");
  if (s.block_count < KvLayout::pages_for(end)) return bad("has too few pages for its tokens");
  for (int i = 0; i < s.block_count; ++i) {
    if (plan.blocks[s.first_block + i] < 0 || plan.blocks[s.first_block + i] >= options_.pages)
      return bad("has a page that does not exist");
  }
  if (s.decoder_begin < 0 || s.window_begin < 0 || s.window_begin > s.first_position)
    return bad("has a window that begins after its first row");
  if (s.exact_begin < 0 || s.exact_begin > s.decoder_begin) return bad("has decoder rows that run for windows alone");
  if (s.cached < 0 || s.cached % ops::kPageTokens != 0) return bad("has a cached length that is not whole pages");
  if (s.outputs < 0 || s.outputs > s.count || (s.outputs > 0 && end - s.outputs < s.decoder_begin))
    return bad("wants logits of rows that the decoder half does not run");
  return {};
}

Status BatchBuilder::check(const StepPlan& plan) {
  if (plan.sequences.empty()) return make_error(Code::kInvalidArgument, "step plan: it has no sequence");
  const ops::Limits& l = options_.limits;
  if (static_cast<int64_t>(plan.sequences.size()) > l.sequences_max ||
      static_cast<int64_t>(plan.tokens.size()) > l.rows_max) {
    return make_error(Code::kInvalidArgument, "step plan: {} rows of {} sequences are over the limits of {} and {}",
                      plan.tokens.size(), plan.sequences.size(), l.rows_max, l.sequences_max);
  }
  const size_t back = config_.engram.empty() ? 0 : config_.engram_max_ngram_size - 1;
  if (plan.history.size() != plan.sequences.size() * back)
    return make_error(Code::kInvalidArgument, "step plan: history must hold {} tokens a sequence", back);
  if (!plan.image_rows.empty() && plan.image_rows.size() != plan.tokens.size())
    return make_error(Code::kInvalidArgument, "step plan: image_rows must hold an entry a token");
  for (int32_t r : plan.image_rows) {
    if (r >= l.image_rows_max) return make_error(Code::kInvalidArgument, "step plan: image row {} does not exist", r);
  }
  int64_t outputs = 0, rows = 0;
  slot_used_.assign(options_.slots, false);
  for (const StepSequence& s : plan.sequences) {
    DI_RETURN_IF_ERROR(check_sequence(plan, s));
    if (slot_used_[s.slot])
      return make_error(Code::kInvalidArgument, "step plan: two sequences use state slot {}", s.slot);
    slot_used_[s.slot] = true;
    outputs += s.outputs;
    rows += s.count;
  }
  if (rows > l.rows_max || outputs > std::max(l.outputs_max, l.sequences_max)) {
    return make_error(Code::kInvalidArgument,
                      "step plan: {} rows and {} rows of logits are over the limits of {} and {}", rows, outputs,
                      l.rows_max, l.outputs_max);
  }
  return {};
}

// Of a sequence's first rows, how many have no place in the layer; one row always stays.
int32_t BatchBuilder::left_out(const ops::SequenceRows& rows, int32_t exact_begin, int layer) const {
  if (!drops_rows_ || exact_begin == 0) return 0;
  const auto window = static_cast<int32_t>(config_.sliding_window);
  const auto later = static_cast<int32_t>(config_.decoder_start) - 1 - layer;
  return std::clamp(exact_begin - window - later * (window - 1) - rows.first_position, 0, rows.rows - 1);
}

bool BatchBuilder::narrow(int layer) {
  bool any = false;
  for (size_t k = 0; k < narrowed_.size(); ++k) any = any || left_out(narrowed_[k], exact_begin_[k], layer) > 0;
  if (!any) return false;
  narrowed_source_.clear();
  for (size_t k = 0; k < narrowed_.size(); ++k) {
    ops::SequenceRows& rows = narrowed_[k];
    const int32_t out = left_out(rows, exact_begin_[k], layer), first = rows.first_row + out;
    rows.first_row = static_cast<int32_t>(narrowed_source_.size());
    rows.rows -= out;
    rows.first_position += out;
    if (out > 0) rows.window_begin = rows.first_position;  // what the ring holds below is not this layer's
    for (int32_t i = 0; i < rows.rows; ++i) narrowed_source_.push_back(first + i);
  }
  return true;
}

Status BatchBuilder::build(const StepPlan& plan) {
  DI_RETURN_IF_ERROR(check(plan));
  encoder_.clear();
  decoder_.clear();
  exact_begin_.clear();
  narrows_ = false;
  int32_t left = 0;  // rows of the sequences before that the last encoder layer still has
  encoder_.blocks = plan.blocks;
  decoder_.blocks = plan.blocks;
  encoder_.history = plan.history;
  for (const StepSequence& s : plan.sequences) {
    ops::SequenceRows rows;
    rows.slot = s.slot;
    rows.first_row = static_cast<int32_t>(encoder_.tokens.size());
    rows.rows = s.count;
    rows.first_position = s.first_position;
    rows.window_begin = s.window_begin;
    rows.cached = s.cached;
    rows.first_block = s.first_block;
    rows.block_count = s.block_count;
    const auto index = static_cast<int32_t>(encoder_.sequences.size());
    for (int32_t i = 0; i < s.count; ++i) {
      encoder_.tokens.push_back(plan.tokens[s.first_token + i]);
      encoder_.positions.push_back(s.first_position + i);
      encoder_.sequence.push_back(index);
      if (!plan.image_rows.empty()) encoder_.image_row.push_back(plan.image_rows[s.first_token + i]);
    }
    encoder_.sequences.push_back(rows);
    exact_begin_.push_back(s.exact_begin);
    const int32_t out = left_out(rows, s.exact_begin, static_cast<int>(config_.decoder_start) - 1), before = left;
    left += s.count - out;
    narrows_ = narrows_ || out > 0;

    const int32_t skipped = std::clamp(s.decoder_begin - s.first_position, 0, s.count);
    if (skipped == s.count) continue;
    ops::SequenceRows tail = rows;
    tail.first_row = static_cast<int32_t>(decoder_.tokens.size());
    tail.rows = s.count - skipped;
    tail.first_position = s.first_position + skipped;
    tail.window_begin = s.decoder_begin;
    const auto tail_index = static_cast<int32_t>(decoder_.sequences.size());
    for (int32_t i = skipped; i < s.count; ++i) {
      if (i >= s.count - s.outputs) decoder_.outputs.push_back(static_cast<int32_t>(decoder_.tokens.size()));
      decoder_.source.push_back(before + i - out);
      decoder_.tokens.push_back(plan.tokens[s.first_token + i]);
      decoder_.positions.push_back(s.first_position + i);
      decoder_.sequence.push_back(tail_index);
      if (!plan.image_rows.empty()) decoder_.image_row.push_back(plan.image_rows[s.first_token + i]);
    }
    decoder_.sequences.push_back(tail);
  }
  narrowed_ = encoder_.sequences;
  return {};
}

Status BatchBuilder::build_draft(const DraftPlan& plan) {
  const ops::Limits& l = options_.limits;
  const int64_t drafts_max =
      l.drafts_max > 0 ? std::min<int64_t>(l.drafts_max, config_.dspark_block_size) : config_.dspark_block_size;
  if (!config_.has_drafter()) return make_error(Code::kUnsupported, "this model has no drafter");
  if (plan.drafts < 1 || plan.drafts > drafts_max)
    return make_error(Code::kInvalidArgument, "draft plan: {} drafts; this model makes 1 to {}", plan.drafts,
                      drafts_max);
  if (plan.sequences.empty() || static_cast<int>(plan.sequences.size()) > l.sequences_max) {
    return make_error(Code::kInvalidArgument, "draft plan: {} sequences; the limit is {}", plan.sequences.size(),
                      l.sequences_max);
  }
  draft_.clear();
  for (const DraftSequence& s : plan.sequences) {
    if (s.slot < 0 || s.slot >= options_.slots || s.position < s.decoder_begin || s.decoder_begin < 0) {
      return make_error(Code::kInvalidArgument,
                        "draft plan: sequence {} has a slot that does not exist or no committed decoder row", s.id);
    }
    ops::SequenceRows rows;
    rows.slot = s.slot;
    rows.first_row = static_cast<int32_t>(draft_.tokens.size());
    rows.rows = plan.drafts;
    rows.first_position = s.position + 1;
    rows.window_begin = s.decoder_begin;
    for (int32_t i = 0; i < plan.drafts; ++i) {
      draft_.tokens.push_back(i == 0 ? s.token : static_cast<int32_t>(config_.dspark_noise_token_id));
      draft_.positions.push_back(s.position + 1 + i);
      draft_.sequence.push_back(static_cast<int32_t>(draft_.sequences.size()));
    }
    draft_.sequences.push_back(rows);
  }
  return {};
}

}  // namespace deepinfer::model
