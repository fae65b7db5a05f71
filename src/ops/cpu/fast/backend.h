// The fast CPU backend: the plain backend's stages, with those that cost time replaced by kernels of one instruction
// set (internal to ops/cpu). Activations stay fp32 arrays of bf16 values between stages; each linear layer packs its
// input to bf16 words once. The members of each file have one reason to change:
//   backend.cc (memory, linear layers), lanes.cc (the second copy of a small model's weights), few_rows.cc (rows taken
//   through several stages), one_row.cc (stages side by side), hyper.cc (mHC), project.cc (projections), select.cc
//   (indexer), search.cc (its best entries without all scores), attend.cc, moe.cc (router, experts), ahead.cc (what is
//   guessed and done early with experts on the SSD), engram.cc, head.cc (logits, drafts)
//
// Summation trees: ORDER.md, "fast".
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/huge_memory.h"
#include "ops/cpu/fast/best_keys.h"
#include "ops/cpu/fast/kernels.h"
#include "ops/cpu/stages/backend.h"

namespace deepinfer::ops::cpu::fast {

class RowSearch;

// Some heads of one row over keys [n, channels], which are their own values (6.4), on the calling thread.
struct AttendCall {
  const float* q = nullptr;  // [heads, channels]
  int64_t heads = 0, channels = 0;
  const uint16_t* words = nullptr;  // bf16 [keys, channels]
  int64_t keys = 0;
  const float* sink = nullptr;  // [heads]
  float* out = nullptr;         // [heads, channels]
};
void attend_heads(const Kernels& k, const AttendCall& call);

class FastBackend final : public Backend<float> {
 public:
  FastBackend(Capabilities capabilities, const Kernels& kernels, int threads, bool pin);
  ~FastBackend() override {
    for (int piece = 0; piece < kBesides; ++piece) finish_beside(piece);  // of a step that was left half done
  }

  Status load(const checkpoint::ModelConfig& config, const ModelWeights& weights, const Limits& limits) override;
  uint64_t workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const override;

  Buffer buffer(Role role) const override;
  void kv_copy(std::byte* to, const std::byte* from, size_t bytes) override;
  Status kv_read(const std::byte* from, std::span<std::byte> to) override;
  Status kv_write(std::byte* to, std::span<const std::byte> from) override;
  Status read(Role role, int64_t first_row, int64_t rows, std::span<double> values) override;
  Status begin(Rows set, const RowBatch& batch) override;
  Status synchronize() override;
  void embed(Rows set) override;
  void engram_lookup(Rows set) override;
  void engram_apply(At at) override;
  void hc_enter(At at, Sublayer which) override;
  void hc_leave(At at, Sublayer which) override;
  void hc_leave_enter(At leave, Sublayer left, At enter, Sublayer entered) override;
  void hc_collapse(At at) override;
  void drop_rows(std::span<const SequenceRows> sequences, std::span<const int32_t> source) override;
  void keep_decoder_rows() override;
  void attention_project(At at, uint32_t parts) override;
  void write_global(At at) override;
  void select(At at) override;
  void attend(At at) override;
  void store_window(At at) override;
  void attention_output(At at) override;
  void expect_experts(At at) override;
  void route(At at) override;
  void experts(At at, const ExpertRows& rows) override;
  void shared_expert(At at) override;
  void combine(At at) override;
  void tap(At at, int index) override;
  void head() override;
  void fill_draft_rings(Rows set) override;
  void draft_base() override;
  void draft_logits(int index) override;

 protected:
  void add_engram(int layer, bool image, const float* kv, float* streams, float* gates) const override;
  bool reserve_thread() override;
  std::vector<std::pair<Slot, int64_t>> scratch_plan() const override;
  void linear(const Matrix& w, const float* x, int64_t ldx, int64_t n, float* out, int64_t ldo) override;
  void linear_part(const Matrix& w, int64_t row0, int64_t rows, const float* x, int64_t ldx, int64_t n, float* out,
                   int64_t ldo) override;
  void products(const Matrix& w, const float* x, int64_t ldx, int64_t n, float* out, int64_t ldo) override;

 private:
  enum Buffers { kFirst, kSecond, kBuffers };

  static constexpr int64_t kSmallWork = 96 << 10;  // products that are not worth waking a thread for

  struct WorkspaceRows {
    int64_t packed, pairs, hidden;  // words of a packed input, of the experts' inputs and of their hidden rows
    int64_t score_rows;             // rows whose index scores are kept at a time
    int64_t index_bytes;            // of those scores, the lists of best keys and the index queries
    int64_t lists;                  // of best keys
    int64_t foreseen, engram;       // floats of what is done early with experts on the SSD
  };
  WorkspaceRows plan_workspace(const checkpoint::ModelConfig& c, const Limits& limits) const;

