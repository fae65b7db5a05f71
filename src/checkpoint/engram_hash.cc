#include "checkpoint/engram_hash.h"

#include <array>
#include <bit>
#include <cstddef>

namespace deepinfer::checkpoint {
namespace {

using uint128 = unsigned __int128;

bool is_prime(int64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (int64_t k = 3; k * k <= n; k += 2) {
    if (n % k == 0) return false;
  }
  return true;
}

// One running hash of SeedSequence: each call folds a word in and moves the constant on.
struct SeedHash {
  uint32_t constant;
  uint32_t step;
  uint32_t operator()(uint32_t v) {
    v ^= constant;
    constant *= step;
    v *= constant;
    return v ^ (v >> 16);
  }
};

std::array<uint64_t, 4> seed_words(uint32_t seed) {
  SeedHash hash{0x43b0d7e5u, 0x931e8875u};
  std::array<uint32_t, 4> pool{};
  for (size_t i = 0; i < 4; ++i) pool[i] = hash(i == 0 ? seed : 0);
  for (size_t src = 0; src < 4; ++src) {
    for (size_t dst = 0; dst < 4; ++dst) {
      if (src == dst) continue;
      const uint32_t r = 0xca01f9ddu * pool[dst] - 0x4973f715u * hash(pool[src]);
      pool[dst] = r ^ (r >> 16);
    }
  }
  SeedHash output{0x8b51f9ddu, 0x58f38dedu};
  std::array<uint32_t, 8> half{};
  for (size_t i = 0; i < 8; ++i) half[i] = output(pool[i % 4]);
  std::array<uint64_t, 4> words{};
  for (size_t k = 0; k < 4; ++k) words[k] = half[2 * k] | static_cast<uint64_t>(half[2 * k + 1]) << 32;
  return words;
}

constexpr uint128 pair(uint64_t high, uint64_t low) { return static_cast<uint128>(high) << 64 | low; }

constexpr uint128 kMultiplier = pair(2549297995355413924u, 4865540595714422341u);

}  // namespace

NumpyRng::NumpyRng(uint32_t seed) {
  const std::array<uint64_t, 4> w = seed_words(seed);
  increment_ = pair(w[2], w[3]) << 1 | 1;
  state_ = increment_;  // one step from 0
  state_ += pair(w[0], w[1]);
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyRng::next() {
  state_ = state_ * kMultiplier + increment_;
  const uint64_t high = static_cast<uint64_t>(state_ >> 64), low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint64_t NumpyRng::below(uint64_t bound) {
  const uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound
  for (;;) {
    const uint128 m = static_cast<uint128>(next()) * bound;
    if (static_cast<uint64_t>(m) >= threshold) return static_cast<uint64_t>(m >> 64);
  }
}

std::vector<std::vector<int64_t>> engram_primes(int64_t layers, int64_t ngrams, int64_t heads, int64_t start) {
  // A row that starts again at `start` passes over used primes only until it is past all of them, so one walk serves
  // every row.
  std::vector<std::vector<int64_t>> result(static_cast<size_t>(layers));
  int64_t p = start - 1;
  for (std::vector<int64_t>& row : result) {
    for (int64_t column = 0; column < ngrams * heads; ++column) {
      do ++p;
      while (!is_prime(p));
      row.push_back(p);
    }
  }
  return result;
}

std::vector<int64_t> engram_multipliers(int64_t layer, int64_t classes, int64_t count) {
  NumpyRng rng(static_cast<uint32_t>(10007 * layer));
  const uint64_t bound = static_cast<uint64_t>(INT64_MAX) / static_cast<uint64_t>(classes) / 2;
  std::vector<int64_t> multipliers;
  for (int64_t i = 0; i < count; ++i) multipliers.push_back(static_cast<int64_t>(2 * rng.below(bound) + 1));
  return multipliers;
}

}  // namespace deepinfer::checkpoint
