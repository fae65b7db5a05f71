#include "model/sequence.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/config.h"

namespace deepinfer::model {

using ops::KvLayout;
using ops::Role;

Result<Sequence> Sequence::create(Model& model, KvAllocator& kv, int32_t decoder_begin) {
  Sequence s(model, kv);
  DI_ASSIGN_OR_RETURN(s.slot_, kv.take_slot());
  s.decoder_begin_ = decoder_begin;
  return s;
}

Sequence::Sequence(Sequence&& o) noexcept
    : model_(o.model_),
      kv_(o.kv_),
      slot_(std::exchange(o.slot_, -1)),
      decoder_begin_(o.decoder_begin_),
      window_begin_(o.window_begin_),
      cached_(o.cached_),
      tokens_(std::move(o.tokens_)),
      blocks_(std::exchange(o.blocks_, {})),
      plan_(std::move(o.plan_)),
      values_(std::move(o.values_)) {}

Sequence::~Sequence() {
  if (slot_ < 0) return;
  for (int32_t b : blocks_) kv_->release_page(b);
  kv_->release_slot(slot_);
}

Result<Sequence> Sequence::with_cached_prefix(const Sequence& source, int32_t hit, int32_t start,
                                              int32_t decoder_begin) {
  if (hit % ops::kPageTokens != 0 || hit > source.size() || start < 0 || start > hit) {
    return make_error(Code::kInvalidArgument,
                      "a cached prefix of {} tokens replayed from {} is not possible in a sequence of {}", hit, start,
                      source.size());
  }
  DI_ASSIGN_OR_RETURN(Sequence s, create(*source.model_, *source.kv_, decoder_begin));
  s.cached_ = hit;
  s.window_begin_ = start;
  s.tokens_.assign(source.tokens_.begin(), source.tokens_.begin() + start);
  s.blocks_.assign(source.blocks_.begin(), source.blocks_.begin() + KvLayout::pages_for(hit));
  for (int32_t b : s.blocks_) s.kv_->share_page(b);
  return s;
}

Status Sequence::add_rows(StepPlan& plan, std::span<const int32_t> tokens, int32_t outputs,
                          std::span<const int32_t> image_rows) {
  const int32_t end = size() + static_cast<int32_t>(tokens.size());
  while (static_cast<int>(blocks_.size()) < KvLayout::pages_for(end)) {
    DI_ASSIGN_OR_RETURN(const int page, kv_->take_page());
    blocks_.push_back(page);
  }
  const checkpoint::ModelConfig& c = model_->config();
  std::array<int32_t, 16> history;
  const int back =
      c.engram.empty() ? 0 : static_cast<int>(std::min<int64_t>(c.engram_max_ngram_size - 1, history.size()));
  for (int k = 0; k < back; ++k) history[k] = size() - 1 - k >= 0 ? tokens_[size() - 1 - k] : ops::kNoToken;
  StepSequence s;
  s.slot = slot_;
  s.first_position = size();
  s.kind = tokens.size() == 1 ? RowKind::kDecode : RowKind::kPrefill;
  s.decoder_begin = decoder_begin_;
  s.window_begin = window_begin_;
  s.cached = cached_;
  s.outputs = outputs;
  plan.add_sequence(s, tokens, std::span<const int32_t>(history.data(), back), blocks_, image_rows);
  return {};
}

void Sequence::commit_rows(std::span<const int32_t> tokens, std::span<const int32_t> image_rows) {
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens_.push_back(!image_rows.empty() && image_rows[i] >= 0 ? ops::kNoToken : tokens[i]);
}

Status Sequence::append(std::span<const int32_t> tokens, int32_t outputs, std::vector<float>* logits,
                        std::span<const int32_t> image_rows) {
  const int64_t vocabulary = model_->config().vocab_size;
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t first_output = total - outputs, rows_max = model_->limits().rows_max,
                outputs_max = model_->limits().outputs_max;
  if (logits != nullptr) logits->clear();
  for (int64_t at = 0; at < total;) {
    const int64_t before = std::max<int64_t>(0, first_output - at);  // rows of this step without logits
    const int64_t n = std::min({rows_max, total - at, before + outputs_max});
    const auto rows = static_cast<int32_t>(std::max<int64_t>(0, n - before));
    const std::span<const int32_t> part = tokens.subspan(at, n);
    const std::span<const int32_t> images = image_rows.empty() ? image_rows : image_rows.subspan(at, n);
    plan_.clear();
    DI_RETURN_IF_ERROR(add_rows(plan_, part, rows, images));
    DI_RETURN_IF_ERROR(model_->forward(plan_));
    DI_RETURN_IF_ERROR(model_->ops().synchronize());
    commit_rows(part, images);
    if (rows > 0) {
      const ops::Buffer buffer = model_->ops().buffer(Role::kLogits);
      if (model_->ops().capabilities().host_memory && buffer.element == ops::Element::kFloat) {
        const auto* values = static_cast<const float*>(buffer.data);
        logits->insert(logits->end(), values, values + rows * vocabulary);
      } else {
        values_.resize(rows * vocabulary);
        DI_RETURN_IF_ERROR(model_->ops().read(Role::kLogits, 0, rows, values_));
        logits->insert(logits->end(), values_.begin(), values_.end());
      }
    }
    at += n;
  }
  return {};
}

Result<Draft> Sequence::draft(int32_t next_token, int32_t drafts, bool with_logits) {
  const int64_t vocabulary = model_->config().vocab_size;
  Draft out;
  DraftPlan plan;
  plan.drafts = drafts;
  plan.sequences.push_back(
      {.slot = slot_, .position = size() - 1, .decoder_begin = decoder_begin_, .token = next_token});
  ops::Ops& ops = model_->ops();
  const DraftChooser greedy = model_->greedy_chooser();
  DI_RETURN_IF_ERROR(model_->draft(plan, [&](int index) -> Status {
    if (with_logits) {
      values_.resize(vocabulary);
      DI_RETURN_IF_ERROR(ops.read(Role::kLogits, 0, 1, values_));
      out.logits.insert(out.logits.end(), values_.begin(), values_.end());
    }
    return greedy(index);
  }));
  values_.resize(ops.buffer(Role::kDraftTokens).cols);
  DI_RETURN_IF_ERROR(ops.read(Role::kDraftTokens, 0, 1, values_));
  for (int32_t i = 0; i < drafts; ++i) out.tokens.push_back(static_cast<int32_t>(values_[i + 1]));
  values_.resize(ops.buffer(Role::kConfidence).cols);
  DI_RETURN_IF_ERROR(ops.read(Role::kConfidence, 0, 1, values_));
  out.confidence.assign(values_.begin(), values_.begin() + drafts);
  DI_RETURN_IF_ERROR(ops.synchronize());
  return out;
}

void Sequence::truncate(int32_t length) {
  if (length >= size()) return;
  tokens_.resize(length);
  const auto pages = static_cast<size_t>(KvLayout::pages_for(length));
  while (blocks_.size() > pages && blocks_.size() > static_cast<size_t>(KvLayout::pages_for(cached_))) {
    kv_->release_page(blocks_.back());
    blocks_.pop_back();
  }
}

}  // namespace deepinfer::model
