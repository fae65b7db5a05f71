// What a model's output consists of once it is parsed, and why it ended: the border between the output parser and the
// three APIs' event builders.
//
//   class Printer : public OutputSink {
//     void on_content(std::string_view text, SourceRange) override { fwrite(text.data(), 1, text.size(), stdout); }
//     ...
//   };
//
// All texts are valid UTF-8 and live only during the call. Pieces are cut anywhere between characters; only their
// concatenation has a meaning. Finish reasons and their names in each API: spec/protocol.md 8.4.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace deepinfer::recipe {

// Where a piece came from: bytes [begin, end) of everything fed to the parser, after invalid UTF-8 was replaced; a
// marker counts as one byte.
struct SourceRange {
  uint64_t begin = 0, end = 0;
};

enum class CallPart : uint8_t { kKey, kValue };

struct TopLogprob {
  int32_t id = 0;
  double logprob = 0;
};

// A sampled token with its natural log-probability and the likeliest tokens at its place. `top` lives during the call.
struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
  std::span<const TopLogprob> top;
};

class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_reasoning(std::string_view text, SourceRange source) = 0;
  virtual void on_content(std::string_view text, SourceRange source) = 0;
  // Calls are numbered from 0 and never overlap. A call is announced when its name is complete.
  virtual void on_call_begin(int call, std::string_view name) = 0;
  // The next piece of the call's arguments, which together are the text of a JSON object.
  virtual void on_call_arguments(int call, std::string_view json) = 0;
  // `complete` is false for a call that the end of the output cut off: its arguments may be no valid JSON.
  virtual void on_call_end(int call, bool complete) = 0;
  // A parameter's key starts with the next piece of arguments, or its value does.
  virtual void on_call_part(int call, CallPart part) { (void)call, (void)part; }
  // Log-probability of a token of which at least one byte has just come out as reasoning or content.
  virtual void on_logprob(const TokenLogprob& token, bool reasoning) { (void)token, (void)reasoning; }
};

enum class FinishReason : uint8_t {
  kStop,
  kToolCalls,
  kStopSequence,
  kLength,
  kContextFull,  // the context window is used up
  kContentFilter,
  kEndOfStream,  // the engine ended without a reason
  kOutOfCapacity,
  kCancelled,  // the client asked to stop
};

// "stop", "tool_calls", "stop_sequence", "length", "context_full", "content_filter", "end_of_stream",
// "out_of_capacity", "cancelled"
std::string_view finish_reason_name(FinishReason reason);

}  // namespace deepinfer::recipe
