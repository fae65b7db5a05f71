// Turns a stream of token ids into text, piece by piece, never half a character (spec/protocol.md 8.1).
//
//   Detokenizer detokenizer(tokenizer);
//   for (TokenId id : stream) out += detokenizer.push(id);
//   detokenizer.finish();       // an incomplete character at the end is dropped
//
// Bytes that can never become a character come out as U+FFFD; a character that is not complete yet (at most 3 bytes) is
// held back. The true bytes of each token are tokenizer.token_bytes(id). Ids that do not exist give no text, and
// neither do silent ones (is_silent). One object belongs to one stream; copies are independent.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace deepinfer::text {

// True for tokens that are never shown: begin and end of sentence, padding, <|EOT|>, placeholders and the image
// placeholder, decided by name.
bool is_silent(const Tokenizer& tokenizer, TokenId id);

class Detokenizer {
 public:
  enum class Silent : uint8_t { kHide, kShow };
  explicit Detokenizer(Tokenizer tokenizer, Silent silent = Silent::kHide)
      : tokenizer_(std::move(tokenizer)), silent_(silent) {}

  // Text that is complete now; the view is valid until the next call.
  std::string_view push(TokenId id);
  // Raw bytes instead of a token, for callers that cut tokens themselves.
  std::string_view push_bytes(std::string_view bytes);
  // Bytes held back, at most 3.
  std::string_view pending() const { return pending_; }
  // Ends the stream: drops what is pending and returns how many bytes that was.
  size_t finish();

 private:
  Tokenizer tokenizer_;
  Silent silent_;
  std::string pending_;
  std::string out_;
};

}  // namespace deepinfer::text
