#include "numeric/formats.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "numeric/dtype.h"

namespace deepinfer::numeric {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float up(float x) { return std::nextafterf(x, kInf); }
float down(float x) { return std::nextafterf(x, -kInf); }

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

TEST(E4m3, EveryCodeHasItsValueAndComesBack) {
  for (int c = 0; c < 256; ++c) {
    const int exponent = (c >> 3) & 15, mantissa = c & 7;
    const float sign = c & 128 ? -1.0f : 1.0f;
    const float got = e4m3_to_float(static_cast<uint8_t>(c));
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(got));
      EXPECT_EQ(float_to_e4m3(got), c);
      continue;
    }
    const double want = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(bits(got), bits(sign * static_cast<float>(want))) << c;
    EXPECT_EQ(float_to_e4m3(got), c);
    EXPECT_EQ(double_to_e4m3(got), c);
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
}

TEST(E4m3, EveryTieGoesToTheEvenCodeAndItsNeighboursDoNot) {
  for (uint8_t c = 0; c < 0x7e; ++c) {
    const float tie = (e4m3_to_float(c) + e4m3_to_float(c + 1)) / 2;  // exact: five bits
    const uint8_t even = c & 1 ? c + 1 : c;
    EXPECT_EQ(float_to_e4m3(tie), even) << int(c);
    EXPECT_EQ(float_to_e4m3(down(tie)), c) << int(c);
    EXPECT_EQ(float_to_e4m3(up(tie)), c + 1) << int(c);
    EXPECT_EQ(float_to_e4m3(-tie), even | 0x80);
    EXPECT_EQ(float_to_e4m3(-down(tie)), c | 0x80);
    EXPECT_EQ(float_to_e4m3(-up(tie)), (c + 1) | 0x80);
  }
}

TEST(E4m3, SaturatesAndKeepsSignsOfZero) {
  EXPECT_EQ(float_to_e4m3(449.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(464.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-kInf), 0xfe);
  EXPECT_EQ(float_to_e4m3(0.0f), 0x00);
  EXPECT_EQ(float_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(float_to_e4m3(-0x1p-140f), 0x80);
  EXPECT_EQ(float_to_e4m3(kNan), 0x7f);
  EXPECT_EQ(float_to_e4m3(-kNan), 0xff);
}

TEST(E2m1, EveryCodeComesBackAndTiesAreEven) {
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t c = 0; c < 8; ++c) {
    EXPECT_EQ(e2m1_to_float(c), values[c]);
    EXPECT_EQ(bits(e2m1_to_float(c | 8)), bits(-values[c]));
    EXPECT_EQ(float_to_e2m1(values[c]), c);
    EXPECT_EQ(float_to_e2m1(-values[c]), c == 0 ? 0 : c | 8);
  }
  for (uint8_t c = 0; c < 7; ++c) {
    const float tie = (values[c] + values[c + 1]) / 2;
    const uint8_t even = c & 1 ? c + 1 : c;
    EXPECT_EQ(float_to_e2m1(tie), even) << tie;
    EXPECT_EQ(double_to_e2m1(tie), even) << tie;
    EXPECT_EQ(float_to_e2m1(down(tie)), c);
    EXPECT_EQ(float_to_e2m1(up(tie)), c + 1);
    EXPECT_EQ(double_to_e2m1(std::nextafter(double(tie), 0.0)), c);
    EXPECT_EQ(double_to_e2m1(std::nextafter(double(tie), 9.0)), c + 1);
    EXPECT_EQ(float_to_e2m1(-tie), even | 8);  // x < 0 sets the sign even where the magnitude rounds to zero
    EXPECT_EQ(double_to_e2m1(-tie), even | 8);
  }
  EXPECT_EQ(float_to_e2m1(100.0f), 7);
  EXPECT_EQ(float_to_e2m1(-kInf), 15);
  EXPECT_EQ(float_to_e2m1(-0.0f), 0);
  EXPECT_EQ(float_to_e2m1(-1e-30f), 8);
  EXPECT_EQ(float_to_e2m1(kNan), 0);
}

TEST(E2m1, PacksTheEvenIndexLow) {
  for (int b = 0; b < 256; ++b) {
    const uint8_t byte = static_cast<uint8_t>(b);
    EXPECT_EQ(pack_e2m1(e2m1_low(byte), e2m1_high(byte)), byte);
  }
  EXPECT_EQ(pack_e2m1(5, 10), 0xa5);
}

TEST(Ue8m0, EveryByte) {
  for (int c = 0; c < 255; ++c) {
    const float s = std::ldexp(1.0f, c - 127);
    const uint8_t byte = static_cast<uint8_t>(c);
    EXPECT_EQ(bits(ue8m0_to_float(byte)), bits(s)) << c;
    EXPECT_EQ(double(ue8m0_inverse(byte)) * s, 1.0) << c;
    EXPECT_EQ(ue8m0_at_least(s), c);
    EXPECT_EQ(ue8m0_at_least(double(s)), c);
    if (c < 254) {
      EXPECT_EQ(ue8m0_at_least(up(s)), c + 1) << c;
      EXPECT_EQ(ue8m0_at_least(std::nextafter(double(s), 1e300)), c + 1) << c;
    }
    if (c > 0) {
      EXPECT_EQ(ue8m0_at_least(down(s)), c) << c;
      EXPECT_EQ(ue8m0_at_least(std::nextafter(double(s), 0.0)), c) << c;
    }
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_float(255)));
  EXPECT_TRUE(std::isnan(ue8m0_inverse(255)));
  EXPECT_EQ(ue8m0_at_least(kInf), 254);
  EXPECT_EQ(ue8m0_at_least(1e300), 254);
  EXPECT_EQ(ue8m0_at_least(kNan), 255);
  EXPECT_EQ(ue8m0_at_least(std::numeric_limits<double>::quiet_NaN()), 255);
  EXPECT_EQ(ue8m0_at_least(1e-300), 0);
  EXPECT_EQ(ue8m0_at_least(0x1p-149f), 0);
}

