// The input of a custom tool call out of the function arguments that carry it: {"input": "..."} (spec/protocol.md 9.8,
// 10.8), while they stream in.
//
//   CustomInput input;
//   std::string delta;
//   input.push("{\"input\": \"a\\n", delta);     // delta "a\n"
//   input.push("b\"}", delta);                   // delta "a\nb"
//   input.finish(delta);
//
// Arguments of another shape pass through as they are from the first byte that does not fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer::recipe {

class CustomInput {
 public:
  void push(std::string_view arguments, std::string& out);
  void finish(std::string& out);

 private:
  enum class State { kOpening, kString, kEscape, kAfter, kClosed, kRaw };
  void push_string(std::string_view arguments, size_t* at, std::string& out);
  void push_escape(char c, std::string& out);
  void give_up_surrogate(std::string& out);

  std::string held_;        // opening or escape seen so far
  uint32_t surrogate_ = 0;  // first half of a pair, waiting for the second
  State state_ = State::kOpening;
};

}  // namespace deepinfer::recipe
