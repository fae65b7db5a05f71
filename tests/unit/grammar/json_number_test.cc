#include "grammar/json_number.h"

#include <random>

#include <gtest/gtest.h>

namespace deepinfer::grammar {
namespace {

Decimal dec(std::string_view text) {
  auto d = Decimal::parse(text);
  EXPECT_TRUE(d.has_value()) << text;
  return d.value_or(Decimal());
}

TEST(Decimal, ComparesExactly) {
  const char* ascending[] = {"-1e400",
                             "-123.5",
                             "-123.45",
                             "-1",
                             "-0.001",
                             "0",
                             "1e-400",
                             "0.1",
                             "0.1000000000000000000001",
                             "1",
                             "9.99",
                             "1e1",
                             "10.5",
                             "99999999999999999999",
                             "1e20",
                             "100000000000000000001",
                             "1e999999999999999999999"};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    for (size_t k = 0; k < std::size(ascending); ++k) {
      const int order = dec(ascending[i]).compare(dec(ascending[k]));
      EXPECT_EQ(order < 0, i < k) << ascending[i] << " " << ascending[k];
      EXPECT_EQ(order == 0, i == k) << ascending[i] << " " << ascending[k];
    }
  }
  EXPECT_EQ(dec("-0.0e7"), dec("0"));
  EXPECT_EQ(dec("1200e-2"), dec("12"));
}

TEST(Decimal, RefusesOtherTexts) {
  for (const char* text : {"", "-", "01", "1.", ".1", "1e", "1e+", "+1", "1x", "0x1", "1 "})
    EXPECT_FALSE(Decimal::parse(text)) << text;
}

TEST(Decimal, IntegersAndPlainText) {
  EXPECT_TRUE(dec("1.0").is_integer());
  EXPECT_TRUE(dec("12.5e1").is_integer());
  EXPECT_FALSE(dec("12.55e1").is_integer());
  EXPECT_FALSE(dec("1e-1").is_integer());
  EXPECT_EQ(dec("12.50e1").to_plain(), "125");
  EXPECT_EQ(dec("-1.5e-3").to_plain(), "-0.0015");
  EXPECT_EQ(dec("12e3").to_plain(), "12000");
  EXPECT_EQ(dec("-9223372036854775807").to_int64(), -9223372036854775807);
  EXPECT_EQ(dec("9223372036854775808").to_int64(), std::nullopt);
  EXPECT_EQ(dec("1.5").to_int64(), std::nullopt);
  EXPECT_EQ(Decimal(INT64_MIN).to_plain(), "-9223372036854775808");
}

TEST(Decimal, MultiplesAgreeWithIntegerArithmetic) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const int64_t a = static_cast<int64_t>(random() % 2'000'000) - 1'000'000,
                  b = 1 + static_cast<int64_t>(random() % 500);
    const int scale = static_cast<int>(random() % 7) - 3, scale_b = static_cast<int>(random() % 7) - 3;
    const Decimal x = dec(std::to_string(a) + "e" + std::to_string(scale)),
                  y = dec(std::to_string(b) + "e" + std::to_string(scale_b));
    int64_t p = a, q = b;
    for (int k = -3; k < scale; ++k) p *= 10;
    for (int k = -3; k < scale_b; ++k) q *= 10;
    EXPECT_EQ(x.is_multiple_of(y), p % q == 0) << a << "e" << scale << " by " << b << "e" << scale_b;
  }
  EXPECT_TRUE(dec("1e308").is_multiple_of(dec("0.5")));
  EXPECT_FALSE(dec("1e308").is_multiple_of(dec("0.123456789")));
  EXPECT_TRUE(dec("0.0075").is_multiple_of(dec("0.0001")));
  EXPECT_FALSE(dec("0.00751").is_multiple_of(dec("0.0001")));
}

}  // namespace
}  // namespace deepinfer::grammar
