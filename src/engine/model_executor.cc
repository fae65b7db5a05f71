#include "engine/model_executor.h"

#include <algorithm>

#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/store/weight_store.h"
#include "engine/step_loads.h"
#include "engine/weights.h"
#include "ops/cuda_backend.h"
#include "ops/kv_layout.h"

namespace deepinfer::engine {
namespace {

using sched::MemoryOp;

constexpr int kOutputsMin = 64;

Result<model::Options> model_options(const checkpoint::ModelConfig& config, const ModelExecutorOptions& o) {
  if (o.context_max < 2 || o.context_max > config.max_position_embeddings) {
    return make_error(Code::kInvalidArgument, "A context of {} tokens is not possible: this model has 2 to {}.",
                      o.context_max, config.max_position_embeddings);
  }
  if (o.sequences_max < 1 || o.sequences_max > 4096) {
    return make_error(Code::kInvalidArgument, "{} sequences at once are not possible; it must be 1 to 4096.",
                      o.sequences_max);
  }
  if (o.rows_max < o.sequences_max) {
    return make_error(Code::kInvalidArgument, "A step of {} rows cannot hold a row of each of {} sequences.",
                      o.rows_max, o.sequences_max);
  }
  model::Options m;
  m.limits.rows_max = o.rows_max;
  m.limits.sequences_max = o.sequences_max;
  m.limits.outputs_max = std::max(o.sequences_max, o.outputs_max > 0 ? o.outputs_max : kOutputsMin);
  if (o.drafts_max > 0 && config.has_drafter()) {
    m.limits.outputs_max = std::max(m.limits.outputs_max, std::min(o.rows_max, o.sequences_max * (1 + o.drafts_max)));
  }
  m.limits.context_max = static_cast<int>(o.context_max);
  const int whole = ops::KvLayout::pages_for(o.context_max);
  m.pages = o.blocks > 0 ? o.blocks : whole + o.sequences_max * std::max(1, whole / 8);
  m.slots = o.sequences_max;
  m.rings.backtrack = ModelExecutor::kBacktrack;
  // Behind a prompt of any length the ring still holds the windows at the last border that is KEEP tokens back.
  if (o.snapshots) m.rings.history = static_cast<int>(config.sliding_window) + ops::kPageTokens;
  return m;
}

struct Needs {
  uint64_t kv = 0, work = 0;
};

Needs memory_needs(const checkpoint::ModelConfig& config, const ops::Ops& ops, const model::Options& options) {
  const ops::KvLayout layout = ops::KvLayout::make(config, ops.capabilities().kv_format, options.rings);
  return {uint64_t{layout.page_stride} * static_cast<uint64_t>(options.pages) +
              uint64_t{layout.slot_stride} * static_cast<uint64_t>(options.slots),
          ops.workspace_bytes(config, options.limits)};
}

Status check_memory(const Needs& needs, const model::Options& options) {
  const auto [kv, work] = needs;
  const MemoryRoom room = available_memory();
  if (kv + work <= room.bytes) return Status();
  return make_error(Code::kResourceExhausted,
                    "{} KV blocks and {} sequences at once need {} of memory ({} for KV, {} for work), but only {} are "
                    "{}. Allow less context (--context) or fewer sequences.",
                    options.pages, options.slots, format_bytes(kv + work), format_bytes(kv), format_bytes(work),
                    format_bytes(room.bytes), room.limited_by);
}

}  // namespace

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                             std::unique_ptr<ops::Ops> ops,
                                                             const ModelExecutorOptions& options) {
  const checkpoint::ModelConfig& config = checkpoint->config();
  DI_ASSIGN_OR_RETURN(model::Options m, model_options(config, options));
  std::unique_ptr<ModelExecutor> self(new ModelExecutor);
  self->info_.checkpoint = checkpoint->digest();  // before the store forgets what opening and this have touched
  if (ops->capabilities().host_memory) {
    const Needs needs = memory_needs(config, *ops, m);
    DI_RETURN_IF_ERROR(check_memory(needs, m));
    DI_ASSIGN_OR_RETURN(self->weights_, open_weights(*checkpoint, *ops, options.ram_bytes, needs.kv + needs.work));
    m.store = self->weights_;
  } else if (options.ram_bytes > 0) {
    DI_ASSIGN_OR_RETURN(self->weights_, open_weights(*checkpoint, *ops, options.ram_bytes, 0));
    m.store = self->weights_;
  }
  m.count_experts = options.count_work;
  if (options.count_work) self->counter_ = std::make_unique<const model::WorkCounter>(config);
  DI_ASSIGN_OR_RETURN(self->model_, model::Model::create(checkpoint, std::move(ops), m));
  const ops::KvLayout& layout = self->model_->kv_layout();
  const ops::Capabilities& capabilities = self->model_->ops().capabilities();
  ExecutorInfo& i = self->info_;
  i.vocab_size = static_cast<int>(config.vocab_size);
  i.context_max = m.limits.context_max;
  i.rows_max = m.limits.rows_max;
  i.sequences_max = m.limits.sequences_max;
  i.outputs_max = m.limits.outputs_max;
  i.blocks = m.pages;
  i.slots = m.slots;
  i.block_bytes = layout.page_bytes;
  i.slot_bytes = layout.slot_bytes;
  i.window = static_cast<int>(config.sliding_window);
  i.encoder_layers = config.decoder_start;
  i.windows_bytes = options.snapshots ? static_cast<size_t>(i.encoder_layers) * static_cast<size_t>(i.window - 1) *
                                            layout.window_bytes
                                      : 0;
  i.ring_slots = layout.window_slots;
  i.backtrack = layout.backtrack;
  i.history_tokens = config.engram.empty() ? 0 : static_cast<int>(config.engram_max_ngram_size) - 1;
  i.layout = fmt::format("v41-page{}-{}", ops::kPageTokens, layout.page_bytes);
  i.kv_dtype = layout.format.records == ops::KvFormat::Records::kPacked ? "packed" : "raw";
  i.peak_flops = options.peak_flops;
  i.loads_beside = capabilities.host_memory;
  i.leaves_cores = !capabilities.host_memory;
  i.numeric_class = capabilities.numeric_class;
  i.placement = ops::cuda_placement(self->model_->ops());
  if (config.has_drafter()) i.drafts_max = std::min(options.drafts_max, static_cast<int>(config.dspark_block_size));
  return self;
}

