// The stages on the CPU, shared by the reference and the plain fp32 variant (internal to ops/cpu).
//
// T is the type of everything between two rounding points: double gives the numeric mode `exact` (or, without rounding,
// `off`), float the plain variant. bf16 values are held as float. The members of each file have one reason to change:
//   backend.cc (memory, row sets), hyper.cc (mHC), attention.cc, global.cc (compressor, keys), select.cc (indexer),
//   moe.cc, engram.cc (embedding, Engram), head.cc (head, drafter)
//
// Every loop over rows may run on any thread: bodies write only their own rows.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/config.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/panel.h"
#include "ops/cpu/scratch.h"
#include "ops/ops.h"
#include "ops/rope.h"

namespace deepinfer::ops::cpu {

// A row set, copied.
struct RowSet {
  int rows = 0;
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> blocks, tokens, positions, sequence, image_row, history, source, outputs;
  std::array<std::vector<float>, 2> cos, sin;  // [rows, rope / 2]; index 1: compressed

  bool image(int row) const { return !image_row.empty() && image_row[row] >= 0; }
  const SequenceRows& of(int row) const { return sequences[sequence[row]]; }
};

// 10.4: the share of an Engram value that is added, from its scaled dot product.
double engram_gate(double dot);

template <class T>
class Backend : public Ops {
 public:
  // rounding: false = numeric mode `off`.
  Backend(Capabilities capabilities, bool rounding, int threads, ThreadPool::Idle idle = ThreadPool::Idle::kSleep);

  const Capabilities& capabilities() const override { return capabilities_; }
  uint64_t workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const override;
  Status load(const checkpoint::ModelConfig& config, const ModelWeights& weights, const Limits& limits) override;
  Result<KvMemory> allocate_kv(const KvLayout& layout, int pages, int slots) override;
  void kv_copy(std::byte* to, const std::byte* from, size_t bytes) override;
  Status kv_read(const std::byte* from, std::span<std::byte> to) override;
  Status kv_write(std::byte* to, std::span<const std::byte> from) override;
  Buffer buffer(Role role) const override { return buffers_[static_cast<int>(role)]; }
  Status read(Role role, int64_t first_row, int64_t rows, std::span<double> values) override;
  Status write(Role role, int64_t first_row, int64_t rows, std::span<const double> values) override;
  Status begin(Rows set, const RowBatch& batch) override;
  Status synchronize() override;
  int row_count(Rows set) const override { return set_of(set).rows; }
  int experts_per_row(int layer) const override;

  void embed(Rows set) override;
  void engram_lookup(Rows set) override;
  void engram_apply(At at) override;
  void hc_enter(At at, Sublayer which) override;
  void hc_leave(At at, Sublayer which) override;
  void hc_collapse(At at) override;
  bool drops_rows() const override { return w_.store == nullptr; }  // a store's table rows are known by their places
  void drop_rows(std::span<const SequenceRows> sequences, std::span<const int32_t> source) override;
  void keep_decoder_rows() override;
  void attention_project(At at, uint32_t parts) override;
  void write_global(At at) override;
  void select(At at) override;
  void attend(At at) override;
  void store_window(At at) override;
  void attention_output(At at) override;
  void route(At at) override;
  void experts(At at, const ExpertRows& rows) override;
  void shared_expert(At at) override;
  void combine(At at) override;
  void tap(At at, int index) override;
  void head() override;
  void fill_draft_rings(Rows set) override;
  void draft_base() override;
  void draft_logits(int index) override;
  void draft_argmax(int index) override;

 protected:
  // A list of (row, column) pairs of ExpertRows that go through one expert, at most kExpertRows at a time.
  struct ExpertTask {
    int expert = 0;
    int first = 0, count = 0;  // in expert_order_
  };
  static constexpr int kExpertRows = 64;
  static constexpr int kRowChunk = 128;  // rows that share an expanded panel
  static constexpr int kMixRows = 16;    // rows that share the expanded fn of mHC, or a router

  // ---- buffers
  struct StageRows {
    int64_t quantised, stage;  // floats of quantised_, and of wide_rows_ and stage_rows_ each
  };
  StageRows plan_stage_rows(const checkpoint::ModelConfig& c, const std::array<Buffer, kRoles>& buffers) const;
  std::array<Buffer, kRoles> plan_buffers(const checkpoint::ModelConfig& c, const Limits& limits) const;
  template <class U>
  U* at(Role role, int64_t row = 0) const {
    const Buffer& b = buffers_[static_cast<int>(role)];
    return static_cast<U*>(b.data) + row * b.cols;
  }
  const RowSet& set_of(Rows set) const { return sets_[static_cast<int>(set)]; }
  int drafts_max() const;
  int64_t keys_max() const { return c_.sliding_window + std::max<int64_t>(c_.index_topk, drafts_max()); }
  // Lets every thread of the pool grow its scratch memory now instead of in a step, and pins it if that is wanted.
  bool reserve_scratch();  // false: no memory
  // What reserve_scratch does on every thread. False: no memory.
  virtual bool reserve_thread();
  // Bytes a thread needs of each slot.
  virtual std::vector<std::pair<Slot, int64_t>> scratch_plan() const;
  bool is_draft(int layer) const { return layer >= c_.num_hidden_layers; }
  int ratio_of(int layer) const { return is_draft(layer) ? 0 : c_.layers[layer].ratio; }