TEST(Bf16, EveryCodeAndEveryTie) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint16_t code = static_cast<uint16_t>(h);
    const float x = bf16_to_float(code);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(x))));
      continue;
    }
    ASSERT_EQ(float_to_bf16(x), code);
    ASSERT_EQ(double_to_bf16(x), code);
    if ((h & 0x7fff) >= 0x7f80) continue;
    const float tie = std::bit_cast<float>(h << 16 | 0x8000u);
    ASSERT_EQ(float_to_bf16(tie), h + (h & 1)) << h;
    ASSERT_EQ(float_to_bf16(std::bit_cast<float>(h << 16 | 0x7fffu)), h);
    ASSERT_EQ(float_to_bf16(std::bit_cast<float>(h << 16 | 0x8001u)), h + 1);
  }
  EXPECT_EQ(float_to_bf16(kInf), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bf16, ADoubleIsRoundedTwice) {
  // 1 + 2^-8 + 2^-40: directly it is above the tie and rounds up; through fp32 it falls on the tie and goes to even.
  EXPECT_EQ(double_to_bf16(1.0 + 0x1p-8 + 0x1p-40), 0x3f80);
  EXPECT_EQ(round_bf16(1.0 + 0x1p-8 + 0x1p-40), 1.0);
}

TEST(DType, NamesAndSizes) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const DType t = static_cast<DType>(i);
    ASSERT_TRUE(dtype_from_name(dtype_name(t)).ok());
    EXPECT_EQ(dtype_from_name(dtype_name(t)).value(), t);
  }
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2u);
  EXPECT_EQ(dtype_from_name("F4").status().code(), Code::kUnsupported);
}

// The published bytes of spec/model.md 20.
TEST(Formats, OfficialWeightBytes) {
  const uint8_t fp8[] = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  const double want8[] = {-0.00390625, 0.03515625,  -0.0390625, 0.0703125,
                          0.03125,     0.017578125, -0.03125,   -0.0126953125};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(double(e4m3_to_float(fp8[i])) * ue8m0_to_float(0x73), want8[i]);
  const uint8_t fp4[] = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa};
  const double want4[] = {0,         -0.0078125, 0,          -0.0078125, -0.015625, -0.03125, -0.0078125, 0.015625,
                          -0.0234375, -0.0078125, -0.046875, -0.0078125, 0.0078125, 0.015625, -0.0078125, -0.0078125};
  for (int i = 0; i < 16; ++i) {
    const uint8_t code = i % 2 ? e2m1_high(fp4[i / 2]) : e2m1_low(fp4[i / 2]);
    EXPECT_EQ(double(e2m1_to_float(code)) * ue8m0_to_float(0x78), want4[i]) << i;
  }
}

}  // namespace
}  // namespace deepinfer::numeric
