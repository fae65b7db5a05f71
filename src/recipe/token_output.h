// Feeds a parser with sampled token ids: decodes them, counts them, and hands each token's log-probability on together
// with the first of its bytes that becomes reasoning or content (spec/protocol.md 8.1, 8.5, 9.5).
//
//   TokenOutput output(options, &vocabulary, &sink, /*logprobs=*/false);
//   output.push(tokens);                       // the sink hears of text, calls and log-probabilities
//   FinishReason reason = output.finish(FinishReason::kStop);
//
// Every token counts as completion, also those of markup and an end-of-sequence id if it is pushed. Reasoning tokens
// are those of which at least one byte came out as reasoning, so neither markup nor dropped newlines. A push that holds
// a stop match counts as a whole; later ones are ignored.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "recipe/output_events.h"
#include "recipe/output_parser.h"
#include "recipe/output_vocabulary.h"

namespace deepinfer::recipe {

class TokenOutput : private OutputSink {
 public:
  // With options.markers, as it should be where ids are known, only special ids are markup.
  TokenOutput(const ParserOptions& options, const OutputVocabulary* vocabulary, OutputSink* sink, bool logprobs);

  void push(std::span<const TokenLogprob> tokens);
  void push_ids(std::span<const int32_t> ids);
  // For an engine that delivers text only; `tokens` is how many it stands for.
  void push_text(std::string_view text, int64_t tokens);
  FinishReason finish(FinishReason engine_reason);

  bool stopped() const { return parser_.stopped(); }
  std::string_view stop_sequence() const { return parser_.stop_sequence(); }
  int calls() const { return parser_.calls(); }
  bool in_reasoning() const { return parser_.in_reasoning(); }
  int64_t completion_tokens() const { return completion_tokens_; }
  // Unknown if text was pushed.
  std::optional<int64_t> reasoning_tokens() const;

 private:
  // A token of which nothing has come out yet.
  struct Waiting {
    int32_t id = 0;
    double logprob = 0;
    std::vector<TopLogprob> top;
    size_t size = 0;                // in bytes of the parser's SourceRange
    std::optional<uint64_t> begin;  // none while the token is being fed
  };

  void on_reasoning(std::string_view text, SourceRange source) override;
  void on_content(std::string_view text, SourceRange source) override;
  void on_call_begin(int call, std::string_view name) override { sink_->on_call_begin(call, name); }
  void on_call_arguments(int call, std::string_view json) override { sink_->on_call_arguments(call, json); }
  void on_call_end(int call, bool complete) override { sink_->on_call_end(call, complete); }
  void on_call_part(int call, CallPart part) override { sink_->on_call_part(call, part); }

  void push_one(const TokenLogprob& token);
  void feed(const OutputToken& token);
  void release(SourceRange source, bool reasoning);

  const OutputVocabulary* vocabulary_;
  OutputSink* sink_;
  OutputParser parser_;
  const bool plain_;
  const bool logprobs_;
  bool text_pushed_ = false;
  int64_t completion_tokens_ = 0, reasoning_tokens_ = 0;
  std::deque<Waiting> waiting_;  // in order; without log-probabilities only tokens of reasoning
};

}  // namespace deepinfer::recipe
