// The stages V4.1-Flash is made of, one object a device. model/ writes the graph once against this interface; a backend
// is free to fuse inside a stage. Names and formulas: spec/model.md 5-11; rounding points: 4.7, 4.8.
//
//   ops->load(config, weights, limits);
//   ops->allocate_kv(layout, pages, slots);
//   ops->begin(Rows::kEncoder, batch);                  // copies the row arrays
//   ops->embed(Rows::kEncoder);
//   ops->hc_enter({0, Rows::kEncoder}, Sublayer::kAttention);
//   ops->attention_project({0, Rows::kEncoder}, kProjectQueries | kProjectWindow);
//   ...
//   ops->synchronize();                                 // errors of all stages since the last call
//   ops->read(Role::kLogits, 0, n, values);
//
// Data flow. Stages pass activations through buffers named by Role; load() allocates them, no stage does.
// All row sets share the buffers; `rows` of a role means the rows of the set in work. Element types:
//   bf16   values that are bf16 at a rounding point, in any format that keeps them (not rounded in numeric mode `off`)
//   wide   values the model keeps in fp32: the backend's widest type (double in the reference, else float)
// Layers are numbered 0..n-1, drafter stages n..n+stages-1.
//
// Determinism. A row's result depends on that row's sequence only: not on other rows, the row set, chunk borders, row
// counts or threads. Capabilities says where a backend cannot keep this. Each backend states its summation trees in
// ORDER.md.
//
// Ranks. The stages are cut where ranks exchange rows (design.md 4); At carries a RankContext (size 1 = all is local).
//
// Errors. Stages return nothing and may run later; synchronize() reports. Inputs are checked by model/; a backend
// asserts. One thread at a time uses an Ops object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"
#include "ops/kv_layout.h"
#include "ops/row_batch.h"
#include "ops/weights.h"

