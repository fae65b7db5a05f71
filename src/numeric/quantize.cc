#include "numeric/quantize.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "numeric/formats.h"

namespace deepinfer::numeric {
namespace {

template <class T>
T max_magnitude(const T* x, size_t n) {
  T amax = 0;
  for (size_t i = 0; i < n; ++i) amax = std::max(amax, std::abs(x[i]));  // a NaN compares false and is passed over
  return amax;
}

inline uint8_t to_e4m3(float x) { return float_to_e4m3(x); }
inline uint8_t to_e4m3(double x) { return double_to_e4m3(x); }

// The three formats differ in group, scale, and code; the loops over groups are shared.
struct Fq8 {
  static constexpr size_t kGroup = kFq8Group;
  static constexpr bool kPacked = false;
  template <class T>
  static uint8_t scale(const T* x) {
    // The floor and the product are fp32 operations by definition (4.2).
    const float amax = std::max(static_cast<float>(max_magnitude(x, kGroup)), 1e-4f);
    return ue8m0_at_least(amax * (1.0f / 448.0f));
  }
  template <class T>
  static void encode(const T* x, uint8_t scale, uint8_t* codes) {
    const T inverse = ue8m0_inverse(scale);  // a power of two: the product is the exact quotient
    for (size_t i = 0; i < kGroup; ++i) codes[i] = to_e4m3(x[i] * inverse);
  }
  template <class T>
  static void decode(const uint8_t* codes, uint8_t scale, T* x) {
    const T s = ue8m0_to_float(scale);
    for (size_t i = 0; i < kGroup; ++i) x[i] = e4m3_to_float(codes[i]) * s;
  }
};

template <size_t N, class T>
void unpack(const uint8_t* codes, T s, T* x) {
  for (size_t i = 0; i < N; i += 2) {
    x[i] = e2m1_to_float(e2m1_low(codes[i / 2])) * s;
    x[i + 1] = e2m1_to_float(e2m1_high(codes[i / 2])) * s;
  }
}

struct Fq4k {
  static constexpr size_t kGroup = kFq4kGroup;
  static constexpr bool kPacked = true;
  template <class T>
  static uint8_t scale(const T* x) {
    const T amax = std::max(max_magnitude(x, kGroup), T(6.0 / 512));
    return to_e4m3(std::min(amax / T(6), T(kE4m3Max)));
  }
  template <class T>
  static void encode(const T* x, uint8_t scale, uint8_t* codes) {
    const T s = e4m3_to_float(scale);  // a true division: quotients fall on ties of e2m1 (4.3)
    for (size_t i = 0; i < kGroup; i += 2) {
      codes[i / 2] = pack_e2m1(detail::to_e2m1<T>(x[i] / s), detail::to_e2m1<T>(x[i + 1] / s));
    }
  }
  template <class T>
  static void decode(const uint8_t* codes, uint8_t scale, T* x) {
    unpack<kGroup, T>(codes, e4m3_to_float(scale), x);
  }
};

struct Fq4i {
  static constexpr size_t kGroup = kFq4iGroup;
  static constexpr bool kPacked = true;
  template <class T>
  static uint8_t scale(const T* x) {
    constexpr T kFloor = T(6.0 * 0x1p-126);
    return ue8m0_at_least(std::max(max_magnitude(x, kGroup), kFloor) / T(6));
  }
  template <class T>
  static void encode(const T* x, uint8_t scale, uint8_t* codes) {
    const T inverse = ue8m0_inverse(scale);
    for (size_t i = 0; i < kGroup; i += 2) {
      codes[i / 2] = pack_e2m1(detail::to_e2m1<T>(x[i] * inverse), detail::to_e2m1<T>(x[i + 1] * inverse));
    }
  }
  template <class T>
  static void decode(const uint8_t* codes, uint8_t scale, T* x) {
    unpack<kGroup, T>(codes, ue8m0_to_float(scale), x);
  }
};

template <class F>
constexpr size_t code_bytes(size_t channels) {
  return F::kPacked ? channels / 2 : channels;
}

template <class F, class T>
void encode(std::span<const T> x, uint8_t* codes, uint8_t* scales) {
  assert(x.size() % F::kGroup == 0);
  for (size_t g = 0; g < x.size() / F::kGroup; ++g) {
    const T* group = x.data() + g * F::kGroup;
    scales[g] = F::scale(group);
    F::encode(group, scales[g], codes + g * code_bytes<F>(F::kGroup));
  }
}

template <class F, class T>
void decode(const uint8_t* codes, const uint8_t* scales, std::span<T> x) {
  assert(x.size() % F::kGroup == 0);
  for (size_t g = 0; g < x.size() / F::kGroup; ++g) {
    F::decode(codes + g * code_bytes<F>(F::kGroup), scales[g], x.data() + g * F::kGroup);
  }
}

template <class F, class T>
void in_place(std::span<T> x) {
  assert(x.size() % F::kGroup == 0);
  std::array<uint8_t, code_bytes<F>(F::kGroup)> codes;
  for (size_t g = 0; g < x.size() / F::kGroup; ++g) {
    T* group = x.data() + g * F::kGroup;
    const uint8_t scale = F::scale(group);
    F::encode(group, scale, codes.data());
    F::decode(codes.data(), scale, group);
  }
}

}  // namespace

uint8_t fq8_scale(std::span<const float> group) { return Fq8::scale(group.data()); }
uint8_t fq8_scale(std::span<const double> group) { return Fq8::scale(group.data()); }
uint8_t fq4k_scale(std::span<const float> group) { return Fq4k::scale(group.data()); }
uint8_t fq4k_scale(std::span<const double> group) { return Fq4k::scale(group.data()); }
uint8_t fq4i_scale(std::span<const float> group) { return Fq4i::scale(group.data()); }
uint8_t fq4i_scale(std::span<const double> group) { return Fq4i::scale(group.data()); }

void fq8_encode(std::span<const float> x, uint8_t* codes, uint8_t* scales) { encode<Fq8>(x, codes, scales); }
void fq8_encode(std::span<const double> x, uint8_t* codes, uint8_t* scales) { encode<Fq8>(x, codes, scales); }
void fq4k_encode(std::span<const float> x, uint8_t* codes, uint8_t* scales) { encode<Fq4k>(x, codes, scales); }
void fq4k_encode(std::span<const double> x, uint8_t* codes, uint8_t* scales) { encode<Fq4k>(x, codes, scales); }
void fq4i_encode(std::span<const float> x, uint8_t* codes, uint8_t* scales) { encode<Fq4i>(x, codes, scales); }
void fq4i_encode(std::span<const double> x, uint8_t* codes, uint8_t* scales) { encode<Fq4i>(x, codes, scales); }

void fq8_decode(const uint8_t* codes, const uint8_t* scales, std::span<float> x) { decode<Fq8>(codes, scales, x); }
void fq8_decode(const uint8_t* codes, const uint8_t* scales, std::span<double> x) { decode<Fq8>(codes, scales, x); }
void fq4k_decode(const uint8_t* codes, const uint8_t* scales, std::span<float> x) { decode<Fq4k>(codes, scales, x); }
void fq4k_decode(const uint8_t* codes, const uint8_t* scales, std::span<double> x) { decode<Fq4k>(codes, scales, x); }
void fq4i_decode(const uint8_t* codes, const uint8_t* scales, std::span<float> x) { decode<Fq4i>(codes, scales, x); }
void fq4i_decode(const uint8_t* codes, const uint8_t* scales, std::span<double> x) { decode<Fq4i>(codes, scales, x); }

void fq8(std::span<float> x) { in_place<Fq8>(x); }
void fq8(std::span<double> x) { in_place<Fq8>(x); }
void fq4k(std::span<float> x) { in_place<Fq4k>(x); }
void fq4k(std::span<double> x) { in_place<Fq4k>(x); }
void fq4i(std::span<float> x) { in_place<Fq4i>(x); }
void fq4i(std::span<double> x) { in_place<Fq4i>(x); }

}  // namespace deepinfer::numeric
