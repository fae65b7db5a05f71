// From a StepPlan to the row sets of ops/ (internal to model/): checks the plan, flattens it, finds the decoder's rows.
//
//   BatchBuilder b(config, options);
//   DI_RETURN_IF_ERROR(b.build(plan));
//   ops.begin(ops::Rows::kEncoder, b.encoder());
//
// The arrays are reused; nothing is allocated once they have grown to the limits.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "model/step.h"
#include "ops/row_batch.h"

namespace deepinfer::model {

class BatchBuilder {
 public:
  BatchBuilder(const checkpoint::ModelConfig& config, const Options& options);

  Status build(const StepPlan& plan);
  ops::RowBatch encoder() const { return encoder_.view(); }
  ops::RowBatch decoder() const { return decoder_.view(); }

  Status build_draft(const DraftPlan& plan);
  ops::RowBatch draft() const { return draft_.view(); }

 private:
  struct Set {
    std::vector<ops::SequenceRows> sequences;
    std::vector<int32_t> blocks, tokens, positions, sequence, image_row, history, source, outputs;
    void clear();
    void reserve(int rows, int sequences, int blocks, int history);
    ops::RowBatch view() const;
  };

  Status check(const StepPlan& plan);
  Status check_sequence(const StepPlan& plan, const StepSequence& s) const;

  const checkpoint::ModelConfig& config_;
  const Options& options_;
  Set encoder_, decoder_, draft_;
  std::vector<bool> slot_used_;
};

}  // namespace deepinfer::model
