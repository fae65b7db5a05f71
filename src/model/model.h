// DeepSeek-V4.1-Flash: layer schedule and graph, written once against ops/ops.h (spec/model.md 3, 5, 11, 15).
//
//   DI_ASSIGN_OR_RETURN(auto model, Model::create(checkpoint, ops::make_plain_ops(threads), options));
//   DI_RETURN_IF_ERROR(model->forward(plan));            // Role::kLogits: the plan's output rows, in plan order
//   model->draft(draft_plan, model->greedy_chooser());   // Role::kDraftTokens, Role::kConfidence
//
// forward() runs every row through the encoder half and the rows at or behind their sequence's decoder_begin through
// the decoder half; it reads and writes KV pages and state slots only. Prefill, chunks, decode and verification are the
// same call, and a row's result does not depend on the rest of the plan. Rejected verify rows need no undo: plan the
// next step at the position after the last accepted one (at most `backtrack` tokens back).
//
// Errors: a plan that contradicts itself or exceeds Options is refused with kInvalidArgument before anything runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/step.h"
#include "ops/ops.h"

namespace deepinfer::checkpoint {
class Checkpoint;
class WeightStore;
struct ModelConfig;
}  // namespace deepinfer::checkpoint

namespace deepinfer::model {

struct Options {
  ops::Limits limits;
  int pages = 64;  // KV pages of 128 tokens
  int slots = 1;   // state slots
  ops::KvRingSizes rings;
  // Where the weights come from that are not in memory; null: all of them are used where the checkpoint has mapped
  // them.
  std::shared_ptr<checkpoint::WeightStore> store;
  bool count_experts = false;  // expert_load(); only where the backend has host_memory
};

// Rows of the busiest expert, and rows an expert, each summed over the layers of all forwards. With few rows the former
// is large beside the latter whatever the router does.
struct ExpertLoad {
  double busiest = 0, mean = 0;
};

// Points of the graph at which an Observer is called.
enum class Stage : uint8_t {
  kEmbedding,     // layer -1: kResidual
  kEngram,        // kEngramRows, kEngramGate, kResidual
  kProjected,     // kSublayerIn (attention_in), kQueryLow, kQuery, kWindowRecords, kIndexQuery, kIndexWeights,
                  // kCompressorRows
  kGlobal,        // kLatent; pages
  kSelected,      // kIndexScores, kCandidates, kSelected
  kHeads,         // kHeads
  kAttentionOut,  // kSublayerOut
  kMoeIn,         // kSublayerIn
  kRouted,        // kExpertIds, kExpertWeights
  kMoeOut,        // kSublayerOut
  kBlock,         // kResidual, kPre
  kTaps,          // layer -1: kTaps
  kHead,          // layer -1: kFinalHidden, kLogits
};

// Called while a step runs (tests, traces): the roles named at the stage may be read, or written to replace what
// follows. Drafter stages are layers n, n + 1, ..
using Observer = std::function<void(int layer, Stage stage, ops::Rows rows)>;

// Called while a step runs, at most once a row set for every layer with global KV of its own, before the step reads
// that: what other steps wrote there need not be in memory before.
using GlobalGate = std::function<void(int layer)>;

// Picks the next draft token of every sequence: reads Role::kLogits [sequences, V], writes column index + 1 of
// kDraftTokens.
using DraftChooser = std::function<Status(int index)>;

class Model {
 public:
  static Result<std::unique_ptr<Model>> create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                               std::unique_ptr<ops::Ops> ops, const Options& options);
  ~Model();

  const checkpoint::ModelConfig& config() const;
  const ops::KvLayout& kv_layout() const;
  const ops::KvMemory& kv_memory() const;
  ops::Ops& ops();
  const ops::Limits& limits() const;

  // Queues the step; results are there after ops().synchronize() or ops().read().
  Status forward(const StepPlan& plan, const GlobalGate& gate = nullptr);
  // Queues a draft round; `choose` is called once a draft position.
  Status draft(const DraftPlan& plan, const DraftChooser& choose);
  DraftChooser greedy_chooser();

  // Any thread.
  ExpertLoad expert_load() const;

  // An empty function ends it. Fused stages run one by one while an observer is set; results are the same.
  void observe(Observer observer);

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::model
