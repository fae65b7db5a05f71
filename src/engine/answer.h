// An answer in work: everything that the engine knows of it beside its KV (internal to engine/). It lives through
// preemption.
//
//   Answer a(live, index, vocabulary);
//   DI_ASSIGN_OR_RETURN(int32_t token, a.draw(sampler, logits, place, mask));
//   bool ends = a.take(token, &event);       // text, end of the answer
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/grammar_trigger.h"
#include "engine/request.h"
#include "engine/stream.h"
#include "grammar/matcher.h"
#include "ops/cpu/sampler.h"
#include "recipe/output_vocabulary.h"
#include "recipe/token_output.h"

namespace deepinfer::engine {

struct StreamState;
class Answer;

// A request in work.
struct Live {
  Request request;
  std::shared_ptr<StreamState> stream;
  uint64_t seed = 0;
  std::vector<int32_t> end_tokens;  // of the model and of the request
  std::vector<uint32_t> allowed;    // bits, of allowed_tokens; empty: all
  std::vector<std::unique_ptr<Answer>> answers;
  int open = 0;  // answers that have not ended
  bool paused = false;
  double submitted_s = 0;
};

class Answer {
 public:
  // `vocabulary` is null without text.
  Answer(Live& live, int index, int vocab_size, const recipe::OutputVocabulary* vocabulary);
  ~Answer();

  // The next token from a row of logits. `mask` is scratch of one bit a token.
  Result<int32_t> draw(ops::Sampler& sampler, std::span<const float> logits, int32_t position,
                       std::span<uint32_t> mask);
  // Makes the token a part of the answer and fills the event. True if it ends the answer; reason() then says why.
  bool take(int32_t token, Event* event);
  // Text that was held back, once there will be no more tokens.
  std::string finish_text();

  Live& live;
  const int index;
  int64_t id = 0;  // the scheduler's
  bool ended = false;
  Status error;
  Usage usage;
  // Of the last token drawn, with processed_logprobs.
  TokenLogprob processed;
  std::vector<TokenLogprob> processed_top;

  FinishReason reason() const { return reason_; }
  std::string_view stop_text() const { return output_ ? output_->stop_sequence() : std::string_view(); }

 private:
  class Text;
  bool constrained() const { return matcher_ && (!trigger_ || trigger_->open()); }
  Result<int32_t> sample(ops::Sampler& sampler, std::span<const float> logits, int32_t position,
                         std::span<uint32_t> mask);
  std::span<const uint32_t> allowed_bits(std::span<uint32_t> mask, Status* status);

  std::optional<ops::TokenHistory> history_;
  std::optional<grammar::Matcher> matcher_;
  std::optional<GrammarTrigger> trigger_;  // until it opens the matcher waits
  std::vector<int32_t> before_grammar_;    // and these cannot come
  std::unique_ptr<Text> text_;
  std::unique_ptr<recipe::TokenOutput> output_;
  FinishReason reason_ = FinishReason::kStopToken;
};

}  // namespace deepinfer::engine
