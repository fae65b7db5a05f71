// Prompt -> token ids: trusted spans become their one id, every stretch between two of them is plain text
// (spec/protocol.md 7).
//
//   DI_ASSIGN_OR_RETURN(SpecialIds specials, SpecialIds::find(tokenizer, Version::kV41));
//   PromptEncoder encoder(tokenizer, specials, {.threads = 2});
//   DI_ASSIGN_OR_RETURN(EncodedPrompt encoded, encoder.encode(prompt, tenant));
//
// encode() remembers the messages of earlier prompts with their ids, so that the next turn of a chat pays for its new
// messages only. The memory is bounded (cache_bytes_max, least recently used first) and only saves time: a hit compares
// the text itself. Long new text is tokenized by several threads. All functions may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "recipe/prompt.h"
#include "text/tokenizer.h"

namespace deepinfer::recipe {

// Ids of the template's tokens, found by name in the model's tokenizer.
class SpecialIds {
 public:
  SpecialIds() { ids_.fill(-1); }
  // kFailedPrecondition if the tokenizer lacks a token that every prompt of the version needs.
  static Result<SpecialIds> find(const text::Tokenizer& tokenizer, Version version);

  // -1 for a token that the tokenizer does not have.
  text::TokenId operator[](SpecialToken token) const { return ids_[static_cast<size_t>(token)]; }

 private:
  std::array<text::TokenId, kSpecialTokens> ids_;
};

struct EncodedPrompt {
  std::vector<text::TokenId> ids;
  std::vector<size_t> image_positions;  // index in ids of each placeholder, in the order of Prompt::images
  size_t reused = 0;                    // leading ids that came from the cache
};

class PromptEncoder {
 public:
  struct Options {
    size_t cache_bytes_max = 64u << 20;  // 0: remember nothing
    int threads = 1;                     // for long new text, the caller included
  };
  struct Stats {
    size_t cache_bytes = 0, cached_messages = 0;
    uint64_t hits = 0, misses = 0, evictions = 0;  // messages
  };

  PromptEncoder(text::Tokenizer tokenizer, SpecialIds specials, Options options);
  ~PromptEncoder();

  // Prompts of different cache_scope share nothing. kFailedPrecondition names a token that the tokenizer lacks.
  Result<EncodedPrompt> encode(const Prompt& prompt, std::string_view cache_scope = {}) const;

  Stats stats() const;
  const text::Tokenizer& tokenizer() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One token with the bytes of the prompt that it covers, for --explain and tests.
struct TokenSpan {
  text::TokenId id;
  size_t begin, end;
};
Result<std::vector<TokenSpan>> encode_with_spans(const Prompt& prompt, const text::Tokenizer& tokenizer,
                                                 const SpecialIds& specials);

}  // namespace deepinfer::recipe
