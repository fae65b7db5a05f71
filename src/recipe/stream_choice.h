// What the event builders share: one choice's output with its parser, its fold and the frame it is writing.
//
// Text of one kind gathers in a pending delta, which a builder writes as one frame when the kind changes or the step
// ends. Internal to this room.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "recipe/api_stream.h"
#include "recipe/output_events.h"
#include "recipe/output_fold.h"
#include "recipe/token_output.h"

namespace deepinfer::recipe {

class StreamChoice : public OutputSink {
 public:
  StreamChoice(const ApiStreamOptions& options, const OutputVocabulary* vocabulary, int index);
  StreamChoice(const StreamChoice&) = delete;
  StreamChoice& operator=(const StreamChoice&) = delete;

  void push(std::span<const TokenLogprob> tokens, std::string& out);
  void push_ids(std::span<const int32_t> ids, std::string& out);
  void push_text(std::string_view text, int64_t tokens, std::string& out);
  // Ends the parser and writes what it still held; the closing frames are the builder's.
  void end_output(FinishReason engine_reason, std::string& out);

  const TokenOutput& tokens() const { return tokens_; }
  const OutputFold& fold() const { return fold_; }
  bool finished() const { return finished_; }
  FinishReason reason() const { return reason_; }

 protected:
  enum class Pending : uint8_t { kNone, kReasoning, kContent, kArguments };

  // Writes the pending delta; afterwards it is empty.
  virtual void write_pending(std::string& out) = 0;

  void on_reasoning(std::string_view text, SourceRange source) override;
  void on_content(std::string_view text, SourceRange source) override;
  void on_call_arguments(int call, std::string_view json) override;
  void on_call_part(int call, CallPart part) override;
  void on_logprob(const TokenLogprob& token, bool reasoning) override;

  void flush();
  void append_pending(Pending kind, std::string_view text);
  // Call from on_call_begin: flushes, records the call, and returns it with its id.
  FoldedCall& record_call(std::string_view name);

  const ApiStreamOptions& options_;
  const OutputVocabulary* vocabulary_;
  const int index_;
  TokenOutput tokens_;
  OutputFold fold_;
  bool saw_text_ = false;  // any reasoning or content
  Pending pending_ = Pending::kNone;
  std::string delta_;           // text of the pending delta
  std::string delta_logprobs_;  // its entries
  std::string* out_ = nullptr;  // where frames go during a push
  bool finished_ = false;
  FinishReason reason_ = FinishReason::kEndOfStream;
};

}  // namespace deepinfer::recipe