  // ---- arithmetic
  float round(T v) const { return rounding_ ? static_cast<float>(numeric::round_bf16(v)) : static_cast<float>(v); }
  // w * x / rms(x), rounded; x and out may be the same.
  void norm(const float* x, const float* w, int64_t n, float* out) const;
  template <class U>
  static U sum_squares(const float* x, int64_t n);
  // RoPE on the last channels of n heads of width d.
  void rotate(float* x, int64_t n, int64_t d, const float* cos, const float* sin, bool inverse) const;
  // x quantised as a linear with this weight format wants it: x itself, or a copy in `quantised_`.
  const float* quantised_input(const Matrix& w, const float* x, int64_t ldx, int64_t n);
  // sink(i, j, values, count): outputs j .. j + count - 1 of row i. Rows of x are ldx apart, already quantised.
  template <class Sink>
  void multiply(const Matrix& w, int64_t row0, int64_t rows, const float* x, int64_t ldx, int64_t n, Sink&& sink);
  // bf16-output linear of n rows: quantises the input where the weight is FP8 or FP4.
  virtual void linear(const Matrix& w, const float* x, int64_t ldx, int64_t n, float* out, int64_t ldo);
  // Outputs row0 .. row0 + rows - 1 of a linear layer whose input is not quantised, rounded to bf16.
  virtual void linear_part(const Matrix& w, int64_t row0, int64_t rows, const float* x, int64_t ldx, int64_t n,
                           float* out, int64_t ldo);
  // The same for a whole BF16 matrix, not rounded.
  virtual void products(const Matrix& w, const float* x, int64_t ldx, int64_t n, T* out, int64_t ldo);
  template <class Body>
  void parallel(int64_t n, Body&& body, int64_t grain = 1) {
    pool_.parallel_for(n, std::function<void(int64_t, int64_t)>(std::ref(body)), grain);
  }
  template <class U>
  void move_row(Role role, int64_t from, int64_t to) {
    std::copy_n(at<U>(role, from), buffers_[static_cast<int>(role)].cols, at<U>(role, to));
  }
  void collapse_and_norm(int row, const T* pre, const float* norm_weight, float* collapsed, float* out) const;
  void mix_finish(double* m, const HyperWeights& w, T* pre, T* post, T* comb) const;
  void hash_engram(Rows set);
  void ask_engram();
  void gather_engram(Rows set, int layer, float* e);
  void gather_engram_rows(int layer, int64_t begin, int64_t end, float* e) const;
  void embed_rows(const RowSet& set, const Matrix& read, bool in_order, int64_t begin, int64_t end);
  virtual void add_engram(int layer, bool image, const float* kv, float* streams, T* gates) const;
  void add_engram_rows(At where, const float* kv);
  // The experts of expert_tasks_ in the order in which their weights are there: all at once in memory, else those that
  // the cache holds and then the others as they are read. next_experts() fills ready_tasks_ (places in expert_tasks_)
  // and ready_experts_ (by expert), and is false when all have been run; those that cannot be read give zeros to
  // `rows`.
  void begin_experts(int layer);
  bool next_experts(const ExpertRows& rows);
  // Fills expert_tasks_ and expert_order_: the pairs of each expert, at most rows_max a task.
  void group_by_expert(const ExpertRows& rows, size_t experts, int rows_max);
  // Scores of one row (in place) -> its ids and weights.
  void choose_experts(const RowSet& set, int layer, int64_t row, T* score);
  void ffn_rows(const ExpertWeights& w, const float* x, int64_t n, const T* weight, float* out);

  // ---- KV
  std::byte* page(const SequenceRows& s, const RowSet& set, int64_t entry, int page_entries) const {
    return kv_.pages + static_cast<size_t>(set.blocks[s.first_block + entry / page_entries]) * layout_.page_stride;
  }
  std::byte* slot(const SequenceRows& s) const { return kv_.slots + static_cast<size_t>(s.slot) * layout_.slot_stride; }
  std::byte* ring_record(const SequenceRows& s, int ring, int64_t position) const {
    return slot(s) + layout_.window_offsets[ring] + (position % layout_.window_slots) * layout_.window_bytes;
  }
  bool packed() const { return layout_.format.records == KvFormat::Records::kPacked; }
  void encode_window(const float* x, std::byte* record) const;
  void decode_window(const std::byte* record, float* x) const;
  void decode_entry(const std::byte* record, float* x) const;
  void decode_key(const std::byte* page, const KvSource& source, int64_t at, float* x) const;
  T* compressor_row(const SequenceRows& s, const KvSource& source, int64_t position) const;
  // The parts of write_global.
  void find_complete_rows(At where);
  void pool_latents(At where, int64_t begin, int64_t end, float* latents);
  void finish_entries(At where, int64_t begin, int64_t end, float* latents, float* keys);
  void store_compressor_rows(At where);
  void write_entry(const SequenceRows& s, const RowSet& set, const KvSource& source, int64_t entry, float* latent,
                   float* key) const;
  void window_rows(int layer, const RowSet& set, const float* x, int64_t ldx);