  // Matrix::lanes of every matrix of a model that is small enough to be in memory twice.
  Status keep_lanes();

  // ---- Few rows of a small model (few_rows.cc): each thread takes some of them through several stages.
  struct RowStage {
    void (FastBackend::*run)(const RowStage& stage, int64_t begin, int64_t end) = nullptr;
    At at;
    uint32_t parts = 0;  // of attention_project; the column of a tap
    bool leaves = false, enters = false;
    At entered;
    Sublayer sublayer = Sublayer::kAttention;  // that is entered
  };
  bool by_rows(Rows set) const;
  // The stage runs before anything that needs its result. By then the rows of its set are all of the stages' rows.
  void later(const RowStage& stage);
  void run_waiting();
  // This object's memory for a range of rows that begins at `row`.
  float* wide_area(int64_t row) { return wide_rows_.data() + row * area_floats_; }
  float* stage_area(int64_t row) { return stage_rows_.data() + row * area_floats_; }
  uint16_t* packed_area(Buffers of, int64_t row) { return packed_[of].as<uint16_t>() + row * area_words_; }
  PackedRows pack_area(Buffers to, int64_t row, const Matrix& w, const float* x, int64_t ldx, int64_t n, bool quantise);
  void multiply_area(const Matrix& w, const PackedRows& x, float* out, int64_t ldo, const Matrix* next,
                     bool round = true);
  void embed_rows(const RowStage& stage, int64_t begin, int64_t end);
  void engram_rows(const RowStage& stage, int64_t begin, int64_t end);
  void tap_rows(const RowStage& stage, int64_t begin, int64_t end);
  void pass_some(const RowStage& stage, int64_t begin, int64_t end);
  void project_rows(const RowStage& stage, int64_t begin, int64_t end);
  void finish_low(At at, uint32_t parts, float* kv, int64_t begin, int64_t end);
  void finish_high(At at, uint32_t parts, int64_t begin, int64_t end);
  void attend_rows(const RowStage& stage, int64_t begin, int64_t end);
  void store_rows(const RowStage& stage, int64_t begin, int64_t end);
  void output_rows(const RowStage& stage, int64_t begin, int64_t end);
  void rotate_back(At at, float* turned, int64_t begin, int64_t end);
  void route_rows(const RowStage& stage, int64_t begin, int64_t end);
  void combine_rows(const RowStage& stage, int64_t begin, int64_t end);
  void ring_rows(const RowStage& stage, int64_t begin, int64_t end);
  // The drafter's window records of a range of rows, from their taps.
  struct RingMemory {
    float *main = nullptr, *kv = nullptr;  // [rows, hidden_size], [rows, head_dim]
    uint16_t* words = nullptr;             // packed [rows, columns of the taps]
    std::byte* records = nullptr;          // [drafter stages] of one row; null: right into the rings
  };
  void form_ring_records(Rows rows, int64_t begin, int64_t end, const RingMemory& memory);
  void draft_hidden_rows(const RowStage& stage, int64_t begin, int64_t end);

  // One expert's rows: x packed, hidden rows from `first` on, weights null for the shared expert.
  struct FfnTask {
    const ExpertWeights* weights = nullptr;
    PackedRows x;       // x.n rows
    int64_t first = 0;  // of its hidden rows
    bool shared = false;
  };

  void add_engram_streams(int layer, bool image, const float* kv, float* streams, float* gates, int64_t begin,
                          int64_t end) const;