std::optional<checkpoint::StoreStats> ModelExecutor::weight_stats() const {
  return weights_ != nullptr ? std::optional(weights_->stats()) : std::nullopt;
}

std::optional<WorkStats> ModelExecutor::work_stats() const {
  if (counter_ == nullptr) return std::nullopt;
  const model::ExpertLoad load = model_->expert_load();
  return WorkStats{{linear_, attention_, index_}, load.busiest, load.mean};
}

std::byte* ModelExecutor::page(int id) const {
  return model_->kv_memory().pages + static_cast<size_t>(id) * model_->kv_layout().page_stride;
}

std::byte* ModelExecutor::slot(int id) const {
  return model_->kv_memory().slots + static_cast<size_t>(id) * model_->kv_layout().slot_stride;
}

// Rows [border - (window - 1), border) of every encoder layer's ring, layer by layer, oldest row first.
Status ModelExecutor::copy_windows(const MemoryOp& op, std::span<std::byte> bytes) {
  const ops::KvLayout& layout = model_->kv_layout();
  const bool save = op.kind == MemoryOp::Kind::kSaveWindows;
  const int rows = info_.window - 1, ring = layout.window_slots;
  if (bytes.size() < info_.windows_bytes || op.border < rows) {
    return make_error(Code::kInternal, "A snapshot at row {} does not fit its {} bytes.", op.border, bytes.size());
  }
  std::byte* const base = slot(save ? op.from : op.to);
  for (int layer = 0; layer < info_.encoder_layers; ++layer) {
    for (int done = 0; done < rows;) {
      const int at = (op.border - rows + done) % ring, n = std::min(rows - done, ring - at);
      std::byte* const device = base + layout.window_offsets[layer] + static_cast<size_t>(at) * layout.window_bytes;
      const size_t first = (static_cast<size_t>(layer) * rows + static_cast<size_t>(done)) * layout.window_bytes;
      const std::span<std::byte> part = bytes.subspan(first, static_cast<size_t>(n) * layout.window_bytes);
      DI_RETURN_IF_ERROR(save ? model_->ops().kv_read(device, part) : model_->ops().kv_write(device, part));
      done += n;
    }
  }
  return Status();
}

