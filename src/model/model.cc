#include "model/model.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "model/batch.h"
#include "model/weights.h"

namespace deepinfer::model {

using checkpoint::LayerInfo;
using ops::At;
using ops::Rows;
using ops::Sublayer;

namespace {

// Kinds of ops::GraphKey.
constexpr uint8_t kForwardGraph = 0;
constexpr uint8_t kPlainForwardGraph = 1;  // the drafter's rings are left alone
constexpr uint8_t kDraftGraph = 2;
constexpr uint8_t kDraftStepGraph = 3;  // + draft position

}  // namespace

struct Model::Impl {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::unique_ptr<ops::Ops> ops;
  Options options;
  ops::KvLayout layout;
  ops::KvMemory memory;
  std::unique_ptr<BatchBuilder> batch;
  Observer observer;
  const GlobalGate* gate = nullptr;  // of the forward in work
  std::vector<int32_t> expert_rows;  // [experts], of a layer; empty: not counted
  std::atomic<double> busiest_rows{0}, mean_rows{0};

  const checkpoint::ModelConfig& config() const { return checkpoint->config(); }
  int layers() const { return static_cast<int>(config().num_hidden_layers); }
  void note(int layer, Stage stage, Rows rows) const {
    if (observer) observer(layer, stage, rows);
  }

  void attention(At at, bool compress) const;
  void feed_forward(At at);
  void count_experts(At at);
  void leave_and_enter(At leave, Sublayer left, At enter, Sublayer entered) const;
  struct StepForm {
    bool all_rows_decode = false, any_row_decodes = false, feeds_drafter = false;
  };
  void run_layers(int first, int last, Rows rows, bool compress_first, bool taps);
  void step(const StepForm& form);
  void draft_block();
};

void Model::Impl::leave_and_enter(At leave, Sublayer left, At enter, Sublayer entered) const {
  if (!observer) return ops->hc_leave_enter(leave, left, enter, entered);
  ops->hc_leave(leave, left);
  if (left == Sublayer::kFfn) note(leave.layer, Stage::kBlock, leave.rows);
  ops->hc_enter(enter, entered);
}

// kSublayerIn -> kSublayerOut. compress: this call also writes the layer's global KV.
void Model::Impl::attention(At at, bool compress) const {
  const bool draft = at.rows == Rows::kDraft;
  const LayerInfo* layer = draft ? nullptr : &config().layers[at.layer];
  uint32_t parts = ops::kProjectQueries | ops::kProjectWindow;
  if (!draft && layer->owns_index()) parts |= ops::kProjectIndexQueries;
  if (compress) parts |= ops::kProjectCompressor;
  ops->attention_project(at, parts);
  note(at.layer, Stage::kProjected, at.rows);
  if (compress) {
    ops->write_global(at);
    note(at.layer, Stage::kGlobal, at.rows);
  }
  if (gate != nullptr && !draft && layer->owns_kv()) (*gate)(at.layer);
  if (!draft && layer->owns_index()) {
    ops->select(at);
    note(at.layer, Stage::kSelected, at.rows);
  }
  ops->attend(at);
  note(at.layer, Stage::kHeads, at.rows);
  if (!draft) ops->store_window(at);
  ops->attention_output(at);
  note(at.layer, Stage::kAttentionOut, at.rows);
}

void Model::Impl::feed_forward(At at) {
  note(at.layer, Stage::kMoeIn, at.rows);
  ops->route(at);
  note(at.layer, Stage::kRouted, at.rows);
  if (!expert_rows.empty() && at.rows != Rows::kDraft) count_experts(at);
  ops->experts(at, ops->local_expert_rows(at));
  ops->shared_expert(at);
  ops->combine(at);
  note(at.layer, Stage::kMoeOut, at.rows);
}

void Model::Impl::count_experts(At at) {
  const ops::Buffer ids = ops->buffer(ops::Role::kExpertIds);
  const int rows = ops->row_count(at.rows), per_row = ops->experts_per_row(at.layer);
  std::ranges::fill(expert_rows, 0);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t* row = static_cast<const int32_t*>(ids.data) + r * ids.cols;
    for (int k = 0; k < per_row; ++k) {
      if (row[k] >= 0) ++expert_rows[static_cast<size_t>(row[k])];
    }
  }
  // One thread writes them.
  busiest_rows.store(busiest_rows.load(std::memory_order_relaxed) + *std::ranges::max_element(expert_rows),
                     std::memory_order_relaxed);
  mean_rows.store(mean_rows.load(std::memory_order_relaxed) +
                      static_cast<double>(rows) * per_row / static_cast<double>(expert_rows.size()),
                  std::memory_order_relaxed);
}

