// Values of the stored codes, for the oracles of the CUDA tests, which plain nvcc builds without the rooms.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace check {

inline float bf16_value(uint16_t b) {
  const uint32_t u = static_cast<uint32_t>(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t bf16_bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline double e4m3_value(uint8_t c) {
  const int e = (c >> 3) & 15, m = c & 7;
  const double v = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return c & 0x80 ? -v : v;
}
inline double e2m1_value(int c) {
  static const double v[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return c & 8 ? -v[c & 7] : v[c & 7];
}

}  // namespace check
