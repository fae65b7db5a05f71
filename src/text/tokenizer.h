// DeepSeek's byte-level BPE tokenizer, loaded from a Hugging Face tokenizer.json (spec/protocol.md 1, spec/model.md
// 14).
//
//   DI_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load("models/tiny/tokenizer.json"));
//   std::vector<TokenId> ids = tokenizer.encode("Hello, world!");          // spellings of added tokens stay plain text
//   std::string text = tokenizer.decode(ids);                              // the exact bytes
//   TokenId user = *tokenizer.find_added("<｜User｜>");
//   auto prompt = tokenizer.encode_prompt(text, {{0, 12, user}});          // trusted spans become ids, the rest is
//   text
//
// Text is UTF-8. Broken UTF-8 is read as if replace_broken_utf8() (text/utf8.h) had been applied first; nothing else is
// normalised. encode() takes time linear in the text whatever the text is, never fails, and adds no BOS.
// Ids are those of the file; those of vocabulary entries that are not added tokens are "ordinary".
// A Tokenizer is an immutable handle, cheap to copy; all const functions may be called from any number of threads.
// Limits: kMaxFileBytes, kMaxTokenId, kMaxTokenBytes; a file beyond them is refused with kInvalidArgument. Other kinds
// of tokenizer.json (WordPiece, other pre-tokenizers, ...) are refused with kUnsupported, by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::text {

using TokenId = int32_t;

// What a spelling of an added token inside the text means. User text is always kAsText (design 5.7).
enum class AddedTokens : uint8_t {
  kAsText,     // ordinary text
  kRecognise,  // the token: leftmost-longest, before everything else
};

// Bytes [begin, end) of a prompt stand for the one token `id`, because the template wrote them.
struct TrustedSpan {
  size_t begin;
  size_t end;
  TokenId id;
};

// A token's place in the text: bytes, or code points after to_code_points().
struct TokenRange {
  size_t begin;
  size_t end;
  bool operator==(const TokenRange&) const = default;
};

struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TokenRange> ranges;  // byte ranges in the text after repair; adjacent, together the whole text
};

// Ranges in code points: a token that covers a part of a character counts as covering all of it, as in Hugging Face's
// offsets.
std::vector<TokenRange> to_code_points(std::string_view text, std::span<const TokenRange> byte_ranges);

class Tokenizer {
 public:
  static constexpr uint64_t kMaxFileBytes = 256u << 20;
  static constexpr TokenId kMaxTokenId = (1 << 21) - 1;
  static constexpr size_t kMaxTokenBytes = 4096;

  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string_view json);

  std::vector<TokenId> encode(std::string_view text, AddedTokens added = AddedTokens::kAsText) const;
  Encoding encode_with_ranges(std::string_view text, AddedTokens added = AddedTokens::kAsText) const;
  // Spans must be ordered, inside the prompt, not overlapping, and their ids must exist. Everything between two spans
  // is one stretch of plain text (spec/protocol.md 7.2).
  Result<std::vector<TokenId>> encode_prompt(std::string_view prompt, std::span<const TrustedSpan> spans) const;
  Result<std::vector<TokenId>> encode_prompt(std::string_view prompt, std::initializer_list<TrustedSpan> spans) const {
    return encode_prompt(prompt, std::span(spans.begin(), spans.size()));
  }

  // The bytes of all tokens, added ones as they are spelled; ids that do not exist have none.
  std::string decode(std::span<const TokenId> ids) const;
  // Bytes of one token; empty for an id that does not exist. Ordinary tokens may hold a part of a character.
  std::string_view token_bytes(TokenId id) const;
  // The token as the file spells it (GPT-2's byte-to-character table applied to ordinary tokens).
  std::string token_string(TokenId id) const;

  // Highest id + 1; ids below it may be missing.
  TokenId vocab_size() const;
  bool exists(TokenId id) const;
  bool is_added(TokenId id) const;
  // The file's `special` flag. Files disagree on it, so decide by name (spec/protocol.md 1.2) wherever the role
  // matters.
  bool is_flagged_special(TokenId id) const;
  std::optional<TokenId> find_added(std::string_view content) const;
  // The ordinary token that is exactly these bytes.
  std::optional<TokenId> find_ordinary(std::string_view bytes) const;
  // Ids of added tokens, ascending.
  std::span<const TokenId> added_ids() const;
  // Length of the longest token in bytes, added ones included.
  size_t max_token_bytes() const;

  // Empties the caches of pieces seen lately; nothing but speed depends on them. For measurements.
  void forget_words() const;

  struct Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace deepinfer::text
