// An answer in work: everything that the engine knows of it beside its KV (internal to engine/). It lives through
// preemption.
//
//   Answer a(live, index, vocabulary);
//   a.prepare();                                                         // the mask of the next token
//   DI_ASSIGN_OR_RETURN(int32_t token, a.draw(sampler, logits, position));
//   DI_RETURN_IF_ERROR(a.accept(token));
//   bool ends = a.take(token, &event);                                   // text, end of the answer
//
// Only draw() has to wait for the logits; the rest runs beside forwards (engine/step_runner.h).
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
struct DraftState;
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

  void prepare();
  // The next token from a row of logits.
  Result<int32_t> draw(ops::Sampler& sampler, std::span<const float> logits, int32_t position);
  // Between two rows of a verified draft: the next draw comes behind this token. accept() and take() of it are still to
  // come, and do not count it twice.
  Status advance(int32_t token);
  Status accept(int32_t token);
  // Draft tokens are drawn as the answer's own would be, behind the tokens so far. begin: the first of a round; end:
  // the answer is again as it was. -1: nothing can be drawn.
  void begin_drafts(int32_t last_token);
  int32_t draw_draft(ops::Sampler& sampler, std::span<const float> logits, int32_t position);
  void end_drafts();
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
  std::unique_ptr<DraftState> drafts;  // null: this answer never speculates

  // Log-probabilities or a callback need the logits of its tokens.
  bool reads_logits() const {
    return (live.request.logprobs && !live.request.processed_logprobs) || live.request.on_logits != nullptr;
  }

  // No token can come behind this one, which was drawn last.
  bool ends_with(int32_t token) const;
  // The next token comes as the likeliest of its logits, whatever it is.
  bool draws_likeliest() const;

  FinishReason reason() const { return reason_; }
  std::string_view stop_text() const { return output_ ? output_->stop_sequence() : std::string_view(); }

 private:
  class Text;
  bool constrained() const { return matcher_ && (!trigger_ || trigger_->open()); }
  Result<int32_t> sample(ops::Sampler& sampler, std::span<const float> logits, int32_t position);

  int32_t output_tokens() const { return usage.output_tokens + advanced_; }
  void fill_mask();
  bool push_draft(int32_t token);
  Status match(int32_t token);

  int32_t advanced_ = 0;  // tokens of advance() that take() has not seen
  std::vector<int32_t> drafted_;  // of the round in work: tokens that the history and the matcher have taken
  int matched_ = 0;               // of these, by the matcher
  bool drafts_fit_ = true;
  std::optional<ops::TokenHistory> history_;
  std::optional<grammar::Matcher> matcher_;
  std::vector<uint32_t> mask_;  // of the grammar and allowed_tokens, one bit a token
  Status mask_status_;
  std::optional<GrammarTrigger> trigger_;  // until it opens the matcher waits
  std::vector<int32_t> before_grammar_;    // and these cannot come
  std::unique_ptr<Text> text_;
  std::unique_ptr<recipe::TokenOutput> output_;
  FinishReason reason_ = FinishReason::kStopToken;
};

}  // namespace deepinfer::engine
