#include "checkpoint/name_index.h"

#include <bit>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deepinfer::checkpoint {

namespace {

uint64_t hash_of(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }
uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1u; }

}  // namespace

NameIndex::NameIndex(size_t expected) : slots_(std::bit_ceil(2 * expected + 2)) {}

size_t NameIndex::slot_of(std::string_view name, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  const uint32_t tag = tag_of(hash);
  size_t at = hash & mask;
  while (slots_[at].tag != 0 && (slots_[at].tag != tag || slots_[at].name != name)) at = (at + 1) & mask;
  return at;
}

uint32_t NameIndex::insert(std::string_view name, uint32_t value) {
  const uint64_t hash = hash_of(name);
  Slot& slot = slots_[slot_of(name, hash)];
  if (slot.tag == 0) slot = {name, value, tag_of(hash)};
  return slot.value;
}

const uint32_t* NameIndex::find(std::string_view name) const {
  const Slot& slot = slots_[slot_of(name, hash_of(name))];
  return slot.tag != 0 ? &slot.value : nullptr;
}

}  // namespace deepinfer::checkpoint
