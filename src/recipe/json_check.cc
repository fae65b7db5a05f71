#include "recipe/json_check.h"

#include <bitset>
#include <cstddef>

namespace deepinfer::recipe {
namespace {

class Checker {
 public:
  explicit Checker(std::string_view text) : p_(text.data()), end_(text.data() + text.size()) {}

  bool run() {
    if (!value()) return false;
    while (depth_ > 0) {
      if (!after_value()) return false;
    }
    space();
    return p_ == end_;
  }

 private:
  void space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }
  bool take(char c) {
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }
  bool word(std::string_view w) {
    if (std::string_view(p_, end_ - p_).substr(0, w.size()) != w) return false;
    p_ += w.size();
    return true;
  }
  bool digits() {
    const char* begin = p_;
    while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
    return p_ != begin;
  }
  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      return digits();
    }
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    while (p_ < end_) {
      const unsigned char c = static_cast<unsigned char>(*p_++);
      if (c == '"') return true;
      if (c < 0x20) return false;
      if (c != '\\') continue;
      if (p_ == end_) return false;
      const char escape = *p_++;
      if (escape == 'u') {
        for (int i = 0; i < 4; ++i, ++p_) {
          if (p_ == end_ || std::string_view("0123456789abcdefABCDEF").find(*p_) == std::string_view::npos)
            return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }
  bool open(bool object) {
    if (depth_ == kJsonCheckDepthMax) return false;
    objects_[depth_++] = object;
    return true;
  }
  bool key() {
    space();
    if (!string()) return false;
    space();
    return take(':');
  }
  // A scalar, an empty container, or the way into a container down to its first scalar.
  bool value() {
    while (true) {
      space();
      if (p_ == end_) return false;
      switch (*p_) {
        case '{':
          ++p_;
          if (!open(true)) return false;
          space();
          if (take('}')) return --depth_, true;
          if (!key()) return false;
          continue;
        case '[':
          ++p_;
          if (!open(false)) return false;
          space();
          if (take(']')) return --depth_, true;
          continue;
        case '"': return string();
        case 't': return word("true");
        case 'f': return word("false");
        case 'n': return word("null");
        default: return number();
      }
    }
  }
  bool after_value() {
    space();
    const bool object = objects_[depth_ - 1];
    if (take(',')) return (!object || key()) && value();
    --depth_;
    return take(object ? '}' : ']');
  }

  const char* p_;
  const char* end_;
  std::bitset<kJsonCheckDepthMax> objects_;
  int depth_ = 0;
};

}  // namespace

bool is_json(std::string_view text) { return Checker(text).run(); }

}  // namespace deepinfer::recipe
