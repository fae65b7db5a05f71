#include "model/step.h"

namespace deepinfer::model {

void StepPlan::clear() {
  feeds_drafter = true;
  sequences.clear();
  tokens.clear();
  history.clear();
  blocks.clear();
  image_rows.clear();
}

void StepPlan::add_sequence(StepSequence sequence, std::span<const int32_t> tokens_in,
                            std::span<const int32_t> history_in, std::span<const int32_t> blocks_in,
                            std::span<const int32_t> image_rows_in) {
  sequence.count = static_cast<int32_t>(tokens_in.size());
  sequence.first_token = static_cast<int32_t>(tokens.size());
  sequence.first_block = static_cast<int32_t>(blocks.size());
  sequence.block_count = static_cast<int32_t>(blocks_in.size());
  sequences.push_back(sequence);
  tokens.insert(tokens.end(), tokens_in.begin(), tokens_in.end());
  history.insert(history.end(), history_in.begin(), history_in.end());
  blocks.insert(blocks.end(), blocks_in.begin(), blocks_in.end());
  if (!image_rows_in.empty()) {
    image_rows.resize(sequence.first_token, -1);
    image_rows.insert(image_rows.end(), image_rows_in.begin(), image_rows_in.end());
  } else if (!image_rows.empty()) {
    image_rows.resize(tokens.size(), -1);
  }
}

}  // namespace deepinfer::model
