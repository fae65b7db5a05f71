#include "grammar/json_number_text.h"

#include <algorithm>
#include <string>

#include "grammar/regex.h"

namespace deepinfer::grammar {
namespace {

constexpr std::string_view kInt = "(?:0|[1-9][0-9]*)", kFrac = "(?:\\.[0-9]+)?", kExp = "(?:[eE][+\\-]?[0-9]+)?";

std::string digit_range(char first, char last) {
  if (first == last) return std::string(1, first);
  return std::string("[") + first + "-" + last + "]";
}

std::string times(std::string_view what, size_t n) {
  return n == 0 ? "" : std::string(what) + "{" + std::to_string(n) + "}";
}

// Integer parts with exactly as many digits as `s` and above it, nested so that the length stays linear.
std::string same_length_above(const std::string& s) {
  std::string out, close;
  for (size_t j = 0; j < s.size(); ++j) {
    bool last = j + 1 == s.size();
    std::string more =
        s[j] < '9' ? digit_range(static_cast<char>(s[j] + 1), '9') + times("[0-9]", s.size() - j - 1) : "";
    if (last) {
      out += more.empty() ? "[]" : more;
    } else {
      out += "(?:" + (more.empty() ? "" : more + "|") + s[j];
      close += ")";
    }
  }
  return out + close;
}

std::string same_length_below(const std::string& s) {
  std::string out, close;
  for (size_t j = 0; j < s.size(); ++j) {
    bool last = j + 1 == s.size();
    char least = j == 0 && s.size() > 1 ? '1' : '0';
    std::string less =
        s[j] > least ? digit_range(least, static_cast<char>(s[j] - 1)) + times("[0-9]", s.size() - j - 1) : "";
    if (last) {
      out += less.empty() ? "[]" : less;
    } else {
      out += "(?:" + (less.empty() ? "" : less + "|") + s[j];
      close += ")";
    }
  }
  return out + close;
}

std::string int_above(const std::string& s) {
  return "(?:" + same_length_above(s) + "|[1-9][0-9]{" + std::to_string(s.size()) + ",})";
}

std::string int_below(const std::string& s) {
  if (s == "0") return "[]";
  std::string shorter = s.size() == 1   ? ""
                        : s.size() == 2 ? "|[0-9]"
                                        : "|0|[1-9][0-9]{0," + std::to_string(s.size() - 2) + "}";
  return "(?:" + same_length_below(s) + shorter + ")";
}

// A non-negative number cut at the point; the fraction has no trailing zeros.
struct Cut {
  std::string whole, fraction;
  explicit Cut(const Decimal& d) {
    std::string text = d.negative() ? d.negated().to_plain() : d.to_plain();
    size_t point = text.find('.');
    whole = text.substr(0, point);
    if (point != std::string::npos) fraction = text.substr(point + 1);
  }
};

std::string fraction_above(const std::string& f, bool open) {
  if (f.empty()) return open ? "\\.[0-9]*[1-9][0-9]*" : std::string(kFrac);
  std::string out = "\\.", close;
  for (char c : f) {
    out += "(?:";
    if (c < '9') out += digit_range(static_cast<char>(c + 1), '9') + "[0-9]*|";
    out += c;
    close += ")";
  }
  return out + (open ? "[0-9]*[1-9][0-9]*" : "[0-9]*") + close;
}

std::string fraction_below(const std::string& f, bool open) {
  if (f.empty()) return open ? "[]" : "(?:\\.0+)?";
  std::string out = "(?:\\.", close = ")?";
  for (size_t j = 0; j < f.size(); ++j) {
    // After the first digit the text may stop at any place: what is missing counts as zeros.
    out += "(?:";
    close = (j > 0 ? ")?" : ")") + close;
    bool last = j + 1 == f.size();
    std::string less = f[j] > '0' ? digit_range('0', static_cast<char>(f[j] - 1)) + "[0-9]*" : "";
    out += less;
    if (last && open) {
      if (less.empty()) out += "[]";
    } else {
      out += (less.empty() ? "" : "|") + std::string(1, f[j]);
    }
  }
  return out + (open ? "" : "0*") + close;
}

std::string at_least(const Decimal& bound, bool open, bool integer) {
  Cut c(bound);
  if (integer) {
    bool equal = c.fraction.empty() && !open;
    return "(?:" + int_above(c.whole) + (equal ? "|" + c.whole : "") + ")";
  }
  return "(?:" + int_above(c.whole) + std::string(kFrac) + "|" + c.whole + fraction_above(c.fraction, open) + ")";
}

std::string at_most(const Decimal& bound, bool open, bool integer) {
  Cut c(bound);
  if (integer) {
    bool equal = !c.fraction.empty() || !open;
    return "(?:" + int_below(c.whole) + (equal ? "|" + c.whole : "") + ")";
  }
  return "(?:" + int_below(c.whole) + std::string(kFrac) + "|" + c.whole + fraction_below(c.fraction, open) + ")";
}

class NumberTexts {
 public:
  NumberTexts(GrammarBuilder& b, const NumberShape& s)
      : b_(b), s_(s), integer_(!(s.types & kFraction)), fraction_(!(s.types & kInteger)) {}

