// Everything a sequence is beyond the bytes of its blocks and slot: what preemption keeps, and later what one machine
// hands to another (design.md 3). Plain data with a stable, versioned byte form.
//
//   std::vector<std::byte> bytes = serialize(state);
//   DI_ASSIGN_OR_RETURN(SequenceState s, parse_sequence_state(bytes));
//
// Byte form, little endian: "DISQ", version u32, checksum u64 (XXH3-64 of the rest), then the fields in order; lists
// with a u32 count in front. A newer version or damaged bytes are refused (kUnsupported, kDataLoss); counts are checked
// against the bytes that are there before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/cache_key.h"

namespace deepinfer::kv {

inline constexpr uint32_t kSequenceStateVersion = 1;

// State of a part that kv knows nothing of: its owner gives it a number and its own format.
struct StateSection {
  uint32_t kind = 0;  // 1 grammar, 2 penalties, 3 detokenizer, 4 output parser
  std::vector<std::byte> bytes;
  bool operator==(const StateSection&) const = default;
};

struct SequenceState {
  int64_t id = 0;
  uint64_t seed = 0;
  uint32_t sample = 0;           // index among the answers to one prompt
  int32_t prompt_tokens = 0;
  int32_t decoder_begin = 0;     // from the original prompt, for ever
  int32_t window_begin = 0;      // encoder windows in the slot hold nothing below
  int32_t cached = 0;            // global KV below is shared and never written
  int32_t computed = 0;          // rows whose KV is in the blocks and slot
  std::vector<int32_t> tokens;   // prompt, then output
  std::vector<StateSection> sections;

  bool operator==(const SequenceState&) const = default;
};

std::vector<std::byte> serialize(const SequenceState& state);
Result<SequenceState> parse_sequence_state(std::span<const std::byte> bytes);

}  // namespace deepinfer::kv
