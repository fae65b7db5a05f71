#include "text/pair_table.h"

#include <algorithm>
#include <bit>

namespace deepinfer::text {

Result<PairTable> PairTable::build(const std::vector<std::pair<uint32_t, uint32_t>>& pairs) {
  constexpr int kSeeds = 32;
  PairTable table;
  for (int attempt = 0; attempt < kSeeds; ++attempt) {
    table.seed_ = 0x2545f4914f6cdd1d * static_cast<uint64_t>(attempt);
    if (table.place(pairs)) return table;
  }
  // With distinct pairs a seed hardly ever fails, so a pair is listed twice.
  std::vector<std::pair<std::pair<uint32_t, uint32_t>, size_t>> sorted;
  for (size_t rank = 0; rank < pairs.size(); ++rank) sorted.push_back({pairs[rank], rank});
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].first == sorted[i - 1].first) {
      return make_error(Code::kInvalidArgument, "tokenizer.json: model.merges[{}] is the same as model.merges[{}]",
                        sorted[i].second, sorted[i - 1].second);
    }
  }
  return make_error(Code::kInternal, "the merges of tokenizer.json do not fit a hash table");
}

// Groups of about four pairs share a displacement; the largest groups choose first.
bool PairTable::place(const std::vector<std::pair<uint32_t, uint32_t>>& pairs) {
  const size_t groups = std::bit_ceil(std::max<size_t>(pairs.size() / 4, 2));
  shift_ = 64 - std::countr_zero(groups);
  groups_.assign(groups, 0);
  mask_ = std::bit_ceil(pairs.size() + pairs.size() / 3 + 16) - 1;
  entries_.assign(2 + mask_, kFree);

  std::vector<uint32_t> begin(groups + 1, 0), members(pairs.size());
  std::vector<uint64_t> hashes(pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    hashes[i] = hash_of(uint64_t{pairs[i].first} << kSymbolBits | pairs[i].second, seed_);
    ++begin[(hashes[i] >> shift_) + 1];
  }
  size_t largest = 0;
  for (size_t g = 0; g < groups; ++g) {
    largest = std::max<size_t>(largest, begin[g + 1]);
    begin[g + 1] += begin[g];
  }
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (size_t i = 0; i < pairs.size(); ++i) members[next[hashes[i] >> shift_]++] = static_cast<uint32_t>(i);

  std::vector<std::vector<uint32_t>> by_size(largest + 1);
  for (size_t g = 0; g < groups; ++g) by_size[begin[g + 1] - begin[g]].push_back(static_cast<uint32_t>(g));
  std::vector<size_t> slots;
  for (size_t size = largest; size > 0; --size) {
    for (const uint32_t g : by_size[size]) {
      bool placed = false;
      for (uint32_t displacement = 0; displacement <= kMaxDisplacement && !placed; ++displacement) {
        slots.clear();
        for (uint32_t i = begin[g]; i < begin[g + 1]; ++i) {
          const size_t slot = slot_of(hashes[members[i]], displacement, mask_);
          if (entries_[slot] != kFree || std::find(slots.begin(), slots.end(), slot) != slots.end()) break;
          slots.push_back(slot);
        }
        placed = slots.size() == size;
        groups_[g] = displacement;
      }
      if (!placed) return false;
      for (size_t i = 0; i < size; ++i) {
        const uint32_t rank = members[begin[g] + i];
        entries_[slots[i]] = (uint64_t{pairs[rank].first} << kSymbolBits | pairs[rank].second) << kRankBits | rank;
        groups_[g] |= uint32_t{1} << filter_bit(hashes[rank]);
      }
    }
  }
  return true;
}

}  // namespace deepinfer::text
