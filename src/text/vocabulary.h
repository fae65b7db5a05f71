// All tokens of a tokenizer by id and by bytes, with GPT-2's byte-to-character table undone.
//
//   DI_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::build(file));
//   std::optional<TokenId> id = vocabulary.find_ordinary("the");
//
// Errors: kInvalidArgument for contradictions inside the file (one spelling or one id for two tokens).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_json.h"

namespace deepinfer::text {

// Appends the bytes that a token of the file stands for. A token with characters outside the byte table stands for its
// own UTF-8, as in Hugging Face's decoder.
void append_token_bytes(std::string_view spelled, std::string* out);
// The reverse: bytes in the spelling of the file.
std::string spell_bytes(std::string_view bytes);

class Vocabulary {
 public:
  static Result<Vocabulary> build(const TokenizerFile& file);

  TokenId size() const { return static_cast<TokenId>(tokens_.size()); }
  std::string_view bytes(TokenId id) const {
    if (id < 0 || id >= size()) return {};
    const Token& token = tokens_[static_cast<size_t>(id)];
    return std::string_view(arena_).substr(token.begin, token.length);
  }
  bool exists(TokenId id) const { return has(id, kExists); }
  bool is_added(TokenId id) const { return has(id, kAdded); }
  bool is_flagged_special(TokenId id) const { return has(id, kSpecial); }
  std::optional<TokenId> find_ordinary(std::string_view bytes) const;
  std::optional<TokenId> find_added(std::string_view content) const;
  std::span<const TokenId> added_ids() const { return added_ids_; }
  size_t max_token_bytes() const { return max_token_bytes_; }

 private:
  enum Flag : uint8_t { kExists = 1, kAdded = 2, kSpecial = 4 };
  struct Token {
    uint32_t begin = 0;
    uint16_t length = 0;
    uint8_t flags = 0;
  };
  bool has(TokenId id, Flag flag) const {
    return id >= 0 && id < size() && (tokens_[static_cast<size_t>(id)].flags & flag);
  }
  Status add_ordinary(const TokenizerFile& file);
  Status add_added(const TokenizerFile& file);
  size_t slot_of(std::string_view bytes) const;

  std::string arena_;
  std::vector<Token> tokens_;
  std::vector<TokenId> slots_;  // ordinary tokens by bytes: open addressing, -1 is free
  std::vector<TokenId> added_ids_;
  std::vector<TokenId> added_by_content_;
  size_t max_token_bytes_ = 0;
};

}  // namespace deepinfer::text
