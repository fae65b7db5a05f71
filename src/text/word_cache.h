// Encodings of pieces seen lately: a bounded cache that belongs to one thread at a time.
//
//   if (const auto* hit = cache.find(hash, piece)) use(hit->ids(...)); else cache.insert(hash, piece, ids);
//
// kSlots slots in sets of two, each with the piece's first bytes and ids in one cache line; what is longer lies in a ring of
// kRingWords 32-bit words that is overwritten from the oldest on. So memory is fixed (about 8 MB, touched as it is used), nothing is
// freed, and a piece is never taken for another: sizes and all bytes are compared.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "text/piece_table.h"

namespace deepinfer::text {

class WordCache {
 public:
  static constexpr size_t kSlots = 1 << 16, kRingWords = 1 << 20;
  static constexpr size_t kMaxBytes = 512;  // longer pieces are not kept

  WordCache() : slots_(allocate<Slot>(kSlots)), ring_(allocate<uint32_t>(kRingWords)) {}

  void prefetch(uint64_t hash) const {
    const Slot* const set = set_of(hash);
    __builtin_prefetch(set);
    __builtin_prefetch(set + 1);
  }

  // The ids of the piece, empty if it is not here. `low` and `high` are its first 16 bytes, padded (PieceKey), or for longer pieces
  // whatever the caller derives from the bytes, the same each time.
  std::span<const TokenId> find(const PieceKey& key, const char* piece) const {
    const Slot* slot = set_of(key.hash);
    for (int way = 0; way < kWays; ++way, ++slot) {
      if (slot->low != key.low || slot->high != key.high || slot->size != key.size || !is_current(*slot)) continue;
      if (key.size > PieceKey::kMaxBytes && std::memcmp(bytes_of(*slot), piece, key.size) != 0) continue;
      return {slot->count > kInlineIds ? reinterpret_cast<const TokenId*>(ring(*slot)) : slot->ids, slot->count};
    }
    return {};
  }

  void insert(const PieceKey& key, const char* piece, std::span<const TokenId> ids) {
    if (key.size > kMaxBytes) return;
    Slot* slot = set_of(key.hash);
    if (is_current(slot[0]) && (!is_current(slot[1]) || slot[1].stamp < slot[0].stamp)) ++slot;
    const bool ids_in_ring = ids.size() > kInlineIds, bytes_in_ring = key.size > PieceKey::kMaxBytes;
    const size_t words = (ids_in_ring ? ids.size() : 0) + (bytes_in_ring ? (key.size + 3) / 4 : 0);
    if (words > kRingWords - head_ % kRingWords) head_ += kRingWords - head_ % kRingWords;  // in one stretch
    *slot = {key.low, key.high, head_, static_cast<uint16_t>(key.size), static_cast<uint16_t>(ids.size()), {}};
    uint32_t* to = ring_.get() + head_ % kRingWords;
    if (ids_in_ring) {
      std::memcpy(to, ids.data(), ids.size_bytes());
      to += ids.size();
    } else {
      std::memcpy(slot->ids, ids.data(), ids.size_bytes());
    }
    if (bytes_in_ring) std::memcpy(to, piece, key.size);
    head_ += words == 0 ? 1 : words;  // the stamp also tells which slot of a set is older
  }

  // Forgets everything, at once.
  void clear() { floor_ = head_; }

 private:
  static constexpr int kWays = 2;
  static constexpr size_t kInlineIds = 9;
  struct Slot {
    uint64_t low, high;
    uint64_t stamp;  // words that the ring had taken when this was written
    uint16_t size, count;
    TokenId ids[kInlineIds];
  };
  static_assert(sizeof(Slot) == 64);
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  // Zeroed memory that the system gives out only when it is touched.
  template <class T>
  static std::unique_ptr<T[], Free> allocate(size_t n) {
    void* const p = std::calloc(n, sizeof(T));
    if (p == nullptr) throw std::bad_alloc();
    return std::unique_ptr<T[], Free>(static_cast<T*>(p));
  }
  const Slot* set_of(uint64_t hash) const { return &slots_[(hash >> 20) % (kSlots / kWays) * kWays]; }
  Slot* set_of(uint64_t hash) { return &slots_[(hash >> 20) % (kSlots / kWays) * kWays]; }
  bool is_current(const Slot& slot) const { return slot.stamp >= floor_ && head_ - slot.stamp <= kRingWords; }
  const uint32_t* ring(const Slot& slot) const { return ring_.get() + slot.stamp % kRingWords; }
  const uint32_t* bytes_of(const Slot& slot) const { return ring(slot) + (slot.count > kInlineIds ? slot.count : 0); }

  std::unique_ptr<Slot[], Free> slots_;
  std::unique_ptr<uint32_t[], Free> ring_;
  uint64_t head_ = 1;   // stamp 0 marks slots never written
  uint64_t floor_ = 1;  // stamps below it are forgotten
};

}  // namespace deepinfer::text
