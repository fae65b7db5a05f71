// Number formats of the checkpoint and the caches: BF16, FP8 E4M3FN, FP4 E2M1 and the power-of-two scale UE8M0.
//
//   uint16_t h = float_to_bf16(1.0f / 3);            float x = bf16_to_float(h);
//   uint8_t c = float_to_e4m3(300.0f);               float y = e4m3_to_float(c);   // 288
//   uint8_t n = float_to_e2m1(-1.75f);               float z = e2m1_to_float(n);   // -2
//   uint8_t s = ue8m0_at_least(0.3f);                float w = ue8m0_to_float(s);  // 0.5
//
// Rules (spec/model.md 4.1, 19.4). Every encoder rounds to nearest, ties to the even code, in the default rounding
// mode.
// - BF16: overflow gives infinity, NaN stays a (quiet) NaN.
// - E4M3FN: largest 448, smallest subnormal 2^-9, no infinity. Magnitudes above 448 and infinities give 448; NaN gives
//   0x7f or 0xff; the sign of a zero, and of a value that rounds to zero, is kept (0x80).
// - E2M1: bit 3 is the sign, set when x < 0 (so -0 gives 0 and -0.1 gives 8); saturates at 6. It has no NaN: NaN
//   gives 0.
// - UE8M0: byte c is 2^(c - 127); 255 is NaN.
// double arguments are rounded to float first (E4M3, BF16), as the reference does (4.10); E2M1 compares in the given
// type.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace deepinfer::numeric {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE2m1Max = 6.0f;
inline constexpr uint8_t kUe8m0Nan = 255;

// ---- BF16 -------------------------------------------------------------------------------------------------------

inline float bf16_to_float(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

inline uint16_t float_to_bf16(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((b >> 16) | 0x40u);
  return static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

inline uint16_t double_to_bf16(double x) { return float_to_bf16(static_cast<float>(x)); }

// The nearest BF16 value as a number, with the two roundings fp64 -> fp32 -> bf16 for a double.
inline float round_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }
inline double round_bf16(double x) { return bf16_to_float(double_to_bf16(x)); }

// ---- FP8 E4M3FN -------------------------------------------------------------------------------------------------

namespace detail {

constexpr float e4m3_value(uint32_t code) {
  const uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  const uint32_t sign = (code & 0x80u) << 24;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 512.0f
                                        : std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (uint32_t c = 0; c < 256; ++c) table[c] = e4m3_value(c);
  return table;
}

}  // namespace detail

inline constexpr std::array<float, 256> kE4m3Values = detail::make_e4m3_table();

inline float e4m3_to_float(uint8_t code) { return kE4m3Values[code]; }

inline uint8_t float_to_e4m3(float x) {
  const uint32_t b = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (b >> 24) & 0x80u, a = b & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= std::bit_cast<uint32_t>(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7eu);
  if (a < std::bit_cast<uint32_t>(0.015625f)) {
    // Below 2^-6 codes are multiples of 2^-9, which is one unit in the last place of 2^14: the addition rounds.
    const float shifted = std::bit_cast<float>(a) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(16384.0f)));
  }
  const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

inline uint8_t double_to_e4m3(double x) { return float_to_e4m3(static_cast<float>(x)); }

// ---- FP4 E2M1 ---------------------------------------------------------------------------------------------------

inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float e2m1_to_float(uint8_t code) { return kE2m1Values[code & 15u]; }

namespace detail {

template <class T>
inline uint8_t to_e2m1(T x) {
  const T a = x < 0 ? -x : x;
  // Midpoints whose lower neighbour is the odd code round up (>=), the others stay (>).
  const int magnitude = (a > T(0.25)) + (a >= T(0.75)) + (a > T(1.25)) + (a >= T(1.75)) + (a > T(2.5)) + (a >= T(3.5)) +
                        (a > T(5.0));
  return static_cast<uint8_t>(magnitude | ((x < 0) << 3));
}

}  // namespace detail

inline uint8_t float_to_e2m1(float x) { return detail::to_e2m1(x); }
inline uint8_t double_to_e2m1(double x) { return detail::to_e2m1(x); }

// Two codes in a byte: the even index in the low nibble.
inline uint8_t pack_e2m1(uint8_t even, uint8_t odd) { return static_cast<uint8_t>((even & 15u) | (odd << 4)); }
inline uint8_t e2m1_low(uint8_t byte) { return byte & 15u; }
inline uint8_t e2m1_high(uint8_t byte) { return byte >> 4; }

// ---- UE8M0 ------------------------------------------------------------------------------------------------------

inline float ue8m0_to_float(uint8_t code) {
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal in fp32
  if (code == kUe8m0Nan) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// 2^(127 - c), what a division by the scale multiplies with; exact for every byte except 255.
inline float ue8m0_inverse(uint8_t code) {
  if (code == kUe8m0Nan) return std::bit_cast<float>(0x7fc00000u);
  return ue8m0_to_float(static_cast<uint8_t>(254 - code));
}

// Byte of the smallest power of two >= t, for t > 0; held within 0..254 (2^-127 .. 2^127). NaN gives 255.
inline uint8_t ue8m0_at_least(float t) {
  const uint32_t b = std::bit_cast<uint32_t>(t);
  if ((b & 0x7fffffffu) > 0x7f800000u) return kUe8m0Nan;
  if (b >> 31) return 0;
  if (b <= 0x00800000u) return b <= 0x00400000u ? 0 : 1;
  const uint32_t code = (b >> 23) + ((b & 0x7fffffu) != 0);
  return static_cast<uint8_t>(code > 254 ? 254 : code);
}

inline uint8_t ue8m0_at_least(double t) {
  const uint64_t b = std::bit_cast<uint64_t>(t);
  if ((b & 0x7fffffffffffffffu) > 0x7ff0000000000000u) return kUe8m0Nan;
  if (b >> 63) return 0;
  const int64_t code = static_cast<int64_t>(b >> 52) - 1023 + 127 + ((b & 0xfffffffffffffu) != 0);
  return static_cast<uint8_t>(code < 0 ? 0 : code > 254 ? 254 : code);
}

}  // namespace deepinfer::numeric
