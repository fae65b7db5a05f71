// XXH3-64 of bytes on their way from one place to another: one pass over memory, where a copy and a checksum make two
// (internal to kv/; for files that are compiled for one instruction set).
//
// Lanes: the eight 64-bit sums of XXH3 in registers, with step(lanes, from, to, secret), scramble(lanes, secret),
// start(sums), store(lanes, sums). The algorithm is xxHash's long form (doc/xxhash_spec.md, "XXH3 Algorithm Overview",
// seed 0), with its secret; inputs of its short forms go through xxHash itself.
#pragma once

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deepinfer::kv {
namespace {

constexpr size_t kStripeBytes = 64, kSecretStep = 8, kSecretBytes = 192;
constexpr size_t kStripesABlock = (kSecretBytes - kStripeBytes) / kSecretStep;
constexpr size_t kBlockBytes = kStripesABlock * kStripeBytes;
constexpr size_t kShortBytes = 240;
// So far ahead is what comes from memory asked for; found by measurement, 2 to 8 KiB are alike.
constexpr size_t kAheadBytes = 4096;

inline uint64_t word_at(const unsigned char* p) {
  uint64_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

inline uint64_t folded_product(uint64_t a, uint64_t b) {
  const auto p = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
}

template <class Lanes>
uint64_t copy_checksum(const void* source, void* target, size_t count) {
  if (count <= kShortBytes) {
    if (count > 0) std::memcpy(target, source, count);
    return XXH3_64bits(target, count);
  }
  const unsigned char* secret = XXH3_kSecret;
  const auto* from = static_cast<const unsigned char*>(source);
  auto* to = static_cast<unsigned char*>(target);
  alignas(64) uint64_t sums[8] = {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                                  XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1};
  Lanes lanes = Lanes::start(sums);
  const unsigned char* const end = from + count;
  for (size_t left = (count - 1) / kBlockBytes; left > 0; --left) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kStripesABlock; ++i, from += kStripeBytes, to += kStripeBytes) {
      __builtin_prefetch(from + kAheadBytes);
      lanes.step(from, to, secret + i * kSecretStep);
    }
    lanes.scramble(secret + kSecretBytes - kStripeBytes);
  }
  for (size_t i = 0; from + kStripeBytes < end; ++i, from += kStripeBytes, to += kStripeBytes)
    lanes.step(from, to, secret + i * kSecretStep);
  // The last stripe ends with the input and may overlap the one before.
  lanes.step(end - kStripeBytes, static_cast<unsigned char*>(target) + count - kStripeBytes,
             secret + kSecretBytes - kStripeBytes - 7);
  lanes.store(sums);
  uint64_t h = count * XXH_PRIME64_1;
  for (size_t i = 0; i < 4; ++i) {
    const unsigned char* s = secret + 11 + 16 * i;
    h += folded_product(sums[2 * i] ^ word_at(s), sums[2 * i + 1] ^ word_at(s + 8));
  }
  h = (h ^ (h >> 37)) * 0x165667919E3779F9u;
  return h ^ (h >> 32);
}

}  // namespace
}  // namespace deepinfer::kv
