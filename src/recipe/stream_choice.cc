#include "recipe/stream_choice.h"

#include "recipe/call_ids.h"
#include "recipe/logprobs.h"

namespace deepinfer::recipe {

StreamChoice::StreamChoice(const ApiStreamOptions& options, const OutputVocabulary* vocabulary, int index)
    : options_(options),
      vocabulary_(vocabulary),
      index_(index),
      tokens_(options.parser, vocabulary, this, options.logprobs) {}

void StreamChoice::push(std::span<const TokenLogprob> tokens, std::string& out) {
  out_ = &out;
  tokens_.push(tokens);
  flush();
}

void StreamChoice::push_ids(std::span<const int32_t> ids, std::string& out) {
  out_ = &out;
  tokens_.push_ids(ids);
  flush();
}

void StreamChoice::push_text(std::string_view text, int64_t tokens, std::string& out) {
  out_ = &out;
  tokens_.push_text(text, tokens);
  flush();
}

void StreamChoice::end_output(FinishReason engine_reason, std::string& out) {
  out_ = &out;
  reason_ = tokens_.finish(engine_reason);
  finished_ = true;
  flush();
}

void StreamChoice::flush() {
  if (pending_ == Pending::kNone) return;
  if (options_.stream) write_pending(*out_);
  pending_ = Pending::kNone;
  delta_.clear();
  delta_logprobs_.clear();
}

void StreamChoice::append_pending(Pending kind, std::string_view text) {
  if (pending_ != kind) flush();
  pending_ = kind;
  if (options_.stream) delta_ += text;
}

void StreamChoice::on_reasoning(std::string_view text, SourceRange) {
  saw_text_ = true;
  append_pending(Pending::kReasoning, text);
  fold_.reasoning += text;
}

void StreamChoice::on_content(std::string_view text, SourceRange) {
  saw_text_ = true;
  append_pending(Pending::kContent, text);
  fold_.content += text;
}

void StreamChoice::on_call_arguments(int call, std::string_view json) {
  append_pending(Pending::kArguments, json);
  fold_.calls[call].arguments += json;
}

void StreamChoice::on_call_part(int call, CallPart part) { fold_.calls[call].append_part(part); }

void StreamChoice::on_logprob(const TokenLogprob& token, bool reasoning) {
  std::string entry;
  append_logprob_entry(entry, *vocabulary_, token);
  // A stream without a whole body at its end need not keep them: they are much larger than the text.
  if (!options_.stream || options_.protocol == Protocol::kResponses) {
    append_listed(reasoning ? fold_.reasoning_logprobs : fold_.content_logprobs, entry);
  }
  if (options_.stream) append_listed(delta_logprobs_, entry);
}

FoldedCall& StreamChoice::record_call(std::string_view name) {
  flush();
  FoldedCall& call = fold_.calls.emplace_back();
  call.name = name;
  const int number = static_cast<int>(fold_.calls.size()) - 1;
  call.id = call_id(options_.id, index_, number, options_.thinking && !saw_text_);
  return call;
}

}  // namespace deepinfer::recipe
