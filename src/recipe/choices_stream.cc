#include "recipe/choices_stream.h"

#include <algorithm>

namespace deepinfer::recipe {

StreamChoice* ChoicesStream::open_choice(int choice) {
  if (error_ || choice < 0 || static_cast<size_t>(choice) >= choices_.size()) return nullptr;
  StreamChoice* c = choices_[choice].get();
  return c->finished() ? nullptr : c;
}

void ChoicesStream::push(int choice, std::span<const TokenLogprob> tokens, std::string& out) {
  if (StreamChoice* c = open_choice(choice)) c->push(tokens, out);
}

void ChoicesStream::push_ids(int choice, std::span<const int32_t> ids, std::string& out) {
  if (StreamChoice* c = open_choice(choice)) c->push_ids(ids, out);
}

void ChoicesStream::push_text(int choice, std::string_view text, int64_t tokens, std::string& out) {
  if (StreamChoice* c = open_choice(choice)) c->push_text(text, tokens, out);
}

bool ChoicesStream::stopped(int choice) const {
  return choice >= 0 && static_cast<size_t>(choice) < choices_.size() && choices_[choice]->tokens().stopped();
}

void ChoicesStream::finish(int choice, FinishReason engine_reason, std::string& out) {
  StreamChoice* c = open_choice(choice);
  if (c == nullptr) return;
  before_end(engine_reason);
  c->end_output(engine_reason, out);
  const bool last = std::all_of(choices_.begin(), choices_.end(), [](const auto& other) { return other->finished(); });
  write_finish(*c, last, out);
}

void ChoicesStream::fail(const StreamError& error, std::string& out) {
  if (error_) return;
  error_ = error;
  write_failure(error, out);
}

Usage ChoicesStream::usage() const {
  Usage total = prompt_;
  total.completion_tokens = 0;
  total.reasoning_tokens = 0;
  for (const auto& choice : choices_) {
    total.completion_tokens += choice->tokens().completion_tokens();
    const std::optional<int64_t> reasoning = choice->tokens().reasoning_tokens();
    if (reasoning && total.reasoning_tokens) {
      *total.reasoning_tokens += *reasoning;
    } else {
      total.reasoning_tokens.reset();
    }
  }
  return total;
}

}  // namespace deepinfer::recipe
