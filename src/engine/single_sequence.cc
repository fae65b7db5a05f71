#include "engine/single_sequence.h"

#include <algorithm>

#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "ops/kv_layout.h"

namespace deepinfer::engine {
namespace {

Status check_memory(const checkpoint::ModelConfig& config, const ops::Ops& ops, const model::Options& options) {
  const ops::KvLayout layout = ops::KvLayout::make(config, ops.capabilities().kv_format, options.rings);
  const uint64_t kv = uint64_t{layout.page_stride} * static_cast<uint64_t>(options.pages) +
                      uint64_t{layout.slot_stride} * static_cast<uint64_t>(options.slots);
  const uint64_t work = ops.workspace_bytes(config, options.limits);
  const MemoryRoom room = available_memory();
  if (kv + work <= room.bytes) return Status();
  return make_error(Code::kResourceExhausted,
                    "A context of {} tokens needs {} of memory ({} for KV, {} for work), but only {} are {}. Ask for "
                    "less with --context.",
                    options.limits.context_max, format_bytes(kv + work), format_bytes(kv), format_bytes(work),
                    format_bytes(room.bytes), room.limited_by);
}

}  // namespace

Result<std::unique_ptr<SingleSequence>> SingleSequence::create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                               std::unique_ptr<ops::Ops> ops, int64_t context) {
  const checkpoint::ModelConfig& config = checkpoint->config();
  if (context < 1 || context > config.max_position_embeddings) {
    return make_error(Code::kInvalidArgument, "A context of {} tokens is not possible: this model has 1 to {}.",
                      context, config.max_position_embeddings);
  }
  model::Options options;
  options.limits.rows_max = kRowsMax;
  options.limits.context_max = static_cast<int>(context);
  options.limits.outputs_max = 1;
  options.pages = ops::KvLayout::pages_for(context);
  options.rings.backtrack = kBacktrack;
  DI_RETURN_IF_ERROR(check_memory(config, *ops, options));
  std::unique_ptr<SingleSequence> self(new SingleSequence);
  self->context_ = context;
  self->kv_ = std::make_unique<model::KvAllocator>(options.pages, options.slots);
  DI_ASSIGN_OR_RETURN(self->model_, model::Model::create(std::move(checkpoint), std::move(ops), options));
  return self;
}

SingleSequence::SingleSequence() = default;
SingleSequence::~SingleSequence() = default;

int64_t SingleSequence::vocab_size() const { return model_->config().vocab_size; }

int64_t SingleSequence::keep() const { return model_->config().sliding_window + kBacktrack; }

Status SingleSequence::forward(std::span<const int32_t> tokens, int64_t position, int64_t decoder_begin,
                               std::span<float> logits) {
  if (position == 0) {
    sequence_.reset();
    DI_ASSIGN_OR_RETURN(model::Sequence fresh,
                        model::Sequence::create(*model_, *kv_, static_cast<int32_t>(decoder_begin)));
    sequence_.emplace(std::move(fresh));
  }
  if (!sequence_ || sequence_->size() != position) {
    return Status(Code::kInternal, "A forward has to go on where the last one ended.");
  }
  if (logits.empty()) return sequence_->append(tokens, 0, nullptr);
  DI_RETURN_IF_ERROR(sequence_->append(tokens, 1, &row_));
  std::copy(row_.begin(), row_.end(), logits.begin());
  return Status();
}

}  // namespace deepinfer::engine
