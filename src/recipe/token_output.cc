#include "recipe/token_output.h"

#include <algorithm>

namespace deepinfer::recipe {

TokenOutput::TokenOutput(const ParserOptions& options, const OutputVocabulary* vocabulary, OutputSink* sink, bool logprobs)
    : vocabulary_(vocabulary),
      sink_(sink),
      parser_(options, logprobs ? static_cast<OutputSink*>(this) : sink),
      plain_(options.plain),
      logprobs_(logprobs) {}

void TokenOutput::push_one(int32_t id) {
  const OutputToken token = vocabulary_->at(id);
  ++completion_tokens_;
  switch (token.kind) {
    case TokenKind::kSilent:
      return;
    case TokenKind::kText:
      if (parser_.in_reasoning()) ++reasoning_tokens_;
      return parser_.feed(token.bytes);
    case TokenKind::kLiteral:
      if (parser_.in_reasoning()) ++reasoning_tokens_;
      return parser_.feed_literal(token.bytes);
    case TokenKind::kThinkClose:
      return plain_ ? parser_.feed_literal(token.bytes) : parser_.feed_marker(Marker::kThinkClose);
    case TokenKind::kDsml:
      return plain_ ? parser_.feed_literal(token.bytes) : parser_.feed_marker(Marker::kDsml);
  }
}

void TokenOutput::push_ids(std::span<const int32_t> ids) {
  if (stopped()) return;
  for (const int32_t id : ids) push_one(id);
}

void TokenOutput::push(std::span<const TokenLogprob> tokens) {
  if (stopped()) return;
  for (const TokenLogprob& token : tokens) {
    if (logprobs_) {
      push_with_logprob(token);
    } else {
      push_one(token.id);
    }
  }
}

void TokenOutput::push_with_logprob(const TokenLogprob& token) {
  const OutputToken text = vocabulary_->at(token.id);
  if (text.kind == TokenKind::kSilent) return push_one(token.id);
  // Must wait before the token is fed, since it may come out at once. A marker is one byte to the parser; as markup it
  // never comes out.
  const bool marker = !plain_ && (text.kind == TokenKind::kThinkClose || text.kind == TokenKind::kDsml);
  waiting_.push_back({token.id, token.logprob, {token.top.begin(), token.top.end()}, marker ? 1 : text.bytes.size(), std::nullopt});
  push_one(token.id);
  if (!waiting_.empty()) waiting_.back().begin = parser_.piece_begin();
  while (!waiting_.empty() && *waiting_.front().begin + waiting_.front().size <= parser_.settled()) waiting_.pop_front();
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
  const FinishReason reason = parser_.finish(engine_reason);
  waiting_.clear();
  return reason;
}

void TokenOutput::on_reasoning(std::string_view text, SourceRange source) {
  sink_->on_reasoning(text, source);
  release(source, true);
}

void TokenOutput::on_content(std::string_view text, SourceRange source) {
  sink_->on_content(text, source);
  release(source, false);
}

void TokenOutput::release(SourceRange source, bool reasoning) {
  while (!waiting_.empty()) {
    const Waiting& w = waiting_.front();
    const uint64_t begin = w.begin.value_or(parser_.piece_begin());
    if (begin >= source.end) return;
    if (begin + w.size > source.begin) sink_->on_logprob({w.id, w.logprob, w.top}, reasoning);
    waiting_.pop_front();
  }
}

}  // namespace deepinfer::recipe