// Layers first .. last - 1 on one row set (5.1, 5.2). compress_first: layer `first` writes global KV although it is the
// decoder's.
void Model::Impl::run_layers(int first, int last, Rows rows, bool compress_first, bool taps) {
  bool entered = false;
  const bool narrows = rows == Rows::kEncoder && batch->narrows();
  for (int l = first; l < last; ++l) {
    const LayerInfo& layer = config().layers[l];
    const At at{l, rows};
    if (narrows && batch->narrow(l)) ops->drop_rows(batch->narrowed(), batch->narrowed_source());
    if (layer.engram >= 0) {
      ops->engram_apply(at);
      note(l, Stage::kEngram, rows);
    }
    if (taps && layer.dspark_tap >= 0) ops->tap(at, layer.dspark_tap);
    if (!entered) ops->hc_enter(at, Sublayer::kAttention);
    ops->expect_experts(at);
    attention(at, layer.owns_kv() && (!layer.decoder_half || compress_first));
    leave_and_enter(at, Sublayer::kAttention, at, Sublayer::kFfn);
    feed_forward(at);
    const LayerInfo* next = l + 1 < last ? &config().layers[l + 1] : nullptr;
    entered = next != nullptr && next->engram < 0 && !(taps && next->dspark_tap >= 0) && !narrows;
    if (entered) {
      leave_and_enter(at, Sublayer::kFfn, {l + 1, rows}, Sublayer::kAttention);
    } else {
      ops->hc_leave(at, Sublayer::kFfn);
      note(l, Stage::kBlock, rows);
    }
  }
}

void Model::Impl::step(const StepForm& form) {
  const int d = config().decoder_start;
  ops->embed(Rows::kEncoder);
  note(-1, Stage::kEmbedding, Rows::kEncoder);
  ops->engram_lookup(Rows::kEncoder);
  run_layers(0, d, Rows::kEncoder, false, form.feeds_drafter);
  // the decoder's global KV comes from all rows, everything else of it from the tail (15.3)
  if (!form.all_rows_decode) {
    const At at{d, Rows::kEncoder};
    ops->hc_collapse(at);
    ops->attention_project(at, ops::kProjectCompressor);
    ops->write_global(at);
    if (!form.any_row_decodes) return;
    ops->keep_decoder_rows();
  }
  run_layers(d, layers(), Rows::kDecoder, form.all_rows_decode, form.feeds_drafter);
  if (form.feeds_drafter) {
    note(-1, Stage::kTaps, Rows::kDecoder);
    ops->fill_draft_rings(Rows::kDecoder);
  }
  ops->head();
  note(-1, Stage::kHead, Rows::kDecoder);
}

