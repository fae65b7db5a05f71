// The CUDA backend: ops.h on one Hopper GPU (internal to ops/cuda). Kernels of a stage stand in the file named after
// it:
//   backend.cu (memory, row sets, graphs), load.cu (weights), hyper.cu (mHC), head.cu (collapse, taps, head),
//   attention.cu (projections, window, output; of one row: chain_query.cu, chain_output.cu), attend.cu and
//   attend_wide.cu (core), global.cu (compressor, keys), select.cu (indexer), moe.cu (one row's experts:
//   experts_few.cu), engram.cu (embedding, Engram, drafter), offload.cu (experts and tables on the host), host.cu
//   (experts that the host computes)
//
// The work of a step is queued on one stream. Beside it, up to the next join(): on a second stream the shared expert,
// from route() to combine(), one row's mix of mHC, from hc_enter() on, and its window record; on a third one the
// experts of the host or, where there are none, the first product of one row's shared expert. Nothing waits for the
// device but begin(), read(), kv_read(), kv_write() and synchronize(), and they give up on a device that is lost
// (watchdog.h).
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "checkpoint/config.h"
#include "ops/cuda/chain_few.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/host.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/make.h"
#include "ops/cuda/offload.h"
#include "ops/cuda/watchdog.h"
#include "ops/ops.h"
#include "ops/rope.h"

namespace deepinfer::ops::cuda {

size_t element_bytes(Element e);
// "The GPU could not WHAT: ..."
Status cuda_error(std::string_view what, cudaError_t e);

// Device memory that is freed with the backend: one list of allocations.
class Arena {
 public:
  ~Arena();
  Status take(size_t bytes, void** p);  // zeroed, 256-byte aligned
  uint64_t bytes() const { return bytes_; }
  void abandon() { blocks_.clear(); }  // never freed: freeing waits for the GPU

 private:
  std::vector<void*> blocks_;
  uint64_t bytes_ = 0;
};

// Bytes of weights by where they may lie.
struct WeightBytes {
  uint64_t dense = 0, tables = 0, experts = 0;
  uint64_t all() const { return dense + tables + experts; }
};

class Backend : public Ops {
 public:
  static Result<std::unique_ptr<Backend>> create(int device, const Options& options = {});
  ~Backend() override;

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
  void run(const GraphKey& key, const std::function<void()>& stages) override;
  Status synchronize() override;
  int row_count(Rows set) const override { return sets_[static_cast<int>(set)].rows; }
  int experts_per_row(int layer) const override;

  void embed(Rows set) override;
  void engram_lookup(Rows set) override;
  void engram_apply(At at) override;
  void hc_enter(At at, Sublayer which) override;
  void hc_leave(At at, Sublayer which) override;
  void hc_leave_enter(At leave, Sublayer left, At enter, Sublayer entered) override;
  void hc_collapse(At at) override;
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

  ExpertTraffic expert_traffic();
  std::string placement() const;
  // The slots hold nothing any more (benchmarks).
  Status forget_slots();

 private:
  struct RowSet {
    int rows = 0, sequences = 0, outputs = 0;
    RowView view{};
    uint8_t* device = nullptr;
    uint8_t* staging = nullptr;  // pinned
    cudaEvent_t copied = nullptr;
  };
  struct Layer {
    LinearWeights wq_a_wkv, wkv;  // one above the other; the second alone
    LinearWeights wq_b, wo_a, wo_b, compressor_wkv, compressor_wgate, index_wk, index_wq_b, weights_proj, gate;
    LinearWeights w1_w3, w2, shared_w1_w3, shared_w2, engram_wkv;
    const float *attn_norm, *ffn_norm, *q_norm, *kv_norm, *sink, *compressor_norm, *k_norm, *bias, *bias_vl;
    const float *hc_fn[2], *hc_base[2], *hc_scale[2];
    const float* engram_qk;  // [C, D]
    const uint8_t *engram_codes, *engram_scales;
    int experts = 0;
    struct {
      TensorMap wq_a_wkv, wq_b, wo_a, wo_b;
    } maps{};
    bool mapped = false;
    const TensorMap* map(const TensorMap& m) const { return mapped ? &m : nullptr; }
  };

