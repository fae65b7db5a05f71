// What the engine needs of a device: run the copies and rows of a plan, give the logits back. ModelExecutor
// (engine/model_executor.h) is the real one; tests and benchmarks bring models of their own.
//
//   DI_RETURN_IF_ERROR(executor.copy(plan.before, host));
//   DI_RETURN_IF_ERROR(executor.forward(plan.step));
//   DI_ASSIGN_OR_RETURN(std::span<const float> logits, executor.logits(outputs));   // [outputs, vocab], valid until
//   the next forward()
//
// Errors. forward() refuses a plan before anything of it has run; logits() reports what failed while it ran. A row's
// bits may depend on its sequence only. One thread uses an executor, but for info(), weight_stats() and work_stats().
// forward() may return before the step has run; logits() waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "checkpoint/store/store_stats.h"
#include "kv/host_store.h"
#include "model/step.h"
#include "model/work.h"
#include "sched/plan.h"

namespace deepinfer::engine {

class StepLoads;

// What a device has computed so far (spec/deepinfer.md T8).
struct WorkStats {
  model::Work work;  // floating-point operations
  // Rows of the busiest expert, and rows an expert, summed over layers and steps; 0: not counted here.
  double expert_busiest = 0, expert_mean = 0;
};

// Sizes of the memory and shape of the model behind an executor; the scheduler's configuration comes from it.
struct ExecutorInfo {
  int vocab_size = 0;
  int context_max = 0;    // positions of a sequence
  int rows_max = 0;       // rows of a step
  int sequences_max = 0;  // of a step
  int outputs_max = 0;    // logits rows of a step
  int blocks = 0;         // KV blocks of kv::kBlockTokens tokens
  int slots = 0;
  size_t block_bytes = 0, slot_bytes = 0;
  size_t windows_bytes = 0;  // encoder windows before a border; 0: no snapshots
  int window = 0;
  int encoder_layers = 0;
  int ring_slots = 0;  // rows that a window ring holds
  int backtrack = 0;
  int history_tokens = 0;  // tokens before a row that a plan names
  int drafts_max = 0;      // tokens of a draft round; 0: no drafter
  bool loads_beside = false;  // forward_loading() is there
  bool leaves_cores = false;  // a step does not need the host's cores: the engine may watch for its end
  double peak_flops = 0;   // of the device, bf16 operations a second; 0: not known
  std::string checkpoint;  // digest
  std::string layout;      // name and version of the page and slot layout
  std::string kv_dtype;
  std::string numeric_class;  // backend and summation trees
  std::string placement;  // where weights beyond the device's memory are, in words; empty: all fit
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const ExecutorInfo& info() const = 0;
  // What weights on the SSD have cost so far; none where all are in memory. Any thread.
  virtual std::optional<checkpoint::StoreStats> weight_stats() const { return std::nullopt; }
  // Any thread; none where it is not counted.
  virtual std::optional<WorkStats> work_stats() const { return std::nullopt; }
  // Runs the copies in order; kSeal seals the host entry.
  virtual Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) = 0;
  virtual Status forward(const model::StepPlan& plan) = 0;
  // As forward(), with pages that may still be on their way (engine/step_loads.h): each layer's part of them is written
  // before the layer reads it. When it returns, failed or not, all of them are written, if they came.
  virtual Status forward_loading(const model::StepPlan&, StepLoads&) {
    return Status(Code::kUnsupported, "this device takes no pages while a step runs");
  }
  // Waits for the forward. `rows` logits rows in the plan's order.
  virtual Result<std::span<const float>> logits(int rows) = 0;
  // One draft round behind a forward whose logits have been read (they are gone afterwards). For every draft position
  // `choose` gets the logits [sequences, vocab] and writes a token a sequence; an empty function takes the likeliest.
  // tokens and confidence (logits of the drafter's own judgement): [sequences, plan.drafts].
  using DraftChooser = std::function<Status(int index, std::span<const float> logits, std::span<int32_t> tokens)>;
  virtual Status draft(const model::DraftPlan&, const DraftChooser&, std::span<int32_t>, std::span<float>) {
    return Status(Code::kUnsupported, "this device has no drafter");
  }
};

}  // namespace deepinfer::engine