  // ---- One row of a small model (one_row.cc)
  enum Beside { kOthers, kEntries, kKeys, kOutput, kMix, kEngram, kShared, kRings, kRouted, kBesides = kRouted + 7 };
  struct Piece {
    FastBackend* backend = nullptr;
    void (FastBackend::*run)(int64_t) = nullptr;
    uint64_t id = 0;  // of ThreadPool::start
  };
  static_assert(int{kBesides} <= ThreadPool::kSidesMax);
  bool alone(Rows set) const { return narrow_ && row_count(set) == 1; }
  bool has_narrow_attention() const;
  bool reserve_beside();  // false: no memory
  void start_beside(Beside which, void (FastBackend::*run)(int64_t), int64_t argument = 0);
  void finish_beside(int which);
  void start_mix();
  void mix_one(int64_t);
  void project_beside(At at, uint32_t parts);
  void project_queries(At at, uint32_t parts);
  void project_others(int64_t);
  void project_window(int64_t);
  bool write_global_beside(At at);
  void write_entries(int64_t after);
  // Keys of row 0: the window's end where the entries begin.
  int64_t window_places() const { return c_.sliding_window + drafts_max(); }
  uint16_t* entry_words() { return beside_keys_.data() + window_places() * c_.head_dim; }
  void gather_window_beside(At at);
  void gather_entries_beside(At at);
  void attend_beside(At at);
  int64_t half_output() const { return c_.hidden_size / 2 / kBlockRows * kBlockRows; }
  void output_beside(At at);
  void fetch_mixed() const;
  void output_groups(int64_t half);
  void output_channels(int64_t half);
  void start_rings(Rows set);
  void form_rings(int64_t);
  void store_rings();
  void forget_rings();
  void start_engram(Rows set, int layer);
  void multiply_engram(int64_t layer);
  void add_engram_beside(At at);
  void add_some_streams(int64_t half);
  void route_beside(At at);
  void run_shared(int64_t);
  void run_routed(int64_t task);
  void run_experts_beside(std::span<const FfnTask> tasks, const ExpertRows* routed);

  // Packs to a buffer of this object, which the next stage uses again. one_row_each: rows one behind the other.
  PackedRows pack(Buffers to, const float* x, int64_t ldx, int64_t n, int64_t k, Order order, bool quantise,
                  bool one_row_each = false);
  void pack_rows(const PackedRows& to, const float* x, int64_t ldx, int64_t k, Order order, bool quantise,
                 bool one_row_each = false);
  PackedRows pack_for(Buffers to, const Matrix& w, const float* x, int64_t ldx, int64_t n) {
    const Order order = order_of(w.format);
    return pack(to, x, ldx, n, w.cols, order, order != Order::kNatural);
  }
  static LinearCall call(const Matrix& w, const PackedRows& x, float* out, int64_t ldo, bool round) {
    return {&w, 0, w.rows, x, out, ldo, round};
  }
  // Runs the calls with their outputs divided among the threads.
  void run(std::span<const LinearCall> calls);
  void run(const LinearCall& one) { run(std::span<const LinearCall>(&one, 1)); }
  // This thread's memory for multiply().
  static std::byte* kernel_scratch(int64_t k);

  void run_ffn(std::span<const FfnTask> tasks, const ExpertRows* routed);
  void pack_experts(const ExpertRows& rows);
  static constexpr int64_t kAheadRows = 4;
  static constexpr int kGuessOutstanding = 2;  // experts that may be missing for the last guess of the next layer's
  // When a layer's experts are guessed: before those of the layer before it have run, when nearly all of them have, and
  // before its own attention.
  enum class Moment : uint8_t { kExpertsBegin, kExpertsEnd, kAttention };
  static constexpr int kMoments = 3;
  struct Guess {
    int32_t expert = 0;
    float margin = 0;  // of its score over the best one that is not chosen
  };
  struct Guesses {
    int layer = -1;
    std::vector<Guess> experts;
  };
  // See ahead.cc.
  bool works_ahead(At where) const;
  void foresee_row(int layer, float* x, const float* pre, const float* post, const float* comb, int64_t i);
  void expect_foreseen(Moment moment, int layer, int64_t rows);
  void expect_next_experts(At where, Moment moment);
  void judge_guesses(int layer);
  void engram_ahead(At where);
  void fetch_engram(Rows set) const;
  FfnTask shared_task(const ExpertWeights& shared, int64_t rows);
  // next: weights of the thread's next block (LinearCall::next).
  void up_block(const FfnTask& task, int64_t block, const ExpertRows* routed, const std::byte* next);
  void down_rows(const FfnTask& task, int64_t row0, int64_t count, const ExpertRows* routed, const std::byte* next);
  void ffn_whole(const FfnTask& task, const ExpertRows* routed, const std::byte* next);
  void run_whole(std::span<const FfnTask> tasks, const ExpertRows* routed);
  static constexpr int64_t kDownRows = 2 * kChunk;  // what scratch memory holds

  // As rotate().
  void turn(float* x, int64_t n, int64_t d, const float* cos, const float* sin, bool inverse) const;
  // Positions of the window of a row: the first, and one behind the last.
  std::pair<int64_t, int64_t> window_of(const At& at, const RowSet& set, int row) const;
  // The keys of a row, and their number.
  int64_t gather_window(const At& at, const RowSet& set, int row, uint16_t* keys) const;
  int64_t gather_entries(const At& at, const RowSet& set, int row, uint16_t* keys) const;
  int64_t gather_words(const At& at, const RowSet& set, int row, uint16_t* keys) const {
    const int64_t n = gather_window(at, set, row, keys);
    return n + gather_entries(at, set, row, keys + n * c_.head_dim);
  }

