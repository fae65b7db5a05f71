// A model of hashes that has V4.1-Flash's memory: global KV in blocks, encoder and decoder windows in rings of a slot,
// and a decoder half that begins somewhere. Every value it computes depends on all that a real row would read, THROUGH
// the block table and the ring slots, so that a wrong table, a stale window, a late write or a wrong decoder_begin
// changes tokens.
//
//   FakeMemory memory(shape, blocks, slots);
//   uint64_t logits = memory.run_row(step_sequence, position, token, history, table);
//   solo_tokens(shape, prompt, decoder_begin, ...)  // the same over plain arrays: what every sequence must give
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/step.h"

namespace deepinfer::sim {

struct FakeShape {
  int block_tokens = 8;
  int window = 4;
  int encoder_layers = 2;
  int ring_slots = 8;
  int history = 3;
  int vocabulary = 60;
};

inline constexpr int32_t kStopToken = 0;
inline constexpr int32_t kNoToken = INT32_MIN;

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ (x >> 29);
}

inline int32_t draw(uint64_t logits, uint64_t seed, uint32_t sample, const FakeShape& shape) {
  return static_cast<int32_t>(mix(mix(logits, seed), sample) % static_cast<uint64_t>(shape.vocabulary));
}

class FakeMemory {
 public:
  FakeMemory(const FakeShape& shape, int blocks, int slots);

  // Runs one row through the encoder half and, from decoder_begin on, the decoder half. `history`: tokens before it,
  // newest first. Returns the row's "logits" (0 below decoder_begin).
  uint64_t run_row(const model::StepSequence& s, int position, int32_t token, std::span<const int32_t> history,
                   std::span<const int32_t> table);

  void poison_block(int block);
  void poison_slot(int slot);
  std::span<uint64_t> block(int b) {
    return std::span(blocks_).subspan(static_cast<size_t>(b) * shape_.block_tokens, shape_.block_tokens);
  }
  std::span<uint64_t> slot(int s) { return std::span(slots_).subspan(s * slot_words(), slot_words()); }
  size_t slot_words() const { return static_cast<size_t>(shape_.encoder_layers + 1) * shape_.ring_slots; }
  // Encoder windows of rows [border - (window - 1), border), packed by layer.
  void save_windows(int slot, int border, std::span<uint64_t> out);
  void load_windows(int slot, int border, std::span<const uint64_t> in);
  size_t windows_words() const { return static_cast<size_t>(shape_.encoder_layers) * (shape_.window - 1); }

 private:
  uint64_t& ring(int slot, int layer, int position) {
    return slots_[slot * slot_words() + static_cast<size_t>(layer) * shape_.ring_slots + position % shape_.ring_slots];
  }
  uint64_t global(std::span<const int32_t> table, int position) const {
    return blocks_[static_cast<size_t>(table[position / shape_.block_tokens]) * shape_.block_tokens +
                   position % shape_.block_tokens];
  }

  const FakeShape shape_;
  std::vector<uint64_t> blocks_, slots_;
  uint64_t poison_ = 1;
};

// What a sequence gives when it runs alone, cold, without blocks, rings or a scheduler.
std::vector<int32_t> solo_tokens(const FakeShape& shape, std::span<const int32_t> prompt, int decoder_begin,
                                 uint64_t seed, uint32_t sample, int max_output);

}  // namespace deepinfer::sim
