#include "recipe/custom_input.h"

#include <algorithm>
#include <charconv>

namespace deepinfer::recipe {
namespace {

constexpr std::string_view kOpening = "{\"input\": \"";

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace

void CustomInput::push(std::string_view arguments, std::string& out) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const char c = arguments[i];
    switch (state_) {
      case State::kOpening:
        held_ += c;
        if (c != kOpening[held_.size() - 1]) {
          out += held_;
          held_.clear();
          state_ = State::kRaw;
        } else if (held_.size() == kOpening.size()) {
          held_.clear();
          state_ = State::kString;
        }
        break;
      case State::kString: push_string(arguments, &i, out); break;
      case State::kEscape: push_escape(c, out); break;
      case State::kAfter:
        if (c != '}') out += c;
        state_ = c == '}' ? State::kClosed : State::kRaw;
        break;
      case State::kClosed:
      case State::kRaw: out.append(arguments, i); return;
    }
  }
}

void CustomInput::push_string(std::string_view arguments, size_t* at, std::string& out) {
  const size_t end = std::min(arguments.find_first_of("\"\\", *at), arguments.size());
  if (end > *at) {
    give_up_surrogate(out);
    out.append(arguments, *at, end - *at);
  }
  *at = end;
  if (end == arguments.size()) return;
  state_ = arguments[end] == '"' ? State::kAfter : State::kEscape;
  if (state_ == State::kAfter) give_up_surrogate(out);
}

// held_ is what follows the backslash.
void CustomInput::push_escape(char c, std::string& out) {
  static constexpr std::string_view kLetters = "nrtbf\"\\/", kValues = "\n\r\t\b\f\"\\/";
  held_ += c;
  if (held_[0] == 'u') {
    if (held_.size() < 5) return;
    uint32_t unit = 0;
    const auto parsed = std::from_chars(held_.data() + 1, held_.data() + 5, unit, 16);
    if (parsed.ec != std::errc() || parsed.ptr != held_.data() + 5) {
      out += '\\' + held_;
      state_ = State::kRaw;
    } else if (surrogate_ != 0 && unit >= 0xDC00 && unit <= 0xDFFF) {
      append_utf8(out, 0x10000 + ((surrogate_ - 0xD800) << 10) + (unit - 0xDC00));
      surrogate_ = 0;
    } else {
      give_up_surrogate(out);
      if (unit >= 0xD800 && unit <= 0xDBFF) {
        surrogate_ = unit;
      } else {
        append_utf8(out, unit >= 0xDC00 && unit <= 0xDFFF ? 0xFFFD : unit);
      }
    }
  } else {
    give_up_surrogate(out);
    const size_t letter = kLetters.find(c);
    if (letter == std::string_view::npos) {
      out += '\\' + held_;
      state_ = State::kRaw;
    } else {
      out += kValues[letter];
    }
  }
  if (state_ != State::kRaw) state_ = State::kString;
  held_.clear();
}

void CustomInput::give_up_surrogate(std::string& out) {
  if (surrogate_ != 0) append_utf8(out, 0xFFFD);
  surrogate_ = 0;
}

void CustomInput::finish(std::string& out) {
  give_up_surrogate(out);
  if (state_ == State::kOpening) out += held_;
  held_.clear();
  state_ = State::kClosed;
}

}  // namespace deepinfer::recipe
