// Hashing of short byte strings for the tables of this room. Not for anything that leaves the process.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace deepinfer::text {

inline uint64_t load_u64(const char* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Folds the 128-bit product: every input bit reaches the low and the high bits of the result.
inline uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t k0 = 0x9e3779b97f4a7c15, k1 = 0xd6e8feb86659fd93;
  const char* p = bytes.data();
  size_t n = bytes.size();
  uint64_t hash = n * k1;
  for (; n >= 16; p += 16, n -= 16) hash = mix(load_u64(p) ^ k0 ^ hash, load_u64(p + 8) ^ k1);
  uint64_t low = 0, high = 0;
  std::memcpy(&low, p, n < 8 ? n : 8);
  if (n > 8) std::memcpy(&high, p + 8, n - 8);
  return mix(low ^ k0 ^ hash, high ^ k1);
}

}  // namespace deepinfer::text
