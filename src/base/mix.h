// SplitMix64 (Steele, Lea and Flood 2014): numbers that look random, made of numbers that are close to each other.
//
//   const uint64_t seed_of_line = mix_seed(seed + mix_seed(line));
#pragma once

#include <cstdint>

namespace deepinfer {

// Its finaliser: one to one, 0 stays 0.
inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// What it gives first when it is seeded with x.
inline uint64_t mix_seed(uint64_t x) { return mix_bits(x + 0x9e3779b97f4a7c15); }

}  // namespace deepinfer
