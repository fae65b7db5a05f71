// The merges of a BPE model: a pair of symbols -> its rank. A perfect hash, so that a question has no branch that
// depends on the answer; most pairs that do not merge are known from a small table that stays in the near caches.
//
//   DI_ASSIGN_OR_RETURN(PairTable table, PairTable::build(pairs));     // pairs[rank] = {left, right}
//   uint32_t rank = table.find(left, right);                           // kNone if they do not merge
//
// Limits: symbols below kSymbols - 1, fewer than 2^22 pairs. A pair listed twice is an error.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer::text {

class PairTable {
 public:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr uint32_t kSymbols = 1u << 21;

  static Result<PairTable> build(const std::vector<std::pair<uint32_t, uint32_t>>& pairs);

  // A question in two steps, so that many can wait for memory together.
  struct Question {
    uint64_t key;
    size_t entry;
  };
  Question ask(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << kSymbolBits | right;
    const uint64_t hash = hash_of(key, seed_);
    const uint32_t group = groups_[hash >> shift_];
    // Entry 0 stands for no pair; the mask, not a branch, keeps pairs that the filter does not know from reading
    // another one.
    const size_t known = size_t{0} - (group >> filter_bit(hash) & 1);
    const size_t entry = slot_of(hash, group, mask_) & known;
    __builtin_prefetch(&entries_[entry]);
    return {key, entry};
  }
  uint32_t answer(Question question) const {
    const uint64_t entry = entries_[question.entry];
    return static_cast<uint32_t>(entry & ((1u << kRankBits) - 1)) |
           (0u - static_cast<uint32_t>(entry >> kRankBits != question.key));
  }
  uint32_t find(uint32_t left, uint32_t right) const { return answer(ask(left, right)); }

  // For code that asks in vectors.
  static constexpr int kSymbolBits = 21, kRankBits = 22;
  static constexpr uint32_t kMaxDisplacement =
      0xffff;  // of a group: its lower half; the upper half is the filter of its pairs
  static constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;
  struct Layout {
    const uint32_t* groups;
    const uint64_t* entries;
    uint64_t seed, mask;
    int shift;
  };
  Layout layout() const { return {groups_.data(), entries_.data(), seed_, mask_, shift_}; }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};

  static uint64_t hash_of(uint64_t key, uint64_t seed) {
    const uint64_t product = (key ^ seed) * kMultiplier;
    return product ^ product >> 32;
  }
  static uint32_t filter_bit(uint64_t hash) { return 16 + (hash & 15); }
  static size_t slot_of(uint64_t hash, uint32_t group, size_t mask) {
    return 1 + (((hash >> 4) + (group & kMaxDisplacement) * (hash >> 24 | 1)) & mask);
  }
  bool place(const std::vector<std::pair<uint32_t, uint32_t>>& pairs);

  uint64_t seed_ = 0;
  int shift_ = 63;
  size_t mask_ = 0;
  std::vector<uint32_t> groups_ = {0, 0};           // by the upper bits of the hash: displacement and filter
  std::vector<uint64_t> entries_ = {kFree, kFree};  // left, right, rank
};

}  // namespace deepinfer::text