  explicit Backend(const Options& options) : options_(options), watchdog_(options.step_limit_s) {}
  std::array<Buffer, kRoles> plan_buffers(const checkpoint::ModelConfig& c, const Limits& limits) const;
  Status upload(const void* from, size_t bytes, const void** to);
  Status upload_matrix(const Matrix& m, LinearWeights* out);
  // Matrices of equal width one above the other, once an expert.
  Status upload_stack(const std::vector<std::vector<const Matrix*>>& experts, LinearWeights* out);
  Status upload_vector(const Matrix& m, const float** out);
  Status upload_table(const void* from, size_t bytes, const uint8_t** to);
  Status load_layer(const LayerWeights& in, Layer* out);
  Status take_scratch();
  // One above the other to `codes` and `scales`, K padded.
  Status copy_stack(const std::vector<const Matrix*>& parts, uint8_t* codes, uint8_t* scales);

  // offload.cu
  Status plan_offload(const ModelWeights& weights, const WeightBytes& bytes);
  Status take_table(int experts);
  Status take_slots();
  Status take_row_buffer();
  Status arrange_expert(const ExpertWeights& e, uint8_t* to);
  Status keep_experts(const MoeWeights& moe, size_t of_gpu);
  // Sees to it that the rows' experts are in slots; slots of the layer's experts, or null where all lie in order.
  const int32_t* bring_experts(int layer, const ExpertRows& rows);
  void read_experts(int layer);
  const uint8_t* read_rows(int table, int64_t count);
  void request_engram_rows(int rows);
  Status read_errors();
  uint64_t free_bytes() const;
  // Bytes of an expert a second that come from pinned memory.
  Status measure_link();

  // host.cu
  Status plan_host_experts(const ModelWeights& weights, double resident);
  // First expert of a layer that is the host's.
  int first_of_host(int layer) const {
    const int all = layers_[static_cast<size_t>(layer)].experts;
    return is_draft(layer) ? all : std::max(0, all - offload_.host_experts);
  }
  // The host's experts of the rows, beside the GPU's: their outputs are there when join() has been called.
  void start_host_experts(int layer, const ExpertRows& rows);

  template <class T>
  T* at(Role role, int64_t row = 0) const {
    const Buffer& b = buffers_[static_cast<int>(role)];
    return static_cast<T*>(b.data) + row * b.cols;
  }
  const RowSet& set_of(Rows set) const { return sets_[static_cast<int>(set)]; }
  const RowView& view_of(Rows set) const { return sets_[static_cast<int>(set)].view; }
  bool is_draft(int layer) const { return layer >= c_.num_hidden_layers; }
  int ratio_of(int layer) const { return is_draft(layer) ? 0 : c_.layers[layer].ratio; }
  int half() const { return static_cast<int>(c_.qk_rope_head_dim / 2); }
  float eps() const { return static_cast<float>(c_.rms_norm_eps); }
  // What follows on side_ waits for stream_ as it is now.
  void fork();
  // side_ has all that belongs beside stream_ until the next join().
  void side_ends();
  // What follows on stream_ waits for side_ and for the host.
  void join();
  // Packs x for w and multiplies.
  void project(const LinearWeights& w, const bf16* x, int64_t x_stride, int rows, const LinearOutput& y);
  // The same from kSublayerIn, which hc_enter has packed unless somebody wrote to it.
  void project_in(const LinearWeights& w, int rows, const LinearOutput& y);
  bool is_packed_in(WeightFormat format, int rows) const {
    return packed_in_.rows == rows && (format == WeightFormat::kFp8 ? packed_in_.fp8 : packed_in_.bf16);
  }
  void enter(At at, Sublayer which, bool leave);
  void swiglu(const bf16* gate_up, int rows, int inter, Packing packing, const float* weights, const int32_t* pair,
              uint8_t* packed, cudaStream_t stream);
  void query_projections(const Layer& l, int n, const float* cos, const float* sin);
  void window_rows(int layer, Rows set, const bf16* x);
  void store_window_rows(At at, cudaStream_t stream);
  void start_drafts();  // column 0 of kDraftTokens
  void note(cudaError_t e);
  // Waits for all that is queued: cudaErrorLaunchTimeout when the GPU is busy beyond the limit, and from then on.
  cudaError_t settle();
  bool await(cudaEvent_t event);  // false: lost
  // The driver's queue is a thousand launches long, and a launch beyond it waits: so a step that is not a graph goes
  // on only when the layers before the last kPaceLayers are done.
  static constexpr int kPaceLayers = 8;
  void keep_pace(int layer);
  // Whether it is no use to queue anything more.
  bool lost() const { return watchdog_.stuck(); }

