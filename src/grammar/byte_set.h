// A set of bytes: 256 bits.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace deepinfer::grammar {

struct ByteSet {
  std::array<uint64_t, 4> words{};

  static constexpr ByteSet all() { return {{~0ull, ~0ull, ~0ull, ~0ull}}; }
  static constexpr ByteSet one(uint8_t b) {
    ByteSet s;
    s.add(b);
    return s;
  }
  constexpr void add(uint8_t b) { words[b >> 6] |= 1ull << (b & 63); }
  constexpr void remove(uint8_t b) { words[b >> 6] &= ~(1ull << (b & 63)); }
  constexpr void add_range(uint8_t first, uint8_t last) {
    for (unsigned b = first; b <= last; ++b) add(static_cast<uint8_t>(b));
  }
  constexpr bool has(uint8_t b) const { return words[b >> 6] >> (b & 63) & 1; }
  constexpr bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  constexpr int size() const {
    return std::popcount(words[0]) + std::popcount(words[1]) + std::popcount(words[2]) + std::popcount(words[3]);
  }
  constexpr ByteSet operator&(const ByteSet& o) const {
    return {{words[0] & o.words[0], words[1] & o.words[1], words[2] & o.words[2], words[3] & o.words[3]}};
  }
  constexpr ByteSet operator|(const ByteSet& o) const {
    return {{words[0] | o.words[0], words[1] | o.words[1], words[2] | o.words[2], words[3] | o.words[3]}};
  }
  constexpr ByteSet operator~() const { return {{~words[0], ~words[1], ~words[2], ~words[3]}}; }
  constexpr bool operator==(const ByteSet&) const = default;

  // Calls f(byte) in ascending order.
  template <class F>
  void for_each(F&& f) const {
    for (int w = 0; w < 4; ++w) {
      for (uint64_t bits = words[w]; bits != 0; bits &= bits - 1)
        f(static_cast<uint8_t>(w * 64 + std::countr_zero(bits)));
    }
  }
};

}  // namespace deepinfer::grammar
