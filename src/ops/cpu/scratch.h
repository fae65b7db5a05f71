// Memory of a thread for the length of a loop body; it grows to what was ever asked and is then reused, so that a step
// in the steady state allocates nothing. A slot is one array at a time: callers in one call chain use different slots.
//
//   float* keys = scratch<float>(Slot::kKeys, n * d);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer::ops::cpu {

enum class Slot : uint8_t {
  kPanel,
  kAccumulator,
  kTile,
  kInput,
  kGate,
  kUp,
  kKeys,
  kScores,
  kProbabilities,
  kOrder,
  kQueries,
  kWords,
  kCount
};

inline std::byte* scratch_bytes(Slot slot, size_t bytes) {
  thread_local std::array<std::vector<std::byte>, static_cast<size_t>(Slot::kCount)> memory;
  std::vector<std::byte>& m = memory[static_cast<size_t>(slot)];
  constexpr size_t kAlign = 64;
  if (m.size() < bytes + kAlign) m.resize(bytes + kAlign);
  const auto address = reinterpret_cast<uintptr_t>(m.data());
  return reinterpret_cast<std::byte*>((address + kAlign - 1) & ~uintptr_t{kAlign - 1});
}

template <class T>
T* scratch(Slot slot, size_t n) {
  return reinterpret_cast<T*>(scratch_bytes(slot, n * sizeof(T)));
}

}  // namespace deepinfer::ops::cpu
