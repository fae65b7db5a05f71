// From a StepPlan to the row sets of ops/ (internal to model/): checks the plan, flattens it, finds the decoder's rows.
//
//   BatchBuilder b(config, options, ops.drops_rows());
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
  // drops_rows: of the backend (ops/ops.h).
  BatchBuilder(const checkpoint::ModelConfig& config, const Options& options, bool drops_rows);

  Status build(const StepPlan& plan);
  ops::RowBatch encoder() const { return encoder_.view(); }
  ops::RowBatch decoder() const { return decoder_.view(); }

  // The rows that an encoder layer has anything to make of: those whose input is right where the windows of rows behind
  // want it. False: all of the layer before it. To be asked layer by layer; encoder() stays the first layer's.
  bool narrow(int layer);
  bool narrows() const { return narrows_; }  // whether narrow() is to be asked
  std::span<const ops::SequenceRows> narrowed() const { return narrowed_; }
  std::span<const int32_t> narrowed_source() const { return narrowed_source_; }  // in the layer before

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
  int32_t left_out(const ops::SequenceRows& rows, int32_t exact_begin, int layer) const;

  const checkpoint::ModelConfig& config_;
  const Options& options_;
  Set encoder_, decoder_, draft_;
  std::vector<bool> slot_used_;
  const bool drops_rows_;
  bool narrows_ = false;
  std::vector<int32_t> exact_begin_;         // of the encoder set's sequences
  std::vector<ops::SequenceRows> narrowed_;  // of the layer asked last
  std::vector<int32_t> narrowed_source_;
};

}  // namespace deepinfer::model