  // How the entries of a row are found.
  enum class Scoring : uint8_t {
    kNone,          // it sees no more than it selects
    kSearch,        // the best, most keys only bounded
    kSearchBlocks,  // and the best blocks
    kListed,        // of the candidate blocks' keys, laid out back to back
    kAll,           // every score is wanted
  };
  // Rows of one sequence that share expanded keys.
  struct ScoreTask {
    int row0 = 0, rows = 0;
    int64_t key0 = 0, keys = 0;
  };
  struct SearchTask {
    int row0 = 0, rows = 0;
    bool blocks = false;
    int64_t range = 0, begin = 0, end = 0;  // of keys
  };
  static constexpr int kScoreRows = 8;
  void prepare_query(int64_t row);
  ScoreCall score_call(int row, const uint8_t* codes, const float* factors, float* scores) const;
  void key_memory(const SequenceRows& s, const RowSet& set, const KvSource& source, int64_t key, const uint8_t** data,
                  const uint8_t** scales) const;
  // Decodes up to kKeyLanes keys of one page.
  void panel_of(const SequenceRows& s, const RowSet& set, const KvSource& source, int64_t first, int64_t keys,
                uint8_t* codes, float* factors) const;
  // The same of up to kKeyLanes keys anywhere.
  void listed_panel(const SequenceRows& s, const RowSet& set, const KvSource& source, const int32_t* list, int64_t keys,
                    uint8_t* codes, float* factors) const;
  Scoring scoring_of(const checkpoint::LayerInfo& layer, int row, int64_t visible, int64_t rows) const;
  int64_t listed_keys(int row, int64_t visible) const;
  void score_keys(const RowSet& set, const KvSource& source, int ratio, const ScoreTask& task);
  void score_listed(const RowSet& set, const KvSource& source, int ratio, const ScoreTask& task);
  void score_group(const RowSet& set, const KvSource& source, int ratio, int row0, int end);
  void choose_listed(int row, int64_t visible);
  float* row_scores(int row);

  struct SearchKeys;
  int64_t search_lists(int64_t rows) const;  // BestKeys that are enough for so many rows
  int64_t keys_bounded() const;              // at once, for each row of a task
  int64_t search_task_rows() const;
  void search_scratch(std::vector<std::pair<Slot, int64_t>>* plan) const;
  void plan_search(const RowSet& set, int ratio);
  void search_rows(const RowSet& set, const KvSource& source, int ratio);
  void search_keys(const RowSet& set, const KvSource& source, int ratio, const SearchTask& task);
  void bound_keys(const RowSet& set, const KvSource& source, int ratio, const SearchTask& task, const SearchKeys& keys,
                  float* bounds) const;
  void search_some(int row, const SearchKeys& keys, int64_t visible, int32_t newest_block, const float* bounds,
                   RowSearch* search) const;
  void begin_search(int row, const SearchKeys& keys, int64_t visible, int32_t newest_block, const float* bounds,
                    RowSearch* search) const;
  template <class Use>
  void score_some(int row, const SearchKeys& keys, const int32_t* list, int64_t n, Use&& use) const;
  void choose_found(const BestKeys* found, int32_t* out) const;
  void best_entries(const float* scores, int64_t n, int64_t keep, int32_t* order) const override;

  void leave_row(int64_t i);
  struct MixOut {
    float *pre = nullptr, *post = nullptr, *comb = nullptr;
  };
  // The coefficients of n <= kMixTogether rows of streams, one behind the other.
  void mix_rows(const float* x, int64_t n, const HyperWeights& w, const MixOut* out);
  void enter_now_mix_later(const HyperWeights& w, const float* norm_weight);
  void do_late_mix();
  // body over [0, n) on all threads, with a late mix beside it.
  template <class Body>
  void parallel_with_mix(int64_t n, Body&& body, int64_t grain = 1);
  void enter_rows(int64_t first, int64_t n, const HyperWeights& w, const float* norm_weight);
  static constexpr int64_t kMixTogether = 3;  // rows that share the loads of mHC's fn
  void pass_rows(Rows rows, bool leave, const At* enter, Sublayer entered);

