// A hash map from 64-bit keys to 32-bit values with open addressing: no allocation per entry, copied by one memcpy. No
// erasure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::grammar {

inline uint64_t mix_bits(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

class FlatMap {
 public:
  static constexpr uint64_t kNoKey = UINT64_MAX;  // may not be used as a key

  const uint32_t* find(uint64_t key) const {
    if (slots_.empty()) return nullptr;
    for (size_t i = mix_bits(key) & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == kNoKey) return nullptr;
    }
  }
  // The value under `key`, 0 if new. The reference holds until the next insertion.
  uint32_t& operator[](uint64_t key) {
    if ((used_ + 1) * 4 > slots_.size() * 3) grow();
    Slot& slot = slots_[probe(key)];
    if (slot.key == kNoKey) {
      slot.key = key;
      ++used_;
    }
    return slot.value;
  }
  void clear() {
    slots_.clear();
    used_ = 0;
  }
  size_t size() const { return used_; }
  uint64_t memory_bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint64_t key = kNoKey;
    uint32_t value = 0;
  };
  size_t probe(uint64_t key) const {
    size_t i = mix_bits(key) & (slots_.size() - 1);
    while (slots_[i].key != key && slots_[i].key != kNoKey) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  void grow() {
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(old.empty() ? 64 : old.size() * 2, Slot{});
    for (const Slot& s : old) {
      if (s.key != kNoKey) slots_[probe(s.key)] = s;
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace deepinfer::grammar
