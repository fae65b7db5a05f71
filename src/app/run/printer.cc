#include "app/run/printer.h"

#include <cerrno>

#include "app/terminal/terminal.h"
#include "text/utf8.h"

namespace deepinfer::app {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kNormal = "\x1b[0m";
constexpr std::string_view kReasoningOpen = "[thinking] ", kReasoningClose = " [/thinking]";

}  // namespace

std::string without_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Step step = text::read_utf8(text.substr(at));
    const uint32_t c = step.head == text::Utf8Head::kCharacter ? step.code_point : 0xFFFD;
    if (c < 0x20 && c != '\n' && c != '\t') {
      text::append_utf8(0x2400 + c, &out);
    } else if (c == 0x7F) {
      text::append_utf8(0x2421, &out);
    } else if (c == 0xFFFD || (c >= 0x80 && c < 0xA0)) {
      text::append_utf8(0xFFFD, &out);
    } else {
      out += text.substr(at, step.length);
    }
    at += step.length;
  }
  return out;
}

Printer::Printer(int fd) : fd_(fd), terminal_(is_terminal(fd)), style_(has_style(fd)) {}

bool Printer::put(std::string_view text) {
  if (text.empty() || error_ != 0) return error_ == 0;
  newline_ = text.back() == '\n';
  if (!write_out(fd_, text)) error_ = errno;
  return error_ == 0;
}

bool Printer::on_reasoning(std::string_view text) {
  if (!terminal_) return error_ == 0;
  if (!reasoning_) put(style_ ? kDim : kReasoningOpen);
  reasoning_ = true;
  return put(without_controls(text));
}

bool Printer::on_content(std::string_view text) {
  if (!terminal_) return put(text);
  if (reasoning_) {
    put(style_ ? kNormal : kReasoningClose);
    put("\n\n");
  }
  reasoning_ = false;
  return put(without_controls(text));
}

void Printer::finish() {
  if (reasoning_) put(style_ ? kNormal : kReasoningClose);
  if (reasoning_ || !newline_) put("\n");
  reasoning_ = false;
}

}  // namespace deepinfer::app
