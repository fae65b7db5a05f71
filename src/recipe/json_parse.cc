#include <algorithm>
#include <charconv>
#include <cstring>

#include "recipe/json.h"

namespace deepinfer::recipe {
namespace {

// Objects up to this size look for repeated keys by comparing all pairs; larger ones sort.
constexpr size_t kPairwiseKeys = 16;

// The last value of a repeated key moves to the key's first position.
void merge_repeated_keys(JsonObject& members) {
  const size_t n = members.size();
  if (n < 2) return;
  std::vector<uint32_t> first(n);
  bool repeated = false;
  if (n <= kPairwiseKeys) {
    for (size_t i = 0; i < n; ++i) {
      first[i] = static_cast<uint32_t>(i);
      for (size_t j = 0; j < i; ++j) {
        if (members[j].key == members[i].key) {
          first[i] = static_cast<uint32_t>(j);
          repeated = true;
          break;
        }
      }
    }
  } else {
    std::vector<uint32_t> order(n);
    for (size_t i = 0; i < n; ++i) order[i] = static_cast<uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const int c = members[a].key.compare(members[b].key);
      return c != 0 ? c < 0 : a < b;
    });
    first[order[0]] = order[0];
    for (size_t i = 1; i < n; ++i) {
      const bool same = members[order[i]].key == members[order[i - 1]].key;
      first[order[i]] = same ? first[order[i - 1]] : order[i];
      repeated |= same;
    }
  }
  if (!repeated) return;
  JsonObject kept;
  kept.reserve(n);
  std::vector<uint32_t> position(n);
  for (size_t i = 0; i < n; ++i) {
    if (first[i] == i) {
      position[i] = static_cast<uint32_t>(kept.size());
      kept.push_back(std::move(members[i]));
    } else {
      kept[position[first[i]]].value = std::move(members[i].value);
    }
  }
  members = std::move(kept);
}

// Bytes of the valid UTF-8 character at p, or 0.
size_t utf8_length(const unsigned char* p, const unsigned char* end) {
  const auto continues = [&](size_t i) { return p + i < end && (p[i] & 0xc0) == 0x80; };
  if (p[0] < 0x80) return 1;
  if (p[0] < 0xc2) return 0;
  if (p[0] < 0xe0) return continues(1) ? 2 : 0;
  if (p[0] < 0xf0) {
    if (!continues(1) || !continues(2)) return 0;
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (p[0] == 0xed && p[1] > 0x9f) return 0;
    return 3;
  }
  if (p[0] > 0xf4 || !continues(1) || !continues(2) || !continues(3)) return 0;
  if (p[0] == 0xf0 && p[1] < 0x90) return 0;
  if (p[0] == 0xf4 && p[1] > 0x8f) return 0;
  return 4;
}

