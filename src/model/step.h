// What one step of the engine runs: the contract between policy (sched) and execution (design.md 3). Plain data, no
// pointers: it can be printed, stored, replayed and, in the simulator, costed. A StepPlan object is reused; its vectors
// keep their memory.
//
//   StepPlan plan;
//   plan.add_sequence({.slot = 1, .kind = RowKind::kPrefill, .outputs = 1}, tokens, history, blocks);
//   DI_RETURN_IF_ERROR(model.forward(plan));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::model {

enum class RowKind : uint8_t { kPrefill, kDecode, kVerify };

// Rows of one sequence: positions first_position .. first_position + count - 1.
struct StepSequence {
  int64_t id = 0;    // the engine's name for it; not used by the model
  int32_t slot = 0;  // state slot
  int32_t first_position = 0;
  int32_t count = 0;
  RowKind kind = RowKind::kDecode;
  int32_t decoder_begin = 0;  // fixed at admission (design.md 6): rows below run the encoder half only
  int32_t draft_begin = 0;    // the drafter's rings hold nothing below, these rows counted in; not used by forward()
  int32_t window_begin = 0;   // encoder windows hold nothing below: the first replayed row after a prefix hit, else 0
  int32_t exact_begin = 0;  // rows below run for the windows of those behind alone, so that a layer may leave out those
                            // of which it would make nothing right; bits are the same without (not in traces)
  int32_t cached = 0;       // global KV of tokens below came from a cache and is never written; a multiple of the page
  int32_t outputs = 0;      // logits of the last `outputs` rows; those must be at or behind decoder_begin
  int32_t first_token = 0;  // in StepPlan::tokens
  int32_t first_block = 0;  // in StepPlan::blocks
  int32_t block_count = 0;  // pages of tokens 0 .. first_position + count - 1
};

// Tokens: an id, or a negative reference to a value on the device (ops/row_batch.h). `history` holds, a sequence, the
// engram_max_ngram_size - 1 tokens before first_position, newest first, kNoToken where there is none or an image
// position.
struct StepPlan {
  int64_t step = 0;
  bool feeds_drafter = true;  // its rows enter the drafter's rings; without a drafter at work that is time for nothing
  std::vector<StepSequence> sequences;
  std::vector<int32_t> tokens;
  std::vector<int32_t> history;
  std::vector<int32_t> blocks;
  std::vector<int32_t> image_rows;  // a token each: row of Role::kImageRows, or -1; empty: all text

  void clear();
  // Appends a sequence; first_token, first_block, block_count and count are taken from the spans.
  void add_sequence(StepSequence sequence, std::span<const int32_t> tokens, std::span<const int32_t> history,
                    std::span<const int32_t> blocks, std::span<const int32_t> image_rows = {});
};

// One DSpark round (spec/model.md 11.3): every sequence has committed positions 0..position and the token at position
// + 1.
struct DraftSequence {
  int64_t id = 0;
  int32_t slot = 0;
  int32_t position = 0;       // last committed position
  int32_t decoder_begin = 0;  // the rings hold nothing below
  int32_t token = 0;  // token at position + 1, or a device reference
};

struct DraftPlan {
  int32_t drafts = 0;  // tokens to propose, 1 .. the config's block size; the same for all
  std::vector<DraftSequence> sequences;
};

}  // namespace deepinfer::model
