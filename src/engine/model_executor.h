// model::Model as the engine's device.
//
//   DI_ASSIGN_OR_RETURN(auto executor, ModelExecutor::create(checkpoint, ops::make_plain_ops(threads),
//                                                            {.context_max = 8192, .sequences_max = 32}));
//
// Memory: KV blocks of 128 tokens, one state slot a running sequence, the backend's workspace. Sizes left at 0 are
// chosen so that `sequences_max` sequences of an eighth of the context, and one of the whole, fit. create() compares
// what it is going to allocate with the memory there is and refuses with kResourceExhausted, saying both.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "engine/executor.h"
#include "model/model.h"

namespace deepinfer::checkpoint {
class Checkpoint;
class WeightStore;
}

namespace deepinfer::engine {

struct ModelExecutorOptions {
  int64_t context_max = 4096;  // prompt and answer of a sequence, at most the config's max_position_embeddings
  int sequences_max = 32;      // running at once
  int rows_max = 512;          // rows of a step
  int outputs_max = 0;         // logits rows of a step; 0: sequences_max, at least 64
  int blocks = 0;
  int drafts_max = 0;     // of a draft round, at most the model's block; 0: no drafts
  uint64_t ram_bytes = 0;  // memory that this process may take (engine/weights.h); 0: what is free
  bool count_work = false;  // work_stats()
  double peak_flops = 0;    // for info(): engine/loading.h
  bool snapshots = true;  // window rings large enough for snapshots of the encoder windows (design.md 6)
};

class ModelExecutor : public StepExecutor {
 public:
  // Tokens that the decoder half reads of a prompt: the model's window and this many more (KEEP).
  static constexpr int kBacktrack = 12;

  static Result<std::unique_ptr<ModelExecutor>> create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                       std::unique_ptr<ops::Ops> ops,
                                                       const ModelExecutorOptions& options);

  const ExecutorInfo& info() const override { return info_; }
  std::optional<checkpoint::StoreStats> weight_stats() const override;
  std::optional<WorkStats> work_stats() const override;
  Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) override;
  Status forward(const model::StepPlan& plan) override;
  Status forward_loading(const model::StepPlan& plan, StepLoads& loads) override;
  Result<std::span<const float>> logits(int rows) override;
  Status draft(const model::DraftPlan& plan, const DraftChooser& choose, std::span<int32_t> tokens,
               std::span<float> confidence) override;

  model::Model& model() { return *model_; }

 private:
  ModelExecutor() = default;
  void count_work(const model::StepPlan& plan);
  Status place(const StepLoads& loads, size_t source);
  Status copy_one(const sched::MemoryOp& op, kv::HostStore& host);
  Status copy_windows(const sched::MemoryOp& op, std::span<std::byte> bytes);
  std::byte* page(int id) const;
  std::byte* slot(int id) const;

  std::shared_ptr<checkpoint::WeightStore> weights_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<const model::WorkCounter> counter_;  // null: work is not counted
  std::atomic<double> linear_{0}, attention_{0}, index_{0};
  ExecutorInfo info_;
  std::vector<float> host_logits_;  // device backends only
  std::vector<int32_t> chosen_;
  std::vector<double> values_;
};

}  // namespace deepinfer::engine