  const Kernels& k_;
  PackedRows hidden_rows(const FfnTask& task) const {
    const int64_t ld = packed_columns(task.weights->down.cols);
    return {hidden_.as<uint16_t>() + task.first * ld, ld, task.x.n};
  }
  std::vector<int8_t> index_codes_;  // [rows, heads, channels], see ScoreCall
  std::vector<float> index_factors_;
  std::vector<int32_t> index_twelve_;
  std::vector<int32_t> index_heads_;  // [rows, heads] those of positive weight, see ReachCall
  std::vector<float> index_weights_;
  std::vector<int32_t> index_positive_;  // [rows] how many
  float reach_factor_ = 1;
  std::vector<Scoring> scoring_;  // [rows]
  std::vector<float> scores_;     // [rows of a group, context]
  int scores_row0_ = 0;
  std::vector<ScoreTask> score_tasks_;
  std::vector<SearchTask> search_tasks_;        // without their ranges
  int64_t search_ranges_ = 1;                   // of the keys, for each row
  std::vector<BestKeys> found_, found_blocks_;  // [rows, ranges]
  std::vector<float> found_scores_;             // [lists, 2 x index_topk]
  std::vector<int32_t> found_keys_;
  std::vector<float> block_scores_;  // [lists, 2 x candidate_topk_blocks]
  std::vector<int32_t> block_keys_;
  bool small_ = false;   // the last-level cache holds the weights
  bool narrow_ = false;  // and its attention matrices are not worth a thread each
  std::array<Piece, kBesides> beside_;
  RowStage others_;
  const HyperWeights* mix_beside_ = nullptr;
  static constexpr int kNoSource = -2;
  static constexpr int64_t kNotGathered = -1;
  int64_t window_keys_ = kNotGathered, entry_keys_ = 0;  // of row 0
  bool window_waits_ = false;                            // project_window comes behind the entries
  int entries_source_ = kNoSource;            // whose choice the entries are; -1: none
  std::vector<float> beside_floats_, window_floats_, engram_floats_;
  std::vector<uint16_t> beside_words_, window_words_, engram_words_, beside_keys_;
  bool taps_wait_ = false;    // the row's taps are there, and nobody has begun with the records
  bool rings_early_ = false;  // somebody has
  Rows rings_set_ = Rows::kDecoder;
  std::vector<float> ring_floats_;
  std::vector<uint16_t> ring_words_;
  std::vector<std::byte> ring_records_;
  FfnTask shared_task_;
  Order shared_order_ = Order::kNatural;
  std::span<const FfnTask> routed_tasks_;
  const ExpertRows* routed_rows_ = nullptr;
  std::array<RowStage, 16> waiting_;
  int waiting_count_ = 0;
  Rows waiting_set_ = Rows::kEncoder;
  int64_t area_floats_ = 0, area_words_ = 0;
  HugeMemory expert_words_[2];  // inputs of a layer's experts and of its shared expert, of few rows
  int packed_layer_ = -1;       // whose they are
  HugeMemory packed_[kBuffers];
  HugeMemory lanes_;                        // what Matrix::lanes points to
  HugeMemory expert_in_;                    // words [pairs, packed hidden_size] of experts with several rows
  HugeMemory hidden_;                       // words [pairs + rows, packed intermediate size]
  const HyperWeights* late_mix_ = nullptr;  // of row 0, not done yet
  bool mix_beside_attention_ = false;       // it has a better place than the linear layers before
  std::vector<FfnTask> tasks_;              // one for each of expert_tasks_
  std::vector<FfnTask> batch_;              // those that run together
  std::vector<int32_t> guess_;              // experts
  std::array<Guesses, kMoments> guesses_;   // not judged yet
  std::vector<std::array<float, kMoments>> sure_margins_;  // of each layer
  std::vector<float> engram_kv_;  // [kAheadRows, C + 1, hidden_size] of engram_layer_, formed while experts were read
  int engram_layer_ = -1;
  std::vector<float> foreseen_;           // [kAheadRows, hidden_size] router inputs, then [hc_width] one row's streams
  std::vector<LinearCall> output_calls_;  // of attention_output, a group each
  int shared_done_ = -1;                  // layer whose shared expert ran together with the others
};

template <class Body>
void FastBackend::parallel_with_mix(int64_t n, Body&& body, int64_t grain) {
  if (late_mix_ == nullptr) return parallel(n, body, grain);
  auto both = [&](int64_t begin, int64_t end) {
    if (begin == 0) do_late_mix();
    if (end > 1) body(std::max<int64_t>(begin, 1) - 1, end - 1);
  };
  parallel(n + 1, both);
}

}  // namespace deepinfer::ops::cpu::fast
