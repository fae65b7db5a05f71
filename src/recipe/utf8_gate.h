// Lets only whole, valid UTF-8 characters through: an unfinished character at the end of a piece waits for the next
// piece, bytes that can never become a character turn into U+FFFD (spec/protocol.md 8.1).
//
//   Utf8Gate gate;
//   std::string_view text = gate.push("\xE7\xB1");      // ""
//   text = gate.push("\xB3!");                          // "米!"
//
// One U+FFFD stands for each maximal prefix of a well-formed sequence (the Unicode standard's practice).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deepinfer::recipe {

class Utf8Gate {
 public:
  // What can be passed on now. The view points into `bytes` or into the gate and lives until the next call.
  std::string_view push(std::string_view bytes);
  // Of the text that push returned last: how many bytes stem from pieces before that one.
  size_t from_earlier() const { return from_earlier_; }
  // Bytes waiting for the rest of their character, 0 to 3.
  size_t waiting() const { return tail_size_; }
  // Gives the waiting bytes up; returns U+FFFD if there were any, else nothing.
  std::string_view break_off();
  void drop() { tail_size_ = 0; }

 private:
  void append_clean(std::string_view bytes);

  char tail_[4] = {};
  size_t tail_size_ = 0;
  size_t from_earlier_ = 0;
  std::string buffer_;
};

}  // namespace deepinfer::recipe
