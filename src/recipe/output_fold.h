// The parts of a whole response that every API has, gathered from parser events: reasoning, answer, calls and
// log-probability entries.
//
//   OutputFold fold;
//   fold.content += text;
//   fold.calls.push_back({.name = "read_gauge", .id = id});
//   std::string arguments = fold.calls.back().without_repeated_keys();
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/output_events.h"

namespace deepinfer::recipe {

struct FoldedCall {
  std::string name, id;
  std::string arguments;  // as streamed
  bool complete = false;

  // Of a key that comes twice only the last value stays, at the first one's place (spec/protocol.md 8.6). A call that
  // was cut off stays as it is.
  std::string without_repeated_keys() const;

  void append_part(CallPart part);

 private:
  struct Parameter {
    size_t key = 0, value = 0;  // offsets in `arguments`
  };
  std::vector<Parameter> parameters_;
};

struct OutputFold {
  std::string reasoning, content;
  std::vector<FoldedCall> calls;
  std::string reasoning_logprobs, content_logprobs;  // entries, separated by commas

  bool empty_thought() const { return reasoning.empty() && content.empty(); }
};

// Appends `entry` to a comma-separated list.
inline void append_listed(std::string& list, std::string_view entry) {
  if (!list.empty()) list += ',';
  list += entry;
}

}  // namespace deepinfer::recipe