  // ---- indexer
  void score_row(const RowSet& set, int row, const KvSource& keys, int64_t visible, T* scores) const;
  // The `keep` best of n by descending score, lower index first among equals; ascending in order[0..keep), which has
  // room for n.
  virtual void best_entries(const T* scores, int64_t n, int64_t keep, int32_t* order) const;
  void choose_candidates(int row, const T* scores, int64_t visible);
  void choose_entries(int row, T* scores, int64_t visible, bool filtered);

  // ---- attention
  int64_t gather_keys(const At& at, const RowSet& set, int row, float* keys) const;
  void attend_row(const float* q, const float* keys, int64_t n, const float* sink, float* out) const;

  Capabilities capabilities_;
  const bool rounding_;
  bool pin_ = false;
  ThreadPool pool_;
  checkpoint::ModelConfig c_;
  ModelWeights w_;
  Limits limits_;
  KvLayout layout_;
  KvMemory kv_;
  std::vector<std::byte> kv_bytes_;
  std::array<Buffer, kRoles> buffers_{};
  std::array<std::vector<std::byte>, kRoles> memory_;
  std::array<RowSet, kRowSets> sets_;
  std::array<RopeFrequencies, 2> rope_;
  std::vector<float> quantised_;       // [rows, widest linear input]
  std::vector<float> wide_rows_;       // [rows, widest intermediate of a stage]
  std::vector<float> stage_rows_;      // a second one
  std::vector<int32_t> expert_order_;  // row * columns + column, by expert
  std::vector<int32_t> expert_begin_;
  std::vector<ExpertTask> expert_tasks_;
  std::vector<int32_t> ready_tasks_;
  const ExpertWeights* ready_experts_ = nullptr;
  std::vector<ExpertWeights> read_experts_;  // with a store: the layer's, with addresses where they are there
  std::vector<int32_t> needed_experts_;
  int experts_layer_ = -1;  // whose experts are still to be run
  std::vector<int32_t> engram_ids_;
  std::optional<Rows> engram_unasked_;  // whose table rows are still to be asked for
  std::vector<int32_t> complete_rows_;  // of write_global
  // Vectors used in many stages, as numbers.
  struct LayerVectors {
    std::vector<float> attn_norm, ffn_norm, q_norm, kv_norm, sink, compressor_norm, k_norm, bias, bias_vl;
    std::vector<float> hc_base[2], hc_scale[2];
    std::vector<double> engram_qk;  // q_weight * k_weight [C, D]
  };
  std::vector<LayerVectors> vectors_;
  std::vector<float> norm_, main_norm_, draft_norm_, confidence_;
};

// kLanes lanes; every kPanelColumns elements they are added to the totals, which are summed lane by lane at the end.
template <class T>
template <class U>
U Backend<T>::sum_squares(const float* x, int64_t n) {
  std::array<U, kLanes> total{}, part{};
  for (int64_t i0 = 0; i0 < n; i0 += kPanelColumns) {
    part.fill(U{0});
    const int64_t end = std::min<int64_t>(n, i0 + kPanelColumns);
    int64_t i = i0;
    for (; i + kLanes <= end; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) part[l] += static_cast<U>(x[i + l]) * static_cast<U>(x[i + l]);
    }
    for (int l = 0; i < end; ++i, ++l) part[l] += static_cast<U>(x[i]) * static_cast<U>(x[i]);
    for (int l = 0; l < kLanes; ++l) total[l] += part[l];
  }
  U sum = 0;
  for (U v : total) sum += v;
  return sum;
}

template <class T>
template <class Sink>
void Backend<T>::multiply(const Matrix& w, int64_t row0, int64_t rows, const float* x, int64_t ldx, int64_t n,
                          Sink&& sink) {
  const int64_t panels = (rows + kLanes - 1) / kLanes, chunks = (n + kRowChunk - 1) / kRowChunk;
  auto body = [&](int64_t begin, int64_t end) {
    T* tile = scratch<T>(Slot::kTile, kRowChunk * kLanes);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t j = task % panels * kLanes, i0 = task / panels * kRowChunk;
      const int64_t count = std::min<int64_t>(kLanes, rows - j), m = std::min<int64_t>(kRowChunk, n - i0);
      multiply_rows<T>(w, row0 + j, count, x + i0 * ldx, ldx, m, tile, kLanes);
      for (int64_t i = 0; i < m; ++i) sink(i0 + i, j, tile + i * kLanes, count);
    }
  };
  parallel(panels * chunks, body);
}

}  // namespace deepinfer::ops::cpu
