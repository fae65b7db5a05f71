// Finds tensors by name: an open-addressing table over names that somebody else owns (internal to checkpoint/).
//
//   NameIndex index(names.size());
//   uint32_t at = index.insert(name, value);      // value, or what was there before
//   const uint32_t* value = index.find(name);     // nullptr if absent
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer::checkpoint {

class NameIndex {
 public:
  explicit NameIndex(size_t expected);

  // Keeps the first value of a name. `name` must stay valid.
  uint32_t insert(std::string_view name, uint32_t value);
  const uint32_t* find(std::string_view name) const;

 private:
  struct Slot {
    std::string_view name;
    uint32_t value = 0;
    // upper half of the hash, never 0 in a used slot: most other names are told apart without reading them
    uint32_t tag = 0;
  };
  size_t slot_of(std::string_view name, uint64_t hash) const;

  std::vector<Slot> slots_;
};

}  // namespace deepinfer::checkpoint