  Text all() {
    std::vector<Text> signs;
    Decimal zero;
    bool positive_possible = !s_.high || !(*s_.high < zero);
    if (positive_possible) {
      bool from_zero = !s_.low || *s_.low < zero;
      signs.push_back(magnitudes(from_zero ? std::nullopt : s_.low, s_.low_open, s_.high, s_.high_open, false));
    }
    if (!s_.low || *s_.low < zero) {
      bool to_zero = !s_.high || !(*s_.high < zero);
      auto low = s_.low ? std::optional(s_.low->negated()) : std::nullopt;
      auto high = to_zero ? std::nullopt : std::optional(s_.high->negated());
      // "-0" is zero: it must obey an open bound at zero.
      bool open_zero = s_.high && s_.high->is_zero() && s_.high_open;
      if (open_zero) high = zero;
      signs.push_back(b_.concat({b_.text("-"), magnitudes(high, s_.high_open, low, s_.low_open, true)}));
    }
    return b_.any_of(signs);
  }

 private:
  Text regex(const std::string& pattern) {
    auto text = parse_regex(b_, pattern, RegexMode::kWhole);
    if (text.ok()) return text.value();
    b_.fail(text.status());
    return b_.no_text();
  }

  // Texts without sign, of numbers between two bounds that are not negative.
  Text magnitudes(const std::optional<Decimal>& low, bool low_open, const std::optional<Decimal>& high, bool high_open,
                  bool negative) {
    bool conditions = !s_.multiples.empty() || !s_.not_multiples.empty() || !s_.excluded.empty() || fraction_;
    bool above_zero = low && low->is_zero() && low_open;
    bool exponents = !integer_ && !conditions;
    std::vector<Text> parts;
    if (exponents && !high && (!low || low->is_zero())) {
      std::string mantissa = above_zero ? "(?:0\\.[0-9]*[1-9][0-9]*|[1-9][0-9]*" + std::string(kFrac) + ")"
                                        : std::string(kInt) + std::string(kFrac);
      return regex(mantissa + std::string(kExp));
    }
    if (low && (above_zero || !low->is_zero())) parts.push_back(regex(at_least(*low, low_open, integer_)));
    if (high) parts.push_back(regex(at_most(*high, high_open, integer_)));
    if (fraction_) {
      parts.push_back(regex(std::string(kInt) + "\\.[0-9]*[1-9][0-9]*"));
    } else if (parts.empty()) {
      parts.push_back(regex(std::string(kInt) + (integer_ ? "" : std::string(kFrac))));
    }
    for (const Decimal& m : s_.multiples) parts.push_back(multiples_of(m));
    for (const Decimal& m : s_.not_multiples) parts.push_back(b_.complement(multiples_of(m)));
    for (const Decimal& v : s_.excluded) {
      if (!v.is_zero() && v.negative() != negative) continue;
      Cut c(v);
      std::string zeros = c.fraction.empty() ? "(?:\\.0+)?" : "\\." + c.fraction + "0*";
      parts.push_back(b_.complement(regex(c.whole + zeros)));
    }
    Text plain = b_.all_of(parts);
    if (!exponents) return plain;
    std::vector<Text> forms{plain};
    const std::string scientific = "[1-9]" + std::string(kFrac) + "[eE]";
    if ((!low || low->is_zero()) && !high->is_zero()) {
      // Below 10^(1-k), which is at most the upper bound from this k on.
      int64_t k = std::max<int64_t>(1, 2 - high->exponent());
      forms.push_back(regex(scientific + "-0*(?:" + std::to_string(k) + "|" + int_above(std::to_string(k)) + ")"));
    }
    if (!high) {
      int64_t k = std::max<int64_t>(0, low->exponent());
      forms.push_back(regex(scientific + "\\+?0*(?:" + std::to_string(k) + "|" + int_above(std::to_string(k)) + ")"));
    }
    return b_.any_of(forms);
  }

