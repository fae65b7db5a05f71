#include "checkpoint/name_index.h"

#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deepinfer::checkpoint {

NameIndex::NameIndex(size_t expected) : slots_(std::bit_ceil(2 * expected + 2)) {}

size_t NameIndex::slot_of(std::string_view name) const {
  const size_t mask = slots_.size() - 1;
  size_t at = XXH3_64bits(name.data(), name.size()) & mask;
  while (slots_[at].used && slots_[at].name != name) at = (at + 1) & mask;
  return at;
}

uint32_t NameIndex::insert(std::string_view name, uint32_t value) {
  Slot& slot = slots_[slot_of(name)];
  if (!slot.used) slot = {name, value, true};
  return slot.value;
}

const uint32_t* NameIndex::find(std::string_view name) const {
  const Slot& slot = slots_[slot_of(name)];
  return slot.used ? &slot.value : nullptr;
}

}  // namespace deepinfer::checkpoint
