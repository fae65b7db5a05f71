// The tokens of a model as the grammar room sees them: byte strings in tries, with what can be worked out once per
// vocabulary.
//
//   // once; share it between all grammars
//   DI_ASSIGN_OR_RETURN(auto vocabulary, Vocabulary::from_tokenizer(tokenizer, {eos_id}));
//
// Ordinary tokens (bytes) are matched by their bytes. An added token never counts as text: it is allowed only where a
// grammar names it (Spelling::kAddedTokens). Entries without bytes, special entries and the end tokens are never
// allowed as text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/added_token.h"

namespace deepinfer::text {
class Tokenizer;
}

namespace deepinfer::grammar {

class Vocabulary {
 public:
  struct Entry {
    std::string bytes;   // for an added token: its literal text
    bool added = false;  // an added or special token: no text, unless the grammar names it
  };

  // entries[i] is token i. At most 2^21 tokens, ordinary ones of at most 1,024 bytes.
  static Result<std::shared_ptr<const Vocabulary>> create(std::vector<Entry> entries, std::vector<uint32_t> end_tokens);
  // The tokens of a tokenizer; without end tokens, DeepSeek's <｜end▁of▁sentence｜>.
  static Result<std::shared_ptr<const Vocabulary>> from_tokenizer(const text::Tokenizer& tokenizer,
                                                                  std::vector<uint32_t> end_tokens = {});
  ~Vocabulary();

  uint32_t size() const;
  // Words of 32 tokens in a mask: (size() + 31) / 32.
  uint32_t mask_words() const { return (size() + 31) / 32; }
  std::string_view bytes(uint32_t token) const;
  bool is_added(uint32_t token) const;
  const std::vector<uint32_t>& end_tokens() const;
  // For GrammarBuilder::set_added_tokens; without the end tokens.
  const std::vector<AddedToken>& added_tokens() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Vocabulary(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::grammar
