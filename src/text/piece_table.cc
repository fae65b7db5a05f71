#include "text/piece_table.h"

#include <algorithm>
#include <cstring>

namespace deepinfer::text {

TokenId PieceTable::read_further(size_t place, const PieceKey& key) const {
  while (true) {
    const uint32_t hits = buckets_[place].hits(key);
    if (hits != 0) return buckets_[place].id[std::countr_zero(hits)];
    if (!buckets_[place].may_lie_further(key)) return -1;
    place = place == buckets_.size() - 1 ? 1 : place + 1;
  }
}

void PieceTable::build(const std::vector<std::pair<std::string_view, TokenId>>& pieces) {
  const size_t home_buckets = std::bit_ceil(std::max<size_t>(pieces.size() / 2, 16));
  buckets_.assign(1 + home_buckets, Bucket{});
  mask_ = home_buckets - 1;
  const int filter_bits = std::max<int>(std::bit_width(4 * pieces.size()), 6);
  filter_.assign(size_t{1} << (filter_bits - 6), 0);
  filter_shift_ = 64 - filter_bits;
  for (const auto& [piece, id] : pieces) {
    char padded[PieceKey::kMaxBytes] = {};
    std::memcpy(padded, piece.data(), piece.size());
    const PieceKey key = make_key(padded, static_cast<uint32_t>(piece.size()));
    const uint64_t bit = key.hash >> filter_shift_;
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
    for (uint64_t at = key.hash & mask_;; at = (at + 1) & mask_) {
      Bucket& bucket = buckets_[1 + at];
      const auto free = std::find(bucket.size, bucket.size + kWays, uint8_t{0});
      if (free == bucket.size + kWays) {
        bucket.overflowed |= static_cast<uint8_t>(1u << Bucket::kind(key));
        continue;
      }
      const size_t i = static_cast<size_t>(free - bucket.size);
      bucket.low[i] = key.low;
      bucket.high[i] = key.high;
      bucket.id[i] = id;
      bucket.size[i] = static_cast<uint8_t>(key.size);
      break;
    }
  }
}

}  // namespace deepinfer::text
