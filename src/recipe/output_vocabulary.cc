#include "recipe/output_vocabulary.h"

#include "text/detokenizer.h"

namespace deepinfer::recipe {
namespace {

TokenKind kind_of(const text::Tokenizer& tokenizer, text::TokenId id) {
  if (!tokenizer.exists(id)) return TokenKind::kSilent;
  if (!tokenizer.is_added(id)) return TokenKind::kText;
  const std::string_view name = tokenizer.token_bytes(id);
  if (name == "</think>") return TokenKind::kThinkClose;
  if (name == "｜DSML｜") return TokenKind::kDsml;
  return text::is_silent(tokenizer, id) ? TokenKind::kSilent : TokenKind::kLiteral;
}

}  // namespace

OutputVocabulary::OutputVocabulary(const text::Tokenizer& tokenizer) {
  entries_.reserve(tokenizer.vocab_size());
  for (text::TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    set(id, tokenizer.token_bytes(id), kind_of(tokenizer, id));
}

void OutputVocabulary::set(int32_t id, std::string_view bytes, TokenKind kind) {
  if (id < 0 || id >= kMaxId) return;
  if (static_cast<size_t>(id) >= entries_.size()) entries_.resize(id + 1);
  entries_[id] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(bytes.size()), kind};
  bytes_ += bytes;
}

}  // namespace deepinfer::recipe