namespace deepinfer::ops {

struct RankContext {
  int rank = 0;
  int size = 1;
};

// Where a stage runs.
struct At {
  int layer = 0;
  Rows rows = Rows::kEncoder;
  RankContext rank = {};
};

enum class Sublayer : uint8_t { kAttention, kFfn };

// Parts of attention_project.
enum ProjectParts : uint32_t {
  kProjectQueries = 1,       // qr, q
  kProjectWindow = 2,        // window records of these rows
  kProjectIndexQueries = 4,  // index queries and head weights (index sources)
  kProjectCompressor = 8,    // compressor rows (KV sources)
};

// Activations. C streams, D hidden, H heads, d head dim, k experts a token (the larger of both halves), T taps.
enum class Role : uint8_t {
  kResidual,        // bf16 [rows, C, D]
  kPre,             // wide [rows, C]         what the next collapse uses
  kPost,            // wide [rows, C]         of the sublayer in work
  kComb,            // wide [rows, C, C]
  kSublayerIn,      // bf16 [rows, D]         after collapse and norm
  kSublayerOut,     // bf16 [rows, D]
  kQueryLow,        // bf16 [rows, q_lora]    qr, after q_norm
  kQuery,           // bf16 [rows, H, d]      rotated
  kWindowRecords,   // bytes [rows, window_bytes]
  kIndexQuery,      // bf16 [rows, index heads, index dim]   after FQ4I
  kIndexWeights,    // bf16 [rows, index heads]   without the constant factor
  kCompressorRows,  // wide [rows, 2, d]      ratio 2: gate score, value;   bf16 [rows, d] ratio 1: value
  kLatent,          // bf16 [rows, d]         before RoPE; rows that complete a group
  kIndexScores,     // wide [rows, entries]   -inf = not visible; kept only with Limits::keep_scores
  kCandidates,      // int32 [rows, candidate blocks]   kept blocks ascending, then -1; -1 in front: all blocks are kept
  kSelected,        // int32 [rows, index_topk]   entries ascending, then -1
  kHeads,           // bf16 [rows, H, d]      attention output before the inverse rotation
  kExpertIds,       // int32 [rows, k]        in selection order, then -1
  kExpertWeights,   // wide [rows, k]
  kExpertOut,       // bf16 [rows, k, D]      unreduced
  kSharedOut,       // bf16 [rows, D]
  kTaps,            // bf16 [rows, T, D]
  kEngramRows,      // int32 [rows, Engram layers, columns]
  kEngramGate,      // wide [rows, C]         of the Engram layer in work
  kImageRows,       // bf16 [image rows, D]   written by the caller
  kFinalHidden,     // bf16 [outputs, D]
  kLogits,          // float [outputs, V]; in a draft round [sequences, V]
  kDraftHidden,     // bf16 [draft rows, D]   collapsed, before the norm
  kDraftBase,       // wide [draft rows, V]
  kDraftTokens,     // int32 [sequences, drafts + 1]   column 0 = token the round starts from, then the drafts
  kConfidence,      // float [sequences, drafts]   logits
  kFeedback,        // int32 [feedback]       tokens for the next step, see row_batch.h
};
inline constexpr int kRoles = static_cast<int>(Role::kFeedback) + 1;

enum class Element : uint8_t { kFloat, kDouble, kBf16, kInt32, kByte };

// A backend's buffer: data is a device address on device backends.
struct Buffer {
  void* data = nullptr;
  Element element = Element::kFloat;
  int64_t rows = 0;  // capacity
  int64_t cols = 0;
};

// Sizes fixed at load().
struct Limits {
  int rows_max = 512;  // rows of a step
  int sequences_max = 1;
  int outputs_max = 16;    // rows with logits in a step; at least sequences_max
  int drafts_max = 0;      // rows of a sequence in a draft round; 0 = the config's block size
  int context_max = 4096;  // positions of a sequence
  int blocks_max = 0;      // page ids of a step over all sequences; 0 = sequences_max x pages of context_max
  int image_rows_max = 0;
  int feedback_max = 0;
  bool keep_scores = false;  // keep Role::kIndexScores readable (tests)
};

struct Capabilities {
  std::string backend;        // "reference", "plain", "cuda"
  std::string numeric_class;  // names backend and summation trees: part of every cache key
  KvFormat kv_format;
  bool row_invariant = true;  // a row's bits do not depend on batch, chunking and threads
  bool graphs = false;        // run() records and replays
  bool host_memory = false;   // buffers and KV memory may be read by the host once the stages have ended
  bool offload = false;       // takes ModelWeights with a store; its read errors are reported by synchronize()
};

// KV memory of the device. Page 0.. and slot 0.. are at multiples of the layout's strides.
struct KvMemory {
  std::byte* pages = nullptr;
  int page_count = 0;
  std::byte* slots = nullptr;
  int slot_count = 0;
};

// Inputs and outputs of the experts, so that rows received from other ranks go through the same stage.
struct ExpertRows {
  int64_t rows = 0;
  int per_row = 0;  // experts a row: the first columns of ids, weights and output
  Buffer input;     // bf16 [rows, D]
  Buffer ids;       // int32 [rows, cols]; -1 = not here: its output row is left alone
  Buffer weights;   // wide [rows, cols]
  Buffer output;    // bf16 [rows, cols, D]
};

// What a recorded sequence of stages is known by. rows 0 = do not record.
struct GraphKey {
  uint8_t kind = 0;
  int32_t rows = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual const Capabilities& capabilities() const = 0;

  // ---- memory ---------------------------------------------------------------------------------------------------
  // Bytes of the activations that load() would allocate.
  virtual uint64_t workspace_bytes(const checkpoint::ModelConfig& config, const Limits& limits) const = 0;
  // Takes the weights (views, or copies on the device) and allocates all activations. Once.
  virtual Status load(const checkpoint::ModelConfig& config, const ModelWeights& weights, const Limits& limits) = 0;
  // Zeroed pages and slots. Once; freed with this object.
  virtual Result<KvMemory> allocate_kv(const KvLayout& layout, int pages, int slots) = 0;
  // Copies inside KV memory and between it and the host; device addresses come from KvMemory.
  virtual void kv_copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual Status kv_read(const std::byte* from, std::span<std::byte> to) = 0;
  virtual Status kv_write(std::byte* to, std::span<const std::byte> from) = 0;

  virtual Buffer buffer(Role role) const = 0;
  // Rows of a buffer as numbers (records as byte values), for tests, traces and logits; waits for earlier stages.
  virtual Status read(Role role, int64_t first_row, int64_t rows, std::span<double> values) = 0;
  virtual Status write(Role role, int64_t first_row, int64_t rows, std::span<const double> values) = 0;

  // ---- a step ---------------------------------------------------------------------------------------------------
  // Takes a row set's arrays (copied; the spans may change after the call). Refuses what exceeds the limits.
  virtual Status begin(Rows set, const RowBatch& batch) = 0;
  // Runs stages; a backend with graphs records them once a key and replays them. `stages` calls only stages of this
  // object.
  virtual void run(const GraphKey& key, const std::function<void()>& stages);
  // Waits for all stages; the first error since the last call.
  virtual Status synchronize() = 0;