// True if any of the eight bytes is below 0x20, a quote, a backslash or not ASCII.
bool has_special_byte(uint64_t w) {
  constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  const uint64_t quote = w ^ (kOnes * '"'), backslash = w ^ (kOnes * '\\');
  return (((w - kOnes * 0x20) | (quote - kOnes) | (backslash - kOnes) | w) & kHigh) != 0;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

class Parser {
 public:
  Parser(std::string_view text, const JsonLimits& limits)
      : begin_(text.data()), p_(begin_), end_(begin_ + text.size()), limits_(limits) {}

  Result<Json> run() {
    Json value;
    skip_space();
    if (!parse_value(value, 0)) return error();
    skip_space();
    if (p_ != end_) {
      fail("text after the JSON value");
      return error();
    }
    return value;
  }

 private:
  bool fail(std::string_view what, Code code = Code::kInvalidArgument) {
    what_ = what;
    code_ = code;
    return false;
  }

  Status error() const {
    const size_t line = 1 + static_cast<size_t>(std::count(begin_, p_, '\n'));
    const char* line_begin = p_;
    while (line_begin > begin_ && line_begin[-1] != '\n') --line_begin;
    return make_error(code_, "{} at line {} column {}", what_, line, p_ - line_begin + 1);
  }

  void skip_space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  bool parse_value(Json& out, int depth) {
    if (p_ == end_) return fail("the text ends where a value is expected");
    if (++values_ > limits_.values_max) {
      return fail(fmt::format("more than {} JSON values (limit json_values_max)", limits_.values_max),
                  Code::kResourceExhausted);
    }
    switch (*p_) {
      case '{': return parse_object(out, depth + 1);
      case '[': return parse_array(out, depth + 1);
      case '"': {
        std::string text;
        if (!parse_string(text)) return false;
        out = Json(std::move(text));
        return true;
      }
      case 't': return parse_word("true", Json(true), out);
      case 'f': return parse_word("false", Json(false), out);
      case 'n': return parse_word("null", Json(), out);
      default: return parse_number(out);
    }
  }

  bool parse_word(std::string_view word, Json value, Json& out) {
    if (static_cast<size_t>(end_ - p_) < word.size() || std::string_view(p_, word.size()) != word) {
      return fail("a value is expected");
    }
    p_ += word.size();
    out = std::move(value);
    return true;
  }

  bool enter(int depth) {
    if (depth <= limits_.depth_max) return true;
    return fail(fmt::format("arrays and objects nested deeper than {} (limit json_depth_max)", limits_.depth_max),
                Code::kResourceExhausted);
  }

  bool parse_array(Json& out, int depth) {
    if (!enter(depth)) return false;
    ++p_;
    JsonArray items;
    skip_space();
    if (p_ != end_ && *p_ == ']') {
      ++p_;
      out = Json(std::move(items));
      return true;
    }
    for (;;) {
      items.emplace_back();
      skip_space();
      if (!parse_value(items.back(), depth)) return false;
      skip_space();
      if (p_ != end_ && *p_ == ',') {
        ++p_;
        continue;
      }
      if (p_ == end_ || *p_ != ']') return fail("',' or ']' is expected");
      ++p_;
      out = Json(std::move(items));
      return true;
    }
  }

  bool parse_object(Json& out, int depth) {
    if (!enter(depth)) return false;
    ++p_;
    JsonObject members;
    skip_space();
    if (p_ != end_ && *p_ == '}') {
      ++p_;
      out = Json(std::move(members));
      return true;
    }
    for (;;) {
      skip_space();
      if (p_ == end_ || *p_ != '"') return fail("a key in quotes is expected");
      JsonMember& member = members.emplace_back();
      if (!parse_string(member.key)) return false;
      skip_space();
      if (p_ == end_ || *p_ != ':') return fail("':' is expected");
      ++p_;
      skip_space();
      if (!parse_value(member.value, depth)) return false;
      skip_space();
      if (p_ != end_ && *p_ == ',') {
        ++p_;
        continue;
      }
      if (p_ == end_ || *p_ != '}') return fail("',' or '}' is expected");
      ++p_;
      merge_repeated_keys(members);
      out = Json(std::move(members));
      return true;
    }
  }

  // Moves p_ over string bytes that need no care; validates UTF-8.
  bool skip_plain() {
    for (;;) {
      while (end_ - p_ >= 8) {
        uint64_t w;
        std::memcpy(&w, p_, 8);
        if (has_special_byte(w)) break;
        p_ += 8;
      }
      if (p_ == end_) return fail("the text ends inside a string");
      const unsigned char c = static_cast<unsigned char>(*p_);
      if (c == '"' || c == '\\') return true;
      if (c < 0x20) return fail("a control character inside a string must be escaped");
      const size_t length =
          utf8_length(reinterpret_cast<const unsigned char*>(p_), reinterpret_cast<const unsigned char*>(end_));
      if (length == 0) return fail("invalid UTF-8");
      p_ += length;
    }
  }

  bool parse_string(std::string& out) {
    ++p_;
    for (;;) {
      const char* start = p_;
      if (!skip_plain()) return false;
      out.append(start, p_);
      if (*p_++ == '"') return true;
      if (!parse_escape(out)) return false;
    }
  }

  bool parse_escape(std::string& out) {
    if (p_ == end_) return fail("the text ends inside a string");
    switch (*p_++) {
      case '"': out += '"'; return true;
      case '\\': out += '\\'; return true;
      case '/': out += '/'; return true;
      case 'b': out += '\b'; return true;
      case 'f': out += '\f'; return true;
      case 'n': out += '\n'; return true;
      case 'r': out += '\r'; return true;
      case 't': out += '\t'; return true;
      case 'u': break;
      default: --p_; return fail("unknown escape in a string");
    }
    uint32_t c;
    if (!parse_hex4(c)) return false;
    if (c >= 0xdc00 && c <= 0xdfff) return fail("lone surrogate escape in a string");
    if (c >= 0xd800 && c <= 0xdbff) {
      uint32_t low;
      if (end_ - p_ < 2 || p_[0] != '\\' || p_[1] != 'u') return fail("lone surrogate escape in a string");
      p_ += 2;
      if (!parse_hex4(low)) return false;
      if (low < 0xdc00 || low > 0xdfff) return fail("lone surrogate escape in a string");
      c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, c);
    return true;
  }

  bool parse_hex4(uint32_t& out) {
    if (end_ - p_ < 4) return fail("\\u needs four hexadecimal digits");
    const auto result = std::from_chars(p_, p_ + 4, out, 16);
    if (result.ptr != p_ + 4) return fail("\\u needs four hexadecimal digits");
    p_ += 4;
    return true;
  }

  bool skip_digits() {
    const char* start = p_;
    while (p_ != end_ && *p_ >= '0' && *p_ <= '9') ++p_;
    return p_ != start;
  }

  bool parse_number(Json& out) {
    const char* start = p_;
    if (*p_ == '-') ++p_;
    if (p_ != end_ && *p_ == '0') {
      ++p_;
    } else if (!skip_digits()) {
      return fail("a value is expected");
    }
    bool integer = true;
    if (p_ != end_ && *p_ == '.') {
      integer = false;
      ++p_;
      if (!skip_digits()) return fail("digits are expected after the decimal point");
    }
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      integer = false;
      ++p_;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (!skip_digits()) return fail("digits are expected in the exponent");
    }
    if (integer) {
      int64_t i;
      if (std::from_chars(start, p_, i).ec == std::errc()) {
        out = Json(i);
        return true;
      }
      uint64_t u;
      if (*start != '-' && std::from_chars(start, p_, u).ec == std::errc()) {
        out = Json(u);
        return true;
      }
    }
    return parse_long_number(start, integer, out);
  }

  bool parse_long_number(const char* start, bool integer, Json& out) {
    double d = 0;
    if (std::from_chars(start, p_, d).ec == std::errc::result_out_of_range) {
      // from_chars reports underflow like overflow; a value that rounds to zero is fine.
      d = std::strtod(std::string(start, p_).c_str(), nullptr);
      if (d > 1 || d < -1) return fail("the number does not fit a double");
    }
    if (integer) {
      out = Json(BigInteger{std::string(start, p_)});
    } else {
      out = Json(d);
    }
    return true;
  }

  const char* begin_;
  const char* p_;
  const char* end_;
  const JsonLimits& limits_;
  size_t values_ = 0;
  std::string what_;
  Code code_ = Code::kInvalidArgument;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max) {
    return make_error(Code::kResourceExhausted, "the JSON text has {} bytes, more than {} (limit json_bytes_max)",
                      text.size(), limits.bytes_max);
  }
  return Parser(text, limits).run();
}

}  // namespace deepinfer::recipe