Status ModelExecutor::copy_one(const MemoryOp& op, kv::HostStore& host) {
  ops::Ops& ops = model_->ops();
  const ops::KvLayout& layout = model_->kv_layout();
  const auto part = [&](size_t bytes) { return host.buffer(op.host).subspan(static_cast<size_t>(op.offset), bytes); };
  switch (op.kind) {
    case MemoryOp::Kind::kCopyBlock:
      ops.kv_copy(page(op.to), page(op.from), layout.page_bytes);
      return Status();
    case MemoryOp::Kind::kCopySlot:
      ops.kv_copy(slot(op.to), slot(op.from), layout.slot_bytes);
      return Status();
    case MemoryOp::Kind::kSaveWindows:
    case MemoryOp::Kind::kLoadWindows:
      return copy_windows(op, host.buffer(op.host));
    case MemoryOp::Kind::kSaveSlot:
      return ops.kv_read(slot(op.from), part(layout.slot_bytes));
    case MemoryOp::Kind::kLoadSlot:
      return ops.kv_write(slot(op.to), part(layout.slot_bytes));
    case MemoryOp::Kind::kSaveBlock:
      return ops.kv_read(page(op.from), part(layout.page_bytes));
    case MemoryOp::Kind::kLoadBlock: {
      const auto bytes = host.part(op.host, static_cast<size_t>(op.offset), layout.page_bytes);
      if (bytes.size() != layout.page_bytes) return Status(Code::kInternal, "A plan loads a block that is not there.");
      return ops.kv_write(page(op.to), bytes);
    }
    case MemoryOp::Kind::kSeal:
      host.seal(op.host);
      return Status();
  }
  return Status(Code::kInternal, "A plan holds a copy of an unknown kind.");
}

Status ModelExecutor::copy(std::span<const MemoryOp> ops, kv::HostStore& host) {
  if (ops.empty()) return Status();
  DI_RETURN_IF_ERROR(model_->ops().synchronize());
  for (const MemoryOp& op : ops) DI_RETURN_IF_ERROR(copy_one(op, host));
  return Status();
}

void ModelExecutor::count_work(const model::StepPlan& plan) {
  if (counter_ == nullptr) return;
  model::Work done = {linear_, attention_, index_};
  for (const model::StepSequence& s : plan.sequences) done += counter_->of(s);
  linear_ = done.linear;
  attention_ = done.attention;
  index_ = done.index;
}

Status ModelExecutor::forward(const model::StepPlan& plan) {
  count_work(plan);
  return model_->forward(plan);
}

// One source's part of every page.
Status ModelExecutor::place(const StepLoads& loads, size_t source) {
  const ops::KvLayout& layout = model_->kv_layout();
  const size_t begin = source == 0 ? 0 : layout.sources[source].key_offset;
  const size_t end = source + 1 < layout.sources.size() ? layout.sources[source + 1].key_offset : layout.page_bytes;
  for (const StepLoads::Page& p : loads.pages())
    DI_RETURN_IF_ERROR(model_->ops().kv_write(page(p.block) + begin, p.bytes.subspan(begin, end - begin)));
  return Status();
}