  Options options_;
  Watchdog watchdog_;
  Offload offload_;
  std::unique_ptr<HostWork> host_work_;  // null: the host computes nothing
  Status read_error_;  // of the weight store's experts
  int device_ = 0, multiprocessors_ = 1;
  Capabilities capabilities_;
  cudaStream_t stream_ = nullptr, side_ = nullptr, host_ = nullptr;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr, paced_ = nullptr, routed_ = nullptr, hosted_ = nullptr;
  bool host_works_ = false;    // hosted_ marks where the outputs of host_ are there
  bool side_busy_ = false;     // joined_ marks its end
  bool route_forked_ = false;  // forked_ marks where route() began
  bool shared_done_ = false;   // route() has begun the shared expert, and experts() ends it
  Arena arena_;
  checkpoint::ModelConfig c_;
  Limits limits_;
  KvLayout layout_;
  KvMemory kv_;
  std::array<Buffer, kRoles> buffers_{};
  std::array<RowSet, kRowSets> sets_;
  std::array<RopeFrequencies, 2> rope_;
  std::vector<Layer> layers_;
  LinearWeights head_, main_proj_, markov_head_;
  const bf16* embed_ = nullptr;
  const bf16* markov_embed_ = nullptr;
  const float *norm_ = nullptr, *main_norm_ = nullptr, *draft_norm_ = nullptr, *confidence_ = nullptr;
  const int32_t* classes_ = nullptr;
  const int64_t* engram_constants_ = nullptr;  // per Engram layer: multipliers, primes, offsets
  // Scratch of a stage.
  static constexpr int kGatherRows = 1024;  // rows that in_fp4_ holds
  uint8_t* packed_ = nullptr;
  uint8_t *in_fp8_ = nullptr, *in_bf16_ = nullptr, *in_fp4_ = nullptr;  // kSublayerIn
  struct {
    int rows = 0;
    bool fp8 = false, bf16 = false, fp4 = false;
  } packed_in_;  // what they hold
  uint8_t* side_packed_ = nullptr;  // of the shared expert
  bf16* side_wide_ = nullptr;
  bf16* wide_ = nullptr;          // [rows, widest intermediate]
  bf16* narrow_ = nullptr;        // a second one
  float* mix_ = nullptr;          // [rows, slices, coefficients + 1]
  float* gate_scores_ = nullptr;  // [rows, experts]
  float* base_logits_ = nullptr;  // draft: Markov term
  uint16_t* scores_ = nullptr;    // [score rows, entries] ordered keys of bf16 scores
  int score_rows_ = 0;
  int64_t score_columns_ = 0;
  uint16_t* block_scores_ = nullptr;
  int32_t* expert_source_ = nullptr;  // packed row -> input row, -1 padding
  int32_t* expert_pair_ = nullptr;    // packed row -> row * columns + column, -1 padding
  GroupTile* expert_tiles_ = nullptr;
  int32_t* expert_tile_count_ = nullptr;
  int32_t* expert_progress_ = nullptr;  // of few_experts()
  int32_t* chain_progress_ = nullptr;   // of the chains of one row
  int expert_rows_max_ = 0;
  bf16* expert_gate_up_ = nullptr;
  std::map<std::pair<int, int>, cudaGraphExec_t> graphs_;
  bool recording_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace deepinfer::ops::cuda
