#include "recipe/json.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace deepinfer::recipe {

Json::Json(uint64_t v) {
  if (v <= static_cast<uint64_t>(INT64_MAX)) {
    value_ = static_cast<int64_t>(v);
  } else {
    value_ = v;
  }
}
Json::Json(JsonArray v) : value_(std::move(v)) {}
Json::Json(JsonObject v) : value_(std::move(v)) {}
Json Json::array() { return Json(JsonArray{}); }
Json Json::object() { return Json(JsonObject{}); }

bool Json::is_integer() const {
  return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_) ||
         std::holds_alternative<BigInteger>(value_);
}

double Json::as_double() const {
  if (const auto* v = std::get_if<int64_t>(&value_)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<uint64_t>(&value_)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<BigInteger>(&value_)) {
    double d = 0;
    std::from_chars(v->digits.data(), v->digits.data() + v->digits.size(), d);
    return d;
  }
  return std::get<double>(value_);
}

std::optional<int64_t> Json::to_int64() const {
  if (const auto* v = std::get_if<int64_t>(&value_)) return *v;
  return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  const auto* members = std::get_if<JsonObject>(&value_);
  if (members == nullptr) return nullptr;
  for (const JsonMember& m : *members) {
    if (m.key == key) return &m.value;
  }
  return nullptr;
}

Json* Json::find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }

Json& Json::set(std::string_view key, Json value) {
  if (Json* old = find(key)) return *old = std::move(value);
  JsonObject& members = as_object();
  members.push_back({std::string(key), std::move(value)});
  return members.back().value;
}

void Json::erase(std::string_view key) {
  std::erase_if(as_object(), [&](const JsonMember& m) { return m.key == key; });
}

std::string_view Json::kind_name() const {
  if (is_integer()) return "integer";
  if (is_null()) return "null";
  if (is_bool()) return "boolean";
  if (is_string()) return "string";
  if (is_array()) return "array";
  if (is_object()) return "object";
  return "number";
}

bool Json::operator==(const Json& other) const { return value_ == other.value_; }

namespace {

// Length of the start of `text` in which nothing needs an escape.
size_t plain_prefix(std::string_view text) {
  size_t i = 0;
#ifdef __SSE2__
  const __m128i control = _mm_set1_epi8(0x1F), quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
  for (; i + 16 <= text.size(); i += 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + i));
    const __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(_mm_min_epu8(v, control), v),
                                     _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, backslash)));
    const int mask = _mm_movemask_epi8(hit);
    if (mask != 0) return i + std::countr_zero(static_cast<unsigned>(mask));
  }
#endif
  for (; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == '"' || c == '\\') break;
  }
  return i;
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  while (true) {
    const size_t plain = plain_prefix(text);
    out.append(text, 0, plain);
    if (plain == text.size()) return;
    const auto c = static_cast<unsigned char>(text[plain]);
    text.remove_prefix(plain + 1);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        out += "\\u00";
        out += kHex[c >> 4];
        out += kHex[c & 15];
    }
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

namespace {

// Shortest round-trip digits, in decimal form for 10^min_exponent <= |x| < 10^16, else with an exponent of at least
// `exponent_digits` digits.
void append_double(std::string& out, double value, int min_exponent, int exponent_digits) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  char buffer[32];
  const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* exponent_begin = text.data() + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(exponent_begin, end, exponent);
  std::string_view mantissa = text.substr(0, e);
  if (mantissa.front() == '-') {
    out += '-';
    mantissa.remove_prefix(1);
  }
  char digits[24];
  int count = 0;
  for (char c : mantissa) {
    if (c != '.') digits[count++] = c;
  }
  if (value != 0 && (exponent < min_exponent || exponent >= 16)) {
    out += digits[0];
    if (count > 1) {
      out += '.';
      out.append(digits + 1, static_cast<size_t>(count - 1));
    }
    out += 'e';
    out += exponent < 0 ? '-' : '+';
    const std::string magnitude = std::to_string(std::abs(exponent));
    for (int i = static_cast<int>(magnitude.size()); i < exponent_digits; ++i) out += '0';
    out += magnitude;
  } else if (exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-exponent - 1), '0');
    out.append(digits, static_cast<size_t>(count));
  } else {
    const int whole = exponent + 1;
    out.append(digits, static_cast<size_t>(std::min(count, whole)));
    if (count < whole) out.append(static_cast<size_t>(whole - count), '0');
    out += '.';
    if (count > whole) {
      out.append(digits + whole, static_cast<size_t>(count - whole));
    } else {
      out += '0';
    }
  }
}

struct Style {
  std::string_view comma, colon;
  int min_exponent;
  int exponent_digits;
  bool exact_integers;
};

template <class Int>
void append_integer(std::string& out, Int value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

void append_value(std::string& out, const Json& value, const Style& style) {
  struct Visitor {
    std::string& out;
    const Style& style;
    void operator()(std::nullptr_t) const { out += "null"; }
    void operator()(bool v) const { out += v ? "true" : "false"; }
    void operator()(int64_t v) const { append_integer(out, v); }
    void operator()(uint64_t v) const { append_integer(out, v); }
    void operator()(double v) const { append_double(out, v, style.min_exponent, style.exponent_digits); }
    void operator()(const std::string& v) const { append_json_string(out, v); }
    void operator()(const BigInteger& v) const {
      if (style.exact_integers) {
        out += v.digits;
      } else {
        (*this)(Json(v).as_double());
      }
    }
    void operator()(const JsonArray& v) const {
      out += '[';
      for (size_t i = 0; i < v.size(); ++i) {
        if (i > 0) out += style.comma;
        append_value(out, v[i], style);
      }
      out += ']';
    }
    void operator()(const JsonObject& v) const {
      out += '{';
      for (size_t i = 0; i < v.size(); ++i) {
        if (i > 0) out += style.comma;
        append_json_string(out, v[i].key);
        out += style.colon;
        append_value(out, v[i].value, style);
      }
      out += '}';
    }
  };
  std::visit(Visitor{out, style}, value.variant());
}

}  // namespace

void append_python_double(std::string& out, double value) { append_double(out, value, -4, 2); }

void append_python_json(std::string& out, const Json& value, bool exact_integers) {
  append_value(out, value, Style{", ", ": ", -4, 2, exact_integers});
}

std::string to_python_json(const Json& value, bool exact_integers) {
  std::string out;
  append_python_json(out, value, exact_integers);
  return out;
}

void append_compact_json(std::string& out, const Json& value) {
  append_value(out, value, Style{",", ":", -5, 1, false});
}

std::string to_compact_json(const Json& value) {
  std::string out;
  append_compact_json(out, value);
  return out;
}

}  // namespace deepinfer::recipe
