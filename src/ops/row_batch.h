// The rows of one step as a backend sees them: plain arrays, filled by model/ from a StepPlan, copied by Ops::begin.
//
// A step has up to two row sets. The encoder set holds every row of the step. The decoder set holds those at or behind
// their sequence's decoder_begin (spec/model.md 15.3), in the same order; in a decode step both hold all rows. A draft
// round has one set of its own. Rows of a sequence are consecutive and have consecutive positions.
#pragma once

#include <climits>
#include <cstdint>
#include <span>

namespace deepinfer::ops {

enum class Rows : uint8_t { kEncoder, kDecoder, kDraft };
inline constexpr int kRowSets = 3;

// In token lists: before the start, or a position of an image span. Both are Engram's pad class (10.2).
inline constexpr int32_t kNoToken = INT32_MIN;
// Other negative tokens stand for values that only the device knows: -1 - i is element i of Role::kFeedback.

struct SequenceRows {
  int32_t slot = 0;       // state slot
  int32_t first_row = 0;  // in the set's rows
  int32_t rows = 0;
  int32_t first_position = 0;
  int32_t window_begin = 0;  // no window keys below: decoder_begin, or where an encoder replay began
  int32_t cached = 0;        // global KV of tokens below was there before: never written
  int32_t first_block = 0;   // in `blocks`
  int32_t block_count = 0;   // pages of tokens 0 .. first_position + rows - 1
};

struct RowBatch {
  int32_t rows = 0;
  std::span<const SequenceRows> sequences;
  std::span<const int32_t> blocks;     // page ids of all sequences, in token order each
  std::span<const int32_t> tokens;     // [rows]
  std::span<const int32_t> positions;  // [rows]
  std::span<const int32_t> sequence;   // [rows] index into `sequences`
  std::span<const int32_t>
      image_row;  // [rows] row of Role::kImageRows instead of the embedding; -1 text. Empty: all text
  std::span<const int32_t>
      history;  // [sequences, n-gram - 1] tokens before first_position, newest first. Encoder set only
  std::span<const int32_t> source;   // [rows] row of the encoder set. Decoder set only
  std::span<const int32_t> outputs;  // rows whose logits are wanted, ascending. Decoder set only
};

}  // namespace deepinfer::ops
