// DeepSeek-V4.1-Flash: layer schedule and graph, written once against ops/ops.h (spec/model.md 3, 5, 11, 15).
//
//   DI_ASSIGN_OR_RETURN(auto model, Model::create(checkpoint, ops::make_reference_ops(ops::Mode::kExact, threads), options));
//   DI_RETURN_IF_ERROR(model->forward(plan));            // logits of the plan's output rows, in plan order, in Role::kLogits
//   model->draft(draft_plan, model->greedy_chooser());   // proposals in Role::kDraftTokens, confidence logits in kConfidence
//
// forward() runs every row through the encoder half and the rows at or behind their sequence's decoder_begin through the decoder
// half; it reads and writes KV pages and state slots only. Prefill, chunks, decode and verification are the same call, and a
// row's result does not depend on the rest of the plan. Rejected verify rows need no undo: plan the next step at the position
// after the last accepted one (at most `backtrack` tokens back).
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
struct ModelConfig;
}  // namespace deepinfer::checkpoint

namespace deepinfer::model {

struct Options {
  ops::Limits limits;
  int pages = 64;            // KV pages of 128 tokens
  int slots = 1;             // state slots
  ops::KvRingSizes rings;
};

// Called while a forward runs, after the stage that completed `role`, before anything overwrites it (tests, traces).
// layer is -1 for stages outside layers; rows = rows of the set in work.
using Observer = std::function<void(int layer, ops::Role role, ops::Rows rows)>;

// Picks the next draft token of every sequence: reads Role::kLogits [sequences, V], writes column index + 1 of kDraftTokens.
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

  // Queues the step; results are there after ops().synchronize() or ops().read().
  Status forward(const StepPlan& plan);
  Status draft(const DraftPlan& plan, const DraftChooser& choose);
  DraftChooser greedy_chooser();

  void observe(Observer observer);

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::model
