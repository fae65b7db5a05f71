// Encodings of pieces seen lately: a bounded cache that belongs to one thread at a time.
//
//   WordCache::Place place = cache.locate(hash);                 // asks for the memory
//   std::span<const TokenId> ids = cache.read(place, key, piece);   // later; empty: not here
//   cache.insert(hash, piece, ids);                              // ends the life of spans that read() gave
//
// Records (piece and ids) are written one after the other into a ring, over the oldest ones; a table of kSets lines of
// eight (tag, position) pairs finds them. So memory is fixed (9 MB, touched as it is used), text that comes again is
// read in the order in which it was written, and a piece is never taken for another: all bytes are compared.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "text/piece_table.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

class WordCache {
 public:
  static constexpr size_t kSets = 1 << 14, kRingWords = 1 << 21;
  static constexpr size_t kMaxBytes = 512;  // longer pieces are not kept
  static constexpr size_t kSlack = 8;       // ids that may be read past those that read() gives
  using Place = uint32_t;                   // of a record that may be the one; 0: there is none

  WordCache() : sets_(allocate<Set>(kSets)), ring_(allocate<uint32_t>(kRingWords + kSlack + kOverrun)) {}

  const void* address(uint64_t hash) const { return &set_of(hash); }
  void prefetch(uint64_t hash) const { __builtin_prefetch(address(hash)); }

  Place locate(uint64_t hash) const {
    const Set& set = set_of(hash);
    // The youngest record of that tag has the largest place; no branches, since all eight ways are as likely.
    const int32_t tag = tag_of(hash);
    Four places = larger(set.places(0) & (set.tags(0) == tag), set.places(1) & (set.tags(1) == tag));
    places = larger(places, __builtin_shuffle(places, Four{2, 3, 0, 1}));
    places = larger(places, __builtin_shuffle(places, Four{1, 0, 3, 2}));
    const Place place = static_cast<Place>(places[0]);
    if (!is_current(place)) return 0;
    __builtin_prefetch(&ring_[place % kRingWords]);
    return place;
  }

  std::span<const TokenId> read(Place place, const PieceKey& key, const char* piece) const {
    if (place == 0) return {};
    const uint32_t* const record = &ring_[place % kRingWords];
    const uint32_t count = record[0] >> 16;
    const char* const bytes = reinterpret_cast<const char*>(record + 1 + count);
    bool same = (record[0] & 0xffff) == key.size;
    if (key.size <= PieceKey::kMaxBytes) {
      const auto [low, high] = load_padded(bytes, key.size);
      same = same & (low == key.low) & (high == key.high);
    } else {
      same = same && std::memcmp(bytes, piece, key.size) == 0;
    }
    return same ? std::span(reinterpret_cast<const TokenId*>(record + 1), count) : std::span<const TokenId>();
  }

  // `ids` must be readable for kSlack ids and `piece` for PieceKey::kMaxBytes, whatever their sizes.
  void insert(uint64_t hash, std::string_view piece, std::span<const TokenId> ids) {
    if (piece.size() > kMaxBytes) return;
    const uint32_t words = static_cast<uint32_t>(1 + ids.size() + (piece.size() + 3) / 4);
    if (words > kRingWords - head_ % kRingWords)
      head_ += static_cast<uint32_t>(kRingWords - head_ % kRingWords);  // in one stretch
    if (head_ >= kLastPlace) clear();
    uint32_t* const record = &ring_[head_ % kRingWords];
    record[0] = static_cast<uint32_t>(ids.size()) << 16 | static_cast<uint32_t>(piece.size());
    copy_at_least<kSlack * sizeof(TokenId)>(record + 1, ids.data(), ids.size_bytes());
    copy_at_least<PieceKey::kMaxBytes>(record + 1 + ids.size(), piece.data(), piece.size());

    Set& set = set_of(hash);  // the youngest first, the oldest falls out
    std::memmove(set.tag + 1, set.tag, sizeof set.tag - sizeof set.tag[0]);
    std::memmove(set.place + 1, set.place, sizeof set.place - sizeof set.place[0]);
    set.tag[0] = tag_of(hash);
    set.place[0] = static_cast<int32_t>(head_);
    head_ += words;
  }

  // Forgets everything.
  void clear() {
    if (head_ < kLastPlace) {
      floor_ = head_;
      return;
    }
    std::memset(sets_.get(), 0, kSets * sizeof(Set));
    head_ = floor_ = kFirstPlace;
  }

 private:
  static constexpr int kWays = 8;
  using Four = int32_t __attribute__((vector_size(16)));
  // Places count up so that the younger of two is the larger; long before they would overflow the cache starts anew.
  static constexpr uint32_t kFirstPlace = kRingWords, kLastPlace = 0x70000000;
  struct Set {
    int32_t tag[kWays], place[kWays];
    static Four four(const int32_t* from) {
      Four values;
      std::memcpy(&values, from, sizeof values);
      return values;
    }
    Four tags(int half) const { return four(tag + half * 4); }
    Four places(int half) const { return four(place + half * 4); }
  };
  static Four larger(Four a, Four b) { return a > b ? a : b; }
  // Copies kBytes where there are not more: a copy of unknown length costs a call and a misprediction.
  template <size_t kBytes>
  static void copy_at_least(void* to, const void* from, size_t bytes) {
    if (bytes <= kBytes) {
      std::memcpy(to, from, kBytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  static constexpr uint32_t kOverrun = 8;  // words that insert() may write past a record
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
  const Set& set_of(uint64_t hash) const { return sets_[hash % kSets]; }
  Set& set_of(uint64_t hash) { return sets_[hash % kSets]; }
  static int32_t tag_of(uint64_t hash) { return static_cast<int32_t>(hash >> 32); }
  bool is_current(Place place) const { return place >= floor_ && head_ - place <= kRingWords - kOverrun; }

  std::unique_ptr<Set[], Free> sets_;
  std::unique_ptr<uint32_t[], Free> ring_;
  uint32_t head_ = kFirstPlace;   // place of the next record
  uint32_t floor_ = kFirstPlace;  // places below it are forgotten
};

}  // namespace deepinfer::text