  // Magnitudes in plain form whose value is a multiple; leading zeros are of no concern here.
  Text multiples_of(const Decimal& divisor) {
    uint64_t m = 0;
    for (char c : divisor.digits()) m = m * 10 + static_cast<uint64_t>(c - '0');
    int64_t scale = divisor.exponent() - static_cast<int64_t>(divisor.digits().size());
    Text zeros_after_point = regex("(?:\\.0+)?");
    if (scale >= 0) {
      Text whole = b_.automaton(remainders(m, 0));
      std::vector<Text> ways{b_.concat({whole, b_.text(std::string(static_cast<size_t>(scale), '0'))})};
      if (scale > 0) ways.push_back(b_.text("0"));
      return b_.concat({b_.any_of(ways), zeros_after_point});
    }
    return b_.automaton(remainders(m, static_cast<uint64_t>(-scale)));
  }

  // Reads digits, a point and at most `places` digits (then zeros); accepts where value * 10^places is 0 modulo m.
  static Automaton remainders(uint64_t m, uint64_t places) {
    Automaton a;
    // Phase 0: before the point; 1: at the point; 1 + j: after j digits.
    const uint64_t phases = places == 0 ? 1 : places + 2;
    a.states.resize(phases * m);
    auto state = [&](uint64_t phase, uint64_t r) { return static_cast<uint32_t>(phase * m + r); };
    for (uint64_t phase = 0; phase < phases; ++phase) {
      uint64_t left = phase == 0 ? places : places - (phase - 1);
      uint64_t power = 1 % m;
      for (uint64_t i = 0; i < left; ++i) power = power * 10 % m;
      for (uint64_t r = 0; r < m; ++r) {
        Automaton::State& s = a.states[state(phase, r)];
        s.accepts = phase != 1 && r * power % m == 0;
        if (phase > 0 && left == 0) {
          s.edges.push_back({'0', '0', state(phase, r)});
          continue;
        }
        uint64_t next = phase == 0 ? 0 : phase + 1;
        if (phase == 0 && places > 0) s.edges.push_back({'.', '.', state(1, r)});
        for (uint64_t d = 0; d < 10; ++d) {
          s.edges.push_back(
              {static_cast<uint8_t>('0' + d), static_cast<uint8_t>('0' + d), state(next, (r * 10 + d) % m)});
        }
      }
    }
    return a;
  }

  GrammarBuilder& b_;
  const NumberShape& s_;
  bool integer_, fraction_;
};

}  // namespace

uint64_t divisor_states(const Decimal& divisor) {
  uint64_t m = 0;
  for (char c : divisor.digits()) m = m * 10 + static_cast<uint64_t>(c - '0');
  int64_t scale = divisor.exponent() - static_cast<int64_t>(divisor.digits().size());
  uint64_t phases = scale >= 0 ? 1 : static_cast<uint64_t>(-scale) + 2;
  return m > kDivisorStatesMax ? m : m * phases;
}

bool is_plain_number(const NumberShape& s) {
  return !s.low && !s.high && s.multiples.empty() && s.not_multiples.empty() && s.excluded.empty() &&
         (s.types & kInteger);
}

Text number_text(GrammarBuilder& builder, const NumberShape& shape) { return NumberTexts(builder, shape).all(); }

}  // namespace deepinfer::grammar