void Model::Impl::draft_block() {
  ops->embed(Rows::kDraft);
  const int last = layers() + static_cast<int>(config().num_nextn_predict_layers);
  ops->hc_enter({layers(), Rows::kDraft}, Sublayer::kAttention);
  for (int l = layers(); l < last; ++l) {
    const At at{l, Rows::kDraft};
    attention(at, false);
    leave_and_enter(at, Sublayer::kAttention, at, Sublayer::kFfn);
    feed_forward(at);
    if (l + 1 < last) {
      leave_and_enter(at, Sublayer::kFfn, {l + 1, Rows::kDraft}, Sublayer::kAttention);
    } else {
      ops->hc_leave(at, Sublayer::kFfn);
      note(l, Stage::kBlock, Rows::kDraft);
    }
  }
  ops->draft_base();
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                             std::unique_ptr<ops::Ops> ops, const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->checkpoint = std::move(checkpoint);
  impl->ops = std::move(ops);
  impl->options = options;
  const checkpoint::ModelConfig& config = impl->config();
  ops::Limits& limits = impl->options.limits;
  if (limits.rows_max < 1 || limits.sequences_max < 1 || options.pages < 1 || options.slots < 1) {
    return make_error(Code::kInvalidArgument,
                      "a model needs room for at least one row, one sequence, one page and one state slot");
  }
  if (limits.context_max < 1 || limits.context_max > config.max_position_embeddings) {
    return make_error(Code::kInvalidArgument, "a context of {} positions is not possible; this model has at most {}",
                      limits.context_max, config.max_position_embeddings);
  }
  if (options.store != nullptr && !impl->ops->capabilities().offload) {
    return make_error(
        Code::kUnsupported,
        "backend {} keeps all weights in its memory and cannot read them from the SSD (--ram); use the CPU "
        "backend \"fast\"",
        impl->ops->capabilities().backend);
  }
  // A store checks what it reads. Larger mapped checkpoints are not read for this: `inspect --digest full` does it.
  constexpr uint64_t kCheckedBytes = 128 << 20;
  if (options.store == nullptr) DI_RETURN_IF_ERROR(impl->checkpoint->check_weights(kCheckedBytes));
  DI_RETURN_IF_ERROR(impl->ops->load(config, collect_weights(*impl->checkpoint, options.store), limits));
  impl->layout = ops::KvLayout::make(config, impl->ops->capabilities().kv_format, options.rings);
  DI_ASSIGN_OR_RETURN(impl->memory, impl->ops->allocate_kv(impl->layout, options.pages, options.slots));
  if (options.count_experts && impl->ops->capabilities().host_memory) {
    impl->expert_rows.resize(static_cast<size_t>(config.n_routed_experts));
  }
  impl->batch = std::make_unique<BatchBuilder>(config, impl->options, impl->ops->drops_rows());
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

const checkpoint::ModelConfig& Model::config() const { return impl_->config(); }
const ops::KvLayout& Model::kv_layout() const { return impl_->layout; }
const ops::KvMemory& Model::kv_memory() const { return impl_->memory; }
ops::Ops& Model::ops() { return *impl_->ops; }
const ops::Limits& Model::limits() const { return impl_->options.limits; }
ExpertLoad Model::expert_load() const { return {impl_->busiest_rows, impl_->mean_rows}; }
void Model::observe(Observer observer) { impl_->observer = std::move(observer); }

Status Model::forward(const StepPlan& plan, const GlobalGate& gate) {
  Impl& m = *impl_;
  DI_RETURN_IF_ERROR(m.batch->build(plan));
  const ops::RowBatch encoder = m.batch->encoder(), decoder = m.batch->decoder();
  DI_RETURN_IF_ERROR(m.ops->begin(Rows::kEncoder, encoder));
  DI_RETURN_IF_ERROR(m.ops->begin(Rows::kDecoder, decoder));
  const bool all = encoder.rows == decoder.rows;
  bool decode_only = true;
  for (const StepSequence& s : plan.sequences) decode_only = decode_only && s.kind != RowKind::kPrefill;
  // What is recorded holds for any plan of that many decode rows: which rows they are is in the arrays.
  const bool feeds = plan.feeds_drafter && m.config().has_drafter();
  const ops::GraphKey key{feeds ? kForwardGraph : kPlainForwardGraph, all && decode_only && !gate ? encoder.rows : 0};
  m.gate = gate ? &gate : nullptr;
  m.ops->run(key, [&m, form = Impl::StepForm{all, decoder.rows > 0, feeds}] { m.step(form); });
  m.gate = nullptr;
  return {};
}

Status Model::draft(const DraftPlan& plan, const DraftChooser& choose) {
  Impl& m = *impl_;
  DI_RETURN_IF_ERROR(m.batch->build_draft(plan));
  const ops::RowBatch draft = m.batch->draft();
  DI_RETURN_IF_ERROR(m.ops->begin(Rows::kDraft, draft));
  m.ops->run({kDraftGraph, draft.rows}, [&m] { m.draft_block(); });
  for (int i = 0; i < plan.drafts; ++i) {
    m.ops->run({static_cast<uint8_t>(kDraftStepGraph + i), static_cast<int32_t>(plan.sequences.size())},
               [&m, i] { m.ops->draft_logits(i); });
    DI_RETURN_IF_ERROR(choose(i));
  }
  return {};
}

DraftChooser Model::greedy_chooser() {
  return [this](int index) {
    impl_->ops->draft_argmax(index);
    return Status();
  };
}

}  // namespace deepinfer::model
