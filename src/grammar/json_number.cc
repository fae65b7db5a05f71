#include "grammar/json_number.h"

#include <algorithm>

namespace deepinfer::grammar {
namespace {

constexpr int64_t kExponentMax = 1'000'000'000'000'000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Decimal::Decimal(int64_t value) {
  if (value == 0) return;
  negative_ = value < 0;
  uint64_t magnitude = negative_ ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  digits_ = std::to_string(magnitude);
  exponent_ = static_cast<int64_t>(digits_.size());
  while (digits_.back() == '0') digits_.pop_back();
}

std::optional<Decimal> Decimal::parse(std::string_view s) {
  Decimal d;
  size_t i = 0;
  if (i < s.size() && s[i] == '-') d.negative_ = true, ++i;
  size_t int_begin = i;
  while (i < s.size() && is_digit(s[i])) ++i;
  size_t int_len = i - int_begin;
  if (int_len == 0 || (int_len > 1 && s[int_begin] == '0')) return std::nullopt;
  d.digits_.assign(s.substr(int_begin, int_len));
  d.exponent_ = static_cast<int64_t>(int_len);
  if (i < s.size() && s[i] == '.') {
    size_t frac_begin = ++i;
    while (i < s.size() && is_digit(s[i])) ++i;
    if (i == frac_begin) return std::nullopt;
    d.digits_.append(s.substr(frac_begin, i - frac_begin));
  }
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    ++i;
    bool minus = false;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) minus = s[i] == '-', ++i;
    if (i == s.size()) return std::nullopt;
    int64_t e = 0;
    for (; i < s.size() && is_digit(s[i]); ++i) e = std::min(e * 10 + (s[i] - '0'), kExponentMax);
    d.exponent_ = std::clamp(d.exponent_ + (minus ? -e : e), -kExponentMax, kExponentMax);
  }
  if (i != s.size()) return std::nullopt;
  size_t leading = 0;
  while (leading < d.digits_.size() && d.digits_[leading] == '0') ++leading;
  d.digits_.erase(0, leading);
  d.exponent_ -= static_cast<int64_t>(leading);
  while (!d.digits_.empty() && d.digits_.back() == '0') d.digits_.pop_back();
  if (d.digits_.empty()) d.negative_ = false, d.exponent_ = 0;
  return d;
}

Decimal Decimal::negated() const {
  Decimal d = *this;
  if (!d.is_zero()) d.negative_ = !d.negative_;
  return d;
}

int Decimal::compare(const Decimal& o) const {
  if (is_zero() || o.is_zero() || negative_ != o.negative_) {
    int a = is_zero() ? 0 : negative_ ? -1 : 1, b = o.is_zero() ? 0 : o.negative_ ? -1 : 1;
    return a - b;
  }
  int magnitude = exponent_ != o.exponent_ ? (exponent_ < o.exponent_ ? -1 : 1) : digits_.compare(o.digits_);
  return negative_ ? -magnitude : magnitude;
}

bool Decimal::is_multiple_of(const Decimal& divisor) const {
  if (is_zero()) return true;
  uint64_t b = 0;
  for (char c : divisor.digits_) b = b * 10 + static_cast<uint64_t>(c - '0');
  // this = A * 10^ea, divisor = B * 10^eb with A and B free of trailing zeros.
  int64_t ea = exponent_ - static_cast<int64_t>(digits_.size());
  int64_t eb = divisor.exponent_ - static_cast<int64_t>(divisor.digits_.size());
  if (ea < eb) return false;
  unsigned __int128 rest = 0;
  for (char c : digits_) rest = (rest * 10 + static_cast<unsigned>(c - '0')) % b;
  unsigned __int128 power = 1 % b, base = 10 % b;
  for (uint64_t n = static_cast<uint64_t>(ea - eb); n; n >>= 1) {
    if (n & 1) power = power * base % b;
    base = base * base % b;
  }
  return rest * power % b == 0;
}

std::optional<int64_t> Decimal::to_int64() const {
  if (is_zero()) return 0;
  if (!is_integer() || exponent_ > 19) return std::nullopt;
  unsigned __int128 magnitude = 0;
  for (int64_t i = 0; i < exponent_; ++i) {
    magnitude =
        magnitude * 10 + (i < static_cast<int64_t>(digits_.size()) ? static_cast<unsigned>(digits_[i] - '0') : 0);
  }
  if (magnitude > static_cast<unsigned __int128>(INT64_MAX)) return std::nullopt;
  int64_t v = static_cast<int64_t>(magnitude);
  return negative_ ? -v : v;
}

std::optional<int64_t> Decimal::to_int64_floor() const {
  if (is_integer()) return to_int64();
  Decimal whole = *this;
  whole.digits_.resize(static_cast<size_t>(std::max<int64_t>(0, exponent_)));
  while (!whole.digits_.empty() && whole.digits_.back() == '0') whole.digits_.pop_back();
  if (whole.digits_.empty()) whole = Decimal();
  auto n = whole.to_int64();
  return n && negative_ ? *n - 1 : n;
}

std::string Decimal::to_plain() const {
  if (is_zero()) return "0";
  std::string out = negative_ ? "-" : "";
  int64_t n = static_cast<int64_t>(digits_.size());
  if (exponent_ <= 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent_), '0');
    out += digits_;
  } else if (exponent_ >= n) {
    out += digits_;
    out.append(static_cast<size_t>(exponent_ - n), '0');
  } else {
    out.append(digits_, 0, static_cast<size_t>(exponent_));
    out += '.';
    out.append(digits_, static_cast<size_t>(exponent_), std::string::npos);
  }
  return out;
}

}  // namespace deepinfer::grammar
