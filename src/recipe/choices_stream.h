// An ApiStream over independent choices; the API's class adds frames around them. Internal to this room.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "recipe/api_stream.h"
#include "recipe/stream_choice.h"

namespace deepinfer::recipe {

class ChoicesStream : public ApiStream {
 public:
  void push(int choice, std::span<const TokenLogprob> tokens, std::string& out) final;
  void push_ids(int choice, std::span<const int32_t> ids, std::string& out) final;
  void push_text(int choice, std::string_view text, int64_t tokens, std::string& out) final;
  bool stopped(int choice) const final;
  void finish(int choice, FinishReason engine_reason, std::string& out) final;
  void fail(const StreamError& error, std::string& out) final;
  int http_status() const final { return error_ ? error_->status : 200; }
  Usage usage() const final;

 protected:
  ChoicesStream(ApiStreamOptions options, const OutputVocabulary* vocabulary)
      : options_(std::move(options)), vocabulary_(vocabulary) {}

  // Before a choice's parser releases what it holds.
  virtual void before_end(FinishReason engine_reason) { (void)engine_reason; }
  // After a choice's output has ended. `last`: no choice is left.
  virtual void write_finish(StreamChoice& choice, bool last, std::string& out) = 0;
  virtual void write_failure(const StreamError& error, std::string& out) = 0;

  const ApiStreamOptions options_;
  const OutputVocabulary* vocabulary_;
  std::vector<std::unique_ptr<StreamChoice>> choices_;
  Usage prompt_;
  std::optional<StreamError> error_;

 private:
  // Null for a choice that does not exist or has ended: what is pushed there is ignored.
  StreamChoice* open_choice(int choice);
};

}  // namespace deepinfer::recipe
