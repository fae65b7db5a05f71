// What comes out of the engine for one request: events, in a bounded queue that the engine's thread fills and one
// reader empties.
//
//   std::unique_ptr<Stream> stream = engine.submit(request).value();
//   for (Event e; stream->next(&e);) {            // false once every answer has ended and all events were read
//     std::cout << e.text;
//     if (e.finished) std::cout << finish_reason_name(e.reason);
//   }
//
// An answer is a run of events with its index in `sample`: one a token, then one with `finished`. Texts are whole UTF-8
// characters; a token's text may come with a later event, or with the last one. A reader that lets the queue fill up
// pauses its own answers and nobody else's. Dropping the Stream cancels what is still running.
//
// One thread reads. cancel() may be called from any thread. Errors: an answer that failed ends with kFailed and
// `error`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/logprobs.h"

namespace deepinfer::engine {

enum class FinishReason : uint8_t {
  kStopToken,  // an end token or one of stop_tokens, or the grammar is complete
  kStopText,
  kMaxTokens,
  kContextFull,
  kKvFull,  // alone, and there is not enough KV memory for it
  kCancelled,
  kTimeout,
  kFailed,
};
// "stop", "stop_text", "length", "context_full", "kv_full", "cancelled", "timeout", "error"
std::string_view finish_reason_name(FinishReason reason);

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;    // drawn ones, the one that ended the answer included
  int32_t cached_tokens = 0;    // of the prompt
  int32_t replayed_tokens = 0;  // of those, tokens that ran again for their windows
  int32_t preemptions = 0;
  double first_token_s = 0;  // from submit
  double total_s = 0;
};

struct Event {
  int32_t sample = 0;
  int32_t token = -1;        // -1: none (only with `finished`)
  bool ends_answer = false;  // the token is an end or stop token; it has no text
  std::string text;
  bool has_logprob = false;
  TokenLogprob logprob;           // of `token`
  std::vector<TokenLogprob> top;  // likeliest first
  bool finished = false;
  FinishReason reason = FinishReason::kStopToken;
  std::string stop_text;  // that ended the answer
  Status error;
  Usage usage;  // so far; total_s with `finished`
};

// Log-probabilities of one prompt position; the first position has none.
struct PromptLogprob {
  TokenLogprob token;
  std::vector<TokenLogprob> top;
};

struct StreamState;

class Stream {
 public:
  explicit Stream(std::shared_ptr<StreamState> state);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Waits for the next event. False when there will be none any more.
  bool next(Event* event);
  // The same without waiting: false also when there is none yet.
  bool try_next(Event* event);
  // All answers have ended and all events were read.
  bool done() const;
  void cancel();
  // Called on the engine's thread after events were added, never after the Stream is gone. It must be quick and may
  // call neither the engine nor this Stream.
  void on_events(std::function<void()> notify);
  // Of every prompt position, once the first event is there; empty if they were not asked for.
  const std::vector<PromptLogprob>& prompt_logprobs() const;

 private:
  std::shared_ptr<StreamState> state_;
};

}  // namespace deepinfer::engine
