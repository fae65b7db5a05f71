#include "recipe/token_output.h"

#include <algorithm>

namespace deepinfer::recipe {

TokenOutput::TokenOutput(const ParserOptions& options, const OutputVocabulary* vocabulary, OutputSink* sink,
                         bool logprobs)
    : vocabulary_(vocabulary), sink_(sink), parser_(options, this), plain_(options.plain), logprobs_(logprobs) {}

void TokenOutput::push_ids(std::span<const int32_t> ids) {
  if (stopped()) return;
  for (const int32_t id : ids) push_one({id, 0, {}});
}

void TokenOutput::push(std::span<const TokenLogprob> tokens) {
  if (stopped()) return;
  for (const TokenLogprob& token : tokens) push_one(token);
}

void TokenOutput::push_one(const TokenLogprob& token) {
  ++completion_tokens_;
  OutputToken text = vocabulary_->at(token.id);
  if (text.kind == TokenKind::kSilent) return;
  if (plain_ && text.kind != TokenKind::kText) text.kind = TokenKind::kLiteral;
  if (!logprobs_ && !parser_.in_reasoning()) return feed(text);
  // The token waits before it is fed, since it may come out at once. To the parser a marker is one byte.
  const bool marker = text.kind == TokenKind::kThinkClose || text.kind == TokenKind::kDsml;
  Waiting& waiting = waiting_.emplace_back();
  waiting.id = token.id;
  waiting.size = marker ? 1 : text.bytes.size();
  if (logprobs_) {
    waiting.logprob = token.logprob;
    waiting.top.assign(token.top.begin(), token.top.end());
  }
  feed(text);
  if (!waiting_.empty()) waiting_.back().begin = parser_.piece_begin();
  while (!waiting_.empty() && *waiting_.front().begin + waiting_.front().size <= parser_.settled())
    waiting_.pop_front();
}

void TokenOutput::feed(const OutputToken& token) {
  switch (token.kind) {
    case TokenKind::kSilent: return;
    case TokenKind::kText: return parser_.feed(token.bytes);
    case TokenKind::kLiteral: return parser_.feed_literal(token.bytes);
    case TokenKind::kThinkClose: return parser_.feed_marker(Marker::kThinkClose);
    case TokenKind::kDsml: return parser_.feed_marker(Marker::kDsml);
  }
}

void TokenOutput::push_text(std::string_view text, int64_t tokens) {
  if (stopped()) return;
  text_pushed_ = true;
  completion_tokens_ += tokens;
  parser_.feed(text);
}

std::optional<int64_t> TokenOutput::reasoning_tokens() const {
  if (text_pushed_) return std::nullopt;
  return reasoning_tokens_;
}

FinishReason TokenOutput::finish(FinishReason engine_reason) {
  const bool reasoning = parser_.in_reasoning();
  const uint64_t end = parser_.position();
  const FinishReason reason = parser_.finish(engine_reason);
  // Tokens of a character that never became whole count although nothing of them comes out.
  if (reasoning)
    reasoning_tokens_ +=
        std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return *w.begin >= end; });
  waiting_.clear();
  return reason;
}

void TokenOutput::on_reasoning(std::string_view text, SourceRange source) {
  sink_->on_reasoning(text, source);
  release(source, true);
}

void TokenOutput::on_content(std::string_view text, SourceRange source) {
  sink_->on_content(text, source);
  if (!waiting_.empty()) release(source, false);
}

void TokenOutput::release(SourceRange source, bool reasoning) {
  while (!waiting_.empty()) {
    const Waiting& w = waiting_.front();
    const uint64_t begin = w.begin.value_or(parser_.piece_begin());
    if (begin >= source.end) return;
    if (begin + w.size > source.begin) {
      if (reasoning) ++reasoning_tokens_;
      if (logprobs_) sink_->on_logprob({w.id, w.logprob, w.top}, reasoning);
    }
    waiting_.pop_front();
  }
}

}  // namespace deepinfer::recipe
