// Exact decimal numbers of JSON texts: comparison, integrality and divisibility without rounding.
//
//   auto a = Decimal::parse("1e2");            // 100
//   a->compare(*Decimal::parse("99.999"));     // > 0
//   a->is_multiple_of(*Decimal::parse("0.01"));
//
// A number is (-1)^negative * 0.d1d2d3... * 10^exponent with d1 != 0 and no trailing zero digit; zero has no digits.
// Exponents beyond +-10^15 are clamped there: such numbers keep their order against all others, not among themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deepinfer::grammar {

class Decimal {
 public:
  Decimal() = default;
  explicit Decimal(int64_t value);
  // Text in JSON's number grammar; nothing otherwise.
  static std::optional<Decimal> parse(std::string_view text);

  bool is_zero() const { return digits_.empty(); }
  bool negative() const { return negative_; }
  bool is_integer() const { return exponent_ >= static_cast<int64_t>(digits_.size()); }
  const std::string& digits() const { return digits_; }
  int64_t exponent() const { return exponent_; }
  Decimal negated() const;

  // <0, 0, >0
  int compare(const Decimal& other) const;
  bool operator==(const Decimal& other) const { return compare(other) == 0; }
  bool operator<(const Decimal& other) const { return compare(other) < 0; }
  // True when this / divisor is an integer. The divisor must be positive and have at most kDivisorDigitsMax digits.
  bool is_multiple_of(const Decimal& divisor) const;
  static constexpr size_t kDivisorDigitsMax = 18;

  // The value as int64, if it is an integer that fits; the largest integer that is not above it, if that fits.
  std::optional<int64_t> to_int64() const;
  std::optional<int64_t> to_int64_floor() const;
  // Plain text without exponent; only for |exponent| up to a few thousand (the caller checks).
  std::string to_plain() const;

 private:
  bool negative_ = false;
  std::string digits_;
  int64_t exponent_ = 0;
};

}  // namespace deepinfer::grammar
