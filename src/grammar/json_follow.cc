#include "grammar/json_follow.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "grammar/json_number.h"

namespace deepinfer::grammar {
namespace {

enum class Match : uint8_t { kNo, kInside, kDone };  // kInside: the text ended, next_ was added to

void add_all(std::string_view bytes, ByteSet& to) {
  for (char c : bytes) to.add(static_cast<uint8_t>(c));
}

bool is_number_byte(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

uint32_t decode(std::string_view s, size_t at, size_t* size) {
  const auto b = static_cast<unsigned char>(s[at]);
  *size = b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
  uint32_t c = *size == 1 ? b : b & (0xffu >> (*size + 1));
  for (size_t i = 1; i < *size && at + i < s.size(); ++i) c = c << 6 | (static_cast<unsigned char>(s[at + i]) & 0x3f);
  return c;
}

class Follower {
 public:
  Follower(std::string_view text, ByteSet& next) : text_(text), next_(next) {}

  bool run(const JsonValue& value) {
    const Match m = follow(value);
    return m == Match::kInside || (m == Match::kDone && at_ == text_.size());
  }

 private:
  bool at_end() const { return at_ == text_.size(); }

  void skip_space() {
    while (!at_end() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
    if (at_end()) add_all(" \t\n\r", next_);
  }

  Match follow(const JsonValue& v) {
    switch (v.kind()) {
      case JsonKind::kNull:
        return word("null");
      case JsonKind::kTrue:
        return word("true");
      case JsonKind::kFalse:
        return word("false");
      case JsonKind::kNumber:
        return number(*Decimal::parse(v.text()));
      case JsonKind::kString:
        return string(v.text());
      case JsonKind::kArray:
        return array(v);
      case JsonKind::kObject:
        return object(v);
    }
    return Match::kNo;
  }

  Match word(std::string_view w) {
    for (char c : w) {
      if (const Match m = byte(c); m != Match::kDone) return m;
    }
    return Match::kDone;
  }

  Match byte(char c) {
    if (at_end()) {
      next_.add(static_cast<uint8_t>(c));
      return Match::kInside;
    }
    if (text_[at_] != c) return Match::kNo;
    ++at_;
    return Match::kDone;
  }

  Match string(std::string_view s) {
    if (const Match m = byte('"'); m != Match::kDone) return m;
    size_t i = 0;
    for (;;) {
      if (at_end()) {
        if (i == s.size()) return byte('"');
        const bool raw = static_cast<unsigned char>(s[i]) >= 0x20 && s[i] != '"' && s[i] != '\\';
        if (raw) next_.add(static_cast<uint8_t>(s[i]));
        next_.add('\\');
        return Match::kInside;
      }
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return i == s.size() ? Match::kDone : Match::kNo;
      }
      if (i == s.size()) return Match::kNo;
      if (c == '\\') {
        ++at_;
        size_t size = 0;
        if (const Match m = escape(decode(s, i, &size)); m != Match::kDone) return m;
        i += size;
      } else {
        if (c != s[i]) return Match::kNo;
        ++at_;
        ++i;
      }
    }
  }

  // Behind a backslash: the short escape of a character, or its code units in hexadecimal.
  Match escape(uint32_t c) {
    static constexpr std::string_view kPlain = "\"\\/\b\f\n\r\t", kShort = "\"\\/bfnrt";
    const size_t place = c < 0x80 ? kPlain.find(static_cast<char>(c)) : std::string_view::npos;
    if (place != std::string_view::npos) {
      if (at_end()) next_.add(static_cast<uint8_t>(kShort[place]));
      else if (text_[at_] == kShort[place]) return byte(kShort[place]);
    }
    const std::string units =
        c < 0x10000 ? fmt::format("u{:04x}", c)
                    : fmt::format("u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    for (char u : units) {
      const bool letter = u >= 'a' && u <= 'f';
      if (letter && at_end()) next_.add(static_cast<uint8_t>(u - 32));
      if (letter && !at_end() && text_[at_] == u - 32) u = static_cast<char>(u - 32);
      if (const Match m = byte(u); m != Match::kDone) return m;
    }
    return Match::kDone;
  }

  Match number(const Decimal& v) {
    const size_t begin = at_;
    while (!at_end() && is_number_byte(text_[at_])) ++at_;
    const std::string_view t = text_.substr(begin, at_ - begin);
    const std::optional<Decimal> written = Decimal::parse(t);
    if (!at_end()) return written && *written == v ? Match::kDone : Match::kNo;
    if (depth_ > 0 && written && *written == v) add_all(" \t\n\r,]}", next_);
    if (const size_t e = t.find_first_of("eE"); e != std::string_view::npos)
      return exponent(t.substr(0, e), t.substr(e + 1), v);
    // The digits must be those of the value; where the point is does not matter as long as an exponent can come.
    size_t digits = 0;
    for (char c : t) {
      if (c < '0' || c > '9' || (c == '0' && digits == 0)) continue;
      if (v.is_zero() || c != (digits < v.digits().size() ? v.digits()[digits] : '0')) return Match::kNo;
      ++digits;
    }
    if (!v.is_zero() && !t.empty() && (t[0] == '-') != v.negative()) return Match::kNo;
    if (t.empty() && (v.is_zero() || v.negative())) next_.add('-');
    if (!t.empty()) add_all(t.find('.') == std::string_view::npos ? ".eE" : "eE", next_);
    if (digits == 0) next_.add('0');
    if (!v.is_zero()) next_.add(static_cast<uint8_t>(digits < v.digits().size() ? v.digits()[digits] : '0'));
    return Match::kInside;
  }

  // A number that has come to its exponent, which must still become the missing power of ten.
  Match exponent(std::string_view mantissa, std::string_view t, const Decimal& v) {
    const std::optional<Decimal> m = Decimal::parse(mantissa);
    if (!m || m->is_zero() != v.is_zero()) return Match::kNo;
    if (v.is_zero()) {
      add_all(t.empty() ? "0123456789+-" : "0123456789", next_);
      return Match::kInside;
    }
    if (m->digits() != v.digits() || m->negative() != v.negative()) return Match::kNo;
    const int64_t power = v.exponent() - m->exponent();
    const std::string digits = power == 0 ? "" : fmt::format("{}", power < 0 ? -power : power);
    const bool has_sign = !t.empty() && (t[0] == '-' || t[0] == '+');
    if (!t.empty() && power != 0 && (t[0] == '-') != (power < 0)) return Match::kNo;
    std::string_view so_far = has_sign ? t.substr(1) : t;
    so_far.remove_prefix(std::min(so_far.find_first_not_of('0'), so_far.size()));
    if (!digits.starts_with(so_far)) return Match::kNo;
    if (t.empty() && power >= 0) next_.add('+');
    if (t.empty() && power <= 0) next_.add('-');
    if (so_far.empty() && (power >= 0 || has_sign)) next_.add('0');
    if (so_far.size() < digits.size() && (power > 0 || has_sign))
      next_.add(static_cast<uint8_t>(digits[so_far.size()]));
    return Match::kInside;
  }

  Match array(const JsonValue& v) {
    if (const Match m = byte('['); m != Match::kDone) return m;
    ++depth_;
    for (uint32_t i = 0; i < v.size(); ++i) {
      skip_space();
      if (i > 0) {
        if (const Match m = byte(','); m != Match::kDone) return m;
        skip_space();
      }
      if (const Match m = follow(v[i]); m != Match::kDone) return m;
    }
    skip_space();
    --depth_;
    return byte(']');
  }

  Match object(const JsonValue& v) {
    if (const Match m = byte('{'); m != Match::kDone) return m;
    ++depth_;
    std::vector<bool> written(v.size());
    for (uint32_t i = 0; i < v.size(); ++i) {
      skip_space();
      if (i > 0) {
        if (const Match m = byte(','); m != Match::kDone) return m;
        skip_space();
      }
      if (const Match m = member(v, written); m != Match::kDone) return m;
    }
    skip_space();
    --depth_;
    return byte('}');
  }

  Match member(const JsonValue& v, std::vector<bool>& written) {
    const size_t begin = at_;
    bool inside = false;
    for (uint32_t k = 0; k < v.size(); ++k) {
      if (written[k]) continue;
      at_ = begin;
      const Match m = string(v.members()[k].name);
      inside |= m == Match::kInside;
      if (m != Match::kDone) continue;
      written[k] = true;
      skip_space();
      if (const Match c = byte(':'); c != Match::kDone) return c;
      skip_space();
      return follow(v.members()[k].value);
    }
    return inside ? Match::kInside : Match::kNo;
  }

  std::string_view text_;
  ByteSet& next_;
  size_t at_ = 0;
  int depth_ = 0;  // of open arrays and objects
};

}  // namespace

bool follow_json(std::string_view text, const JsonValue& value, ByteSet* next) {
  ByteSet bytes;
  if (!Follower(text, bytes).run(value)) return false;
  *next = *next | bytes;
  return true;
}

void append_canonical_json(const JsonValue& value, std::string& out) {
  switch (value.kind()) {
    case JsonKind::kNumber: {
      const Decimal d = *Decimal::parse(value.text());
      out += fmt::format("{}{}e{}", d.negative() ? "-" : "", d.digits(), d.is_zero() ? 0 : d.exponent());
      return;
    }
    case JsonKind::kArray:
      out += '[';
      for (uint32_t i = 0; i < value.size(); ++i) {
        append_canonical_json(value[i], out);
        out += ',';
      }
      out += ']';
      return;
    case JsonKind::kObject: {
      std::vector<const JsonMember*> members;
      for (uint32_t i = 0; i < value.size(); ++i) members.push_back(&value.members()[i]);
      std::sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->name < b->name; });
      out += '{';
      for (const JsonMember* m : members) {
        append_json_string(m->name, out);
        append_canonical_json(m->value, out);
      }
      out += '}';
      return;
    }
    default:
      append_json(value, out);
  }
}

}  // namespace deepinfer::grammar
