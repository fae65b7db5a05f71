// model::Model as a SequenceModel: one state slot, pages for the whole context, one sequence at a time.
//
//   DI_ASSIGN_OR_RETURN(auto model, SingleSequence::create(checkpoint, ops::make_plain_ops(threads), context));
//   Generator generator(*model);
//
// create() compares what it is going to allocate with the memory there is and refuses with kResourceExhausted, saying
// both. Weights stay mapped files and are not part of that sum.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "engine/generator.h"
#include "model/sequence.h"

namespace deepinfer::checkpoint {
class Checkpoint;
}
namespace deepinfer::ops {
class Ops;
}

namespace deepinfer::engine {

class SingleSequence : public SequenceModel {
 public:
  static constexpr int kRowsMax = 256;   // tokens of one forward
  static constexpr int kBacktrack = 12;  // keep = window + 12

  // context: positions, at most the config's max_position_embeddings.
  static Result<std::unique_ptr<SingleSequence>> create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                        std::unique_ptr<ops::Ops> ops, int64_t context);
  ~SingleSequence() override;

  int64_t vocab_size() const override;
  int64_t context_max() const override { return context_; }
  int64_t rows_max() const override { return kRowsMax; }
  int64_t keep() const override;
  Status forward(std::span<const int32_t> tokens, int64_t position, int64_t decoder_begin,
                 std::span<float> logits) override;

 private:
  SingleSequence();

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::KvAllocator> kv_;
  std::optional<model::Sequence> sequence_;  // ends before what it stands on
  int64_t context_ = 0;
  std::vector<float> row_;
};

}  // namespace deepinfer::engine
