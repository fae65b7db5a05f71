// Pieces that are exactly one token: a read-only hash table from up to 16 bytes to an id.
//
//   PieceTable table;  table.build(pieces);
//   PieceKey key = make_key(p, n);
//   size_t place = table.locate(key);            // for many keys, and only then
//   TokenId id = table.read(place, key);         // -1: not here
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/hash.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

// A piece of at most 16 bytes, padded with zeros.
struct PieceKey {
  static constexpr size_t kMaxBytes = 16;
  uint64_t low, high, hash;
  uint32_t size;
};

// The first `size` bytes (at most 16) at p, padded with zeros. Reads 16 bytes whatever the size is.
inline std::pair<uint64_t, uint64_t> load_padded(const char* p, uint32_t size) {
  using Bytes = uint64_t __attribute__((vector_size(16)));
  static constexpr auto kMasks = [] {  // 16 bytes of ones, then of zeros
    std::array<uint8_t, 32> masks{};
    for (size_t i = 0; i < 16; ++i) masks[i] = 0xff;
    return masks;
  }();
  Bytes bytes, mask;
  std::memcpy(&bytes, p, sizeof bytes);
  std::memcpy(&mask, kMasks.data() + 16 - size, sizeof mask);
  bytes &= mask;
  return {bytes[0], bytes[1]};
}

// Reads 16 bytes from p whatever the size is.
inline PieceKey make_key(const char* p, uint32_t size) {
  const auto [low, high] = load_padded(p, size);
  return {low, high, mix(low ^ 0x9e3779b97f4a7c15, high ^ 0xd6e8feb86659fd93), size};
}

class PieceTable {
 public:
  void build(const std::vector<std::pair<std::string_view, TokenId>>& pieces);
  // Where to look for the key: asks for the memory. Keys that a small filter knows not to be here share a place that is
  // always near.
  size_t locate(const PieceKey& key) const {
    const uint64_t bit = key.hash >> filter_shift_;
    const uint64_t known = uint64_t{0} - (filter_[bit / 64] >> bit % 64 & 1);
    const size_t place = ((key.hash & mask_) + 1) & known;
    __builtin_prefetch(&buckets_[place]);
    return place;
  }
  // The id, or -1.
  TokenId read(size_t place, const PieceKey& key) const {
    const Bucket& bucket = buckets_[place];
    const uint32_t hits = bucket.hits(key);
    // One rare branch: whether there is a hit is as good as random.
    if (__builtin_expect(static_cast<uint32_t>(hits == 0) & bucket.may_lie_further(key), 0))
      return read_further(place, key);
    return bucket.id[std::countr_zero(hits | 1u << (kWays - 1))] | -static_cast<TokenId>(hits == 0);
  }

 private:
  static constexpr uint32_t kWays = 3;
  struct alignas(64) Bucket {
    uint64_t low[kWays] = {}, high[kWays] = {};
    uint8_t size[kWays] = {};  // 0 is free
    uint8_t overflowed = 0;    // one bit for each kind of keys that belong here of which one lies further on
    TokenId id[kWays] = {};

    static uint32_t kind(const PieceKey& key) { return key.hash >> 40 & 7; }
    uint32_t may_lie_further(const PieceKey& key) const { return uint32_t{overflowed} >> kind(key) & 1; }
    // One bit per way that holds the key.
    uint32_t hits(const PieceKey& key) const {
      uint32_t bits = 0;
#pragma GCC unroll 3
      for (uint32_t i = 0; i < kWays; ++i) {
        bits |= static_cast<uint32_t>(((low[i] ^ key.low) | (high[i] ^ key.high) | (size[i] ^ key.size)) == 0) << i;
      }
      return bits;
    }
  };
  static_assert(sizeof(Bucket) == 64);
  TokenId read_further(size_t place, const PieceKey& key) const;

  std::vector<Bucket> buckets_ = std::vector<Bucket>(2);  // the first one stays empty
  uint64_t mask_ = 0;
  std::vector<uint64_t> filter_ = {0};
  int filter_shift_ = 58;
};

}  // namespace deepinfer::text
