#include "grammar/lark_tokens.h"

#include <algorithm>

namespace deepinfer::grammar {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(uint32_t c, std::string& out) {
  const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out.push_back(static_cast<char>(kLead[tail] | c >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (c >> (6 * i) & 0x3f)));
}

class Reader {
 public:
  explicit Reader(std::string_view s) : s_(s) {}

  Result<std::vector<LarkToken>> run() {
    while (skip_blank(), at_ < s_.size()) DI_RETURN_IF_ERROR(token());
    out_.push_back({LarkKind::kEnd, "", "", s_.size()});
    return std::move(out_);
  }

 private:
  void skip_blank() {
    while (at_ < s_.size()) {
      const bool comment = s_.substr(at_).starts_with("//") || s_[at_] == '#';
      if (comment) at_ = std::min(s_.find('\n', at_), s_.size());
      else if (std::string_view(" \t\r\n\f").find(s_[at_]) != std::string_view::npos) ++at_;
      else return;
    }
  }

  template <class Is>
  std::string take(Is&& is) {
    const size_t begin = at_;
    while (at_ < s_.size() && is(s_[at_])) ++at_;
    return std::string(s_.substr(begin, at_ - begin));
  }

  Status token() {
    const size_t before = s_.substr(0, at_).find_last_not_of(" \t");
    const bool leads = before == std::string_view::npos || s_[before] == '\n';
    const size_t count = out_.size();
    DI_RETURN_IF_ERROR(read());
    if (out_.size() > count) out_.back().leads = leads;
    return {};
  }

  Status read() {
    const size_t begin = at_;
    const char c = s_[at_];
    auto add = [&](LarkKind kind, std::string text) {
      out_.push_back({kind, std::move(text), "", begin});
      return Status();
    };
    if (c == '"') return string();
    if (c == '/') return regexp();
    if (is_letter(c)) return add(LarkKind::kName, take([](char x) { return is_letter(x) || is_digit(x); }));
    if (is_digit(c)) return add(LarkKind::kNumber, take(is_digit));
    if (c == '%') {
      ++at_;
      return add(LarkKind::kDirective, "%" + take(is_letter));
    }
    for (std::string_view mark :
         {"->", "..", ":", "|", "(", ")", "[", "]", "?", "*", "+", "~", ".", ",", "{", "}", "!", "-"}) {
      if (!s_.substr(at_).starts_with(mark)) continue;
      at_ += mark.size();
      return add(LarkKind::kMark, std::string(mark));
    }
    return lark_error(s_, at_, "unexpected character");
  }

  Status string() {
    LarkToken t{LarkKind::kString, "", "", at_};
    for (++at_; at_ < s_.size() && s_[at_] != '"';) {
      if (s_[at_] == '\n') return lark_error(s_, t.at, "this string has no end");
      if (s_[at_] == '\\') DI_RETURN_IF_ERROR(escape(t.text));
      else t.text.push_back(s_[at_++]);
    }
    if (at_ >= s_.size()) return lark_error(s_, t.at, "this string has no end");
    ++at_;
    t.flags = take([](char c) { return c == 'i'; });
    out_.push_back(std::move(t));
    return {};
  }

  Status escape(std::string& out) {
    const size_t begin = at_++;
    const char c = at_ < s_.size() ? s_[at_++] : '\0';
    static constexpr std::string_view kNames = "nrtfv0\\\"'/", kValues{"\n\r\t\f\v\0\\\"'/", 10};
    if (const size_t i = kNames.find(c); i != std::string_view::npos && c != '\0') {
      out.push_back(kValues[i]);
      return {};
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char h = at_ < s_.size() ? s_[at_] : '\0';
      const int n = is_digit(h) ? h - '0' : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10 : -1;
      if (n < 0) return lark_error(s_, begin, "an escape has too few hexadecimal digits");
      value = value << 4 | static_cast<uint32_t>(n);
    }
    if (digits == 0 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      return lark_error(s_, begin, "unknown escape");
    append_utf8(value, out);
    return {};
  }

  Status regexp() {
    LarkToken t{LarkKind::kRegexp, "", "", at_};
    bool in_class = false;
    for (++at_; at_ < s_.size() && s_[at_] != '\n' && (s_[at_] != '/' || in_class); ++at_) {
      if (s_[at_] == '[') in_class = true;
      if (s_[at_] == ']') in_class = false;
      if (s_[at_] == '\\' && at_ + 1 < s_.size()) t.text.push_back(s_[at_++]);
      t.text.push_back(s_[at_]);
    }
    if (at_ >= s_.size() || s_[at_] != '/') return lark_error(s_, t.at, "this regular expression has no end");
    ++at_;
    t.flags = take([](char c) { return c >= 'a' && c <= 'z'; });
    out_.push_back(std::move(t));
    return {};
  }

  std::string_view s_;
  size_t at_ = 0;
  std::vector<LarkToken> out_;
};

}  // namespace

Status lark_error(std::string_view source, size_t at, std::string_view what) {
  const std::string_view before = source.substr(0, std::min(at, source.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  return make_error(Code::kInvalidArgument, "Lark grammar, line {}, column {}: {}", line,
                    before.size() - (start == std::string_view::npos ? 0 : start + 1) + 1, what);
}

Result<std::vector<LarkToken>> read_lark_tokens(std::string_view source) { return Reader(source).run(); }

}  // namespace deepinfer::grammar
