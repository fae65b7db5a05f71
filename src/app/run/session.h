// One person talking to one model: renders what was said, generates, parses the answer while it comes.
//
//   Session session(generator, tokenizer, settings);
//   DI_ASSIGN_OR_RETURN(Answer answer, session.chat(conversation, sink, &stop));       // V4.1 chat format
//   DI_ASSIGN_OR_RETURN(Answer answer, session.complete("Once upon", sink, &stop));    // no template; BOS first unless
//   it is there
//
// Each call is a new sequence; what it has in common with earlier ones is not computed again. The sink hears reasoning
// and content as they come; the Answer has both whole. Raw text may spell special tokens; text of a conversation may
// not (spec/protocol.md 7.2). Errors: kInvalidArgument for text that is not UTF-8, empty or too long, for stop
// sequences that cannot be used, and for a tokenizer that lacks the chat format's tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine_generator.h"
#include "recipe/conversation.h"
#include "recipe/output_events.h"
#include "text/tokenizer.h"

namespace deepinfer::app {

struct SessionSettings {
  ops::SamplingParams sampling;
  uint64_t seed = 0;
  int64_t max_tokens = 0;  // 0: until the context is full
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;
  engine::Prefill prefill = engine::Prefill::kTail;
};

struct Answer {
  std::string reasoning, content;
  recipe::FinishReason finish = recipe::FinishReason::kStop;
  bool cancelled = false;     // by *stop; finish means nothing
  bool in_reasoning = false;  // ended before the answer proper began
  int64_t reasoning_tokens = 0;
  engine::GenerateResult figures;
};

// Pieces of the answer. False ends it.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  virtual bool on_reasoning(std::string_view text) = 0;
  virtual bool on_content(std::string_view text) = 0;
};

class Session {
 public:
  // The generator must outlive the session.
  Session(engine::EngineGenerator& generator, text::Tokenizer tokenizer, SessionSettings settings);
  ~Session();

  SessionSettings& settings();

  Result<Answer> chat(const recipe::Conversation& conversation, AnswerSink& sink, const std::atomic<bool>* stop);
  Result<Answer> complete(const std::string& text, AnswerSink& sink, const std::atomic<bool>* stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// kInvalidArgument that names `what` and the first bad byte if the text is not UTF-8.
Status check_utf8(std::string_view text, std::string_view what);

}  // namespace deepinfer::app