Status ModelExecutor::forward_loading(const model::StepPlan& plan, StepLoads& loads) {
  count_work(plan);
  const ops::KvLayout& layout = model_->kv_layout();
  size_t placed = 0;
  Status written;
  const auto place_to = [&](size_t sources) {
    for (; placed < sources; ++placed) {
      if (loads.wait() && written.ok()) written = place(loads, placed);
    }
  };
  const Status status =
      model_->forward(plan, [&](int layer) { place_to(static_cast<size_t>(layout.source_at(layer)) + 1); });
  place_to(layout.sources.size());
  return status.ok() ? written : status;
}

Status ModelExecutor::draft(const model::DraftPlan& plan, const DraftChooser& choose, std::span<int32_t> tokens,
                            std::span<float> confidence) {
  ops::Ops& ops = model_->ops();
  const auto n = static_cast<int>(plan.sequences.size());
  const auto drafts = static_cast<size_t>(plan.drafts);
  const model::DraftChooser likeliest = model_->greedy_chooser();
  chosen_.resize(static_cast<size_t>(n));
  const int64_t cols = ops.buffer(ops::Role::kDraftTokens).cols;
  const auto own = [&](int index) -> Status {
    DI_ASSIGN_OR_RETURN(const std::span<const float> rows, logits(n));
    DI_RETURN_IF_ERROR(choose(index, rows, chosen_));
    if (ops.capabilities().host_memory) {
      auto* out = static_cast<int32_t*>(ops.buffer(ops::Role::kDraftTokens).data) + index + 1;
      for (int s = 0; s < n; ++s) out[s * cols] = chosen_[static_cast<size_t>(s)];
      return Status();
    }
    values_.resize(static_cast<size_t>(n * cols));
    DI_RETURN_IF_ERROR(ops.read(ops::Role::kDraftTokens, 0, n, values_));
    for (int s = 0; s < n; ++s) values_[static_cast<size_t>(s * cols + index + 1)] = chosen_[static_cast<size_t>(s)];
    return ops.write(ops::Role::kDraftTokens, 0, n, values_);
  };
  DI_RETURN_IF_ERROR(model_->draft(plan, choose ? model::DraftChooser(own) : likeliest));
  values_.resize(static_cast<size_t>(n * cols));
  DI_RETURN_IF_ERROR(ops.read(ops::Role::kDraftTokens, 0, n, values_));
  for (size_t s = 0; s < static_cast<size_t>(n); ++s) {
    for (size_t j = 0; j < drafts; ++j)
      tokens[s * drafts + j] = static_cast<int32_t>(values_[s * static_cast<size_t>(cols) + j + 1]);
  }
  const auto judged = static_cast<size_t>(ops.buffer(ops::Role::kConfidence).cols);
  values_.resize(static_cast<size_t>(n) * judged);
  DI_RETURN_IF_ERROR(ops.read(ops::Role::kConfidence, 0, n, values_));
  for (size_t s = 0; s < static_cast<size_t>(n); ++s) {
    for (size_t j = 0; j < drafts; ++j) confidence[s * drafts + j] = static_cast<float>(values_[s * judged + j]);
  }
  return Status();
}

Result<std::span<const float>> ModelExecutor::logits(int rows) {
  ops::Ops& ops = model_->ops();
  DI_RETURN_IF_ERROR(ops.synchronize());
  const ops::Buffer buffer = ops.buffer(ops::Role::kLogits);
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(info_.vocab_size);
  if (buffer.element != ops::Element::kFloat || buffer.cols != info_.vocab_size) {
    return Status(Code::kInternal, "The backend's logits are not fp32 rows of the vocabulary.");
  }
  if (ops.capabilities().host_memory) return std::span<const float>(static_cast<const float*>(buffer.data), count);
  host_logits_.resize(std::max(host_logits_.size(), count));
  DI_RETURN_IF_ERROR(ops.kv_read(static_cast<const std::byte*>(buffer.data),
                                 std::as_writable_bytes(std::span<float>(host_logits_).first(count))));
  return std::span<const float>(host_logits_).first(count);
}

}  // namespace deepinfer::engine
