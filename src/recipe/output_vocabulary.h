// What each token id means in a model's output: its bytes, and whether they are text, markup or nothing
// (spec/protocol.md 8.1).
//
//   OutputVocabulary vocabulary(tokenizer);
//   vocabulary.at(971).bytes                                          // "we"
//   vocabulary.at(128822).kind == TokenKind::kThinkClose
//
// Built once per model, then read from any thread. Ids that were never set are silent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::recipe {

enum class TokenKind : uint8_t {
  kSilent,      // no text: end of sentence and the like, placeholders, unknown ids
  kText,        // ordinary token
  kLiteral,     // added token that prints as its text, never as markup
  kThinkClose,  // </think>
  kDsml,        // ｜DSML｜
};

struct OutputToken {
  std::string_view bytes;  // of silent tokens too: log-probability lists name them
  TokenKind kind = TokenKind::kSilent;
};

class OutputVocabulary {
 public:
  static constexpr int32_t kMaxId = 1 << 22;

  OutputVocabulary() = default;
  // Roles go by the tokens' names, not by the file's `special` flags (spec 1.2).
  explicit OutputVocabulary(const text::Tokenizer& tokenizer);

  // Ids outside [0, kMaxId) are ignored.
  void set(int32_t id, std::string_view bytes, TokenKind kind);
  OutputToken at(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= entries_.size()) return {};
    const Entry& e = entries_[id];
    return {std::string_view(bytes_).substr(e.offset, e.size), e.kind};
  }

 private:
  struct Entry {
    uint32_t offset = 0;
    uint32_t size = 0;
    TokenKind kind = TokenKind::kSilent;
  };
  std::string bytes_;
  std::vector<Entry> entries_;
};

}  // namespace deepinfer::recipe