  // Embedding into kResidual (C copies; image rows replaced), kPre = (1, 0, ..).
  virtual void embed(Rows set) = 0;
  // Hash rows of all Engram layers from tokens and history; a backend with offloaded tables starts fetching (10.2).
  virtual void engram_lookup(Rows set) = 0;
  // Gated addition into kResidual (10.4).
  virtual void engram_apply(At at) = 0;

  // mix(X) -> kPost, kComb and the next kPre; kSublayerIn = norm(collapse(X, old kPre)) (5.2, 5.3).
  virtual void hc_enter(At at, Sublayer which) = 0;
  // kResidual = expand(kSublayerOut, X, kPost, kComb) (5.4).
  virtual void hc_leave(At at, Sublayer which) = 0;
  // hc_leave of one sublayer and hc_enter of the next, for one pass over X.
  virtual void hc_leave_enter(At leave, Sublayer left, At enter, Sublayer entered);
  // kSublayerIn = norm(collapse(X, kPre)) with the layer's attn_norm and nothing else: the tail's first layer, on all
  // rows (15.3).
  virtual void hc_collapse(At at) = 0;
  // Whether a set may lose rows between two layers.
  virtual bool drops_rows() const { return false; }
  // The encoder set has only rows source[0], source[1], .. (ascending) of those that it had, in `sequences`, which are
  // as many as before. Between layers; only where drops_rows().
  virtual void drop_rows(std::span<const SequenceRows> /*sequences*/, std::span<const int32_t> /*source*/) {}
  // Moves kResidual and kPre of the decoder set's rows to the front (row i <- row source[i]).
  virtual void keep_decoder_rows() = 0;

  // From kSublayerIn (and qr): the parts named, bits of ProjectParts (6.1, 7, 8.2).
  virtual void attention_project(At at, uint32_t parts) = 0;
  // Pools complete groups (partners of earlier steps from the ring), norm, RoPE, quantises; writes entries and keys to
  // pages and the rows to the compressor ring. Rows below `cached` write nothing.
  virtual void write_global(At at) = 0;
  // Index sources: scores of the visible entries, candidate blocks (candidate source), kSelected (8).
  virtual void select(At at) = 0;
  // Window (ring for positions before the step, kWindowRecords for its own rows) and selected entries -> kHeads
  // (6.3, 6.4). Drafter stages: ring up to the position before the first row, and all rows of the sequence (11.3).
  virtual void attend(At at) = 0;
  // The last ring-size rows of each sequence into its window ring. A backend may have done it inside attend where that
  // is equal.
  virtual void store_window(At at) = 0;
  // Inverse rotation, wo_a, wo_b -> kSublayerOut (6.5).
  virtual void attention_output(At at) = 0;

  // A hint that the layer's attention begins: a backend whose experts are read from the SSD may guess by kSublayerIn
  // which ones route() will choose, and begin reading them. Changes no result.
  virtual void expect_experts(At) {}
  // kExpertIds, kExpertWeights from kSublayerIn (9).
  virtual void route(At at) = 0;
  // Each row through each of its experts, weight included, unreduced.
  virtual void experts(At at, const ExpertRows& rows) = 0;
  // The shared expert of the set's rows -> kSharedOut.
  virtual void shared_expert(At at) = 0;
  // kSublayerOut = shared + routed in selection order, one rounding.
  virtual void combine(At at) = 0;

  // Mean over the streams into column `index` of kTaps (5.1).
  virtual void tap(At at, int index) = 0;
  // Final collapse and norm of the output rows, logits.
  virtual void head() = 0;
  // Main projection of kTaps; window records of every drafter stage into its ring (11.2).
  virtual void fill_draft_rings(Rows set) = 0;

  // kDraftHidden and kDraftBase from the last stage's residual.
  virtual void draft_base() = 0;
  // kLogits[s] = base of row `index` + Markov term of kDraftTokens[s][index]; kConfidence[s][index] (11.3).
  virtual void draft_logits(int index) = 0;
  // kDraftTokens[s][index + 1] = argmax of kLogits[s], lowest id on ties.
  virtual void draft_argmax(int index) = 0;

  // The local rows and experts of a layer, from the role buffers.
  ExpertRows local_expert_rows(At at) const;
  virtual int experts_per_row(int layer) const = 0;
  // Rows taken by the last begin() of that set.
  virtual int row_count(Rows set) const = 0;
};

}  // namespace deepinfer::ops
