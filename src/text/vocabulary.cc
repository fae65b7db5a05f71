#include "text/vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>

#include "text/hash.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

// GPT-2 spells the bytes that print in Latin-1 as themselves and the 68 others as U+0100 onwards, in order.
constexpr uint32_t kFirstShifted = 0x100;
constexpr bool prints_as_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

struct ByteSpelling {
  std::array<uint16_t, 256> to_character{};
  std::array<uint8_t, 0x200> to_byte{};
  std::array<bool, 0x200> is_byte{};
};

constexpr ByteSpelling make_byte_spelling() {
  ByteSpelling spelling;
  uint32_t shifted = kFirstShifted;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t character = prints_as_itself(byte) ? byte : shifted++;
    spelling.to_character[byte] = static_cast<uint16_t>(character);
    spelling.to_byte[character] = static_cast<uint8_t>(byte);
    spelling.is_byte[character] = true;
  }
  return spelling;
}
constexpr ByteSpelling kSpelling = make_byte_spelling();

}  // namespace

void append_token_bytes(std::string_view spelled, std::string* out) {
  const size_t start = out->size();
  for (size_t i = 0; i < spelled.size();) {
    const uint8_t c = static_cast<uint8_t>(spelled[i]);
    // Every character of the table has one or two bytes of UTF-8.
    const uint32_t character = c < 0x80 ? c
                               : i + 1 < spelled.size()
                                   ? (c & 0x1fu) << 6 | (static_cast<uint8_t>(spelled[i + 1]) & 0x3fu)
                                   : 0u;
    if (c >= 0xe0 || character >= kSpelling.is_byte.size() || !kSpelling.is_byte[character]) {
      out->resize(start);
      out->append(spelled);
      return;
    }
    out->push_back(static_cast<char>(kSpelling.to_byte[character]));
    i += c < 0x80 ? 1 : 2;
  }
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(kSpelling.to_character[static_cast<uint8_t>(c)], &out);
  return out;
}

Result<Vocabulary> Vocabulary::build(const TokenizerFile& file) {
  Vocabulary vocabulary;
  TokenId size = static_cast<TokenId>(file.vocab.size());
  for (const TokenizerFile::Added& added : file.added) size = std::max(size, added.id + 1);
  vocabulary.tokens_.resize(static_cast<size_t>(size));
  DI_RETURN_IF_ERROR(vocabulary.add_ordinary(file));
  DI_RETURN_IF_ERROR(vocabulary.add_added(file));
  return vocabulary;
}

Status Vocabulary::add_ordinary(const TokenizerFile& file) {
  slots_.assign(std::bit_ceil(std::max<size_t>(2 * file.vocab.size(), 16)), -1);
  arena_.reserve(file.vocab.size() * 8);
  for (size_t id = 0; id < file.vocab.size(); ++id) {
    if (file.vocab[id].data() == nullptr) continue;
    Token& token = tokens_[id];
    token.begin = static_cast<uint32_t>(arena_.size());
    append_token_bytes(file.vocab[id], &arena_);
    token.length = static_cast<uint16_t>(arena_.size() - token.begin);
    token.flags = kExists;
    max_token_bytes_ = std::max<size_t>(max_token_bytes_, token.length);
    TokenId& slot = slots_[slot_of(bytes(static_cast<TokenId>(id)))];
    if (slot >= 0) {
      return make_error(Code::kInvalidArgument,
                        "tokenizer.json: tokens {} and {} of model.vocab stand for the same bytes", slot, id);
    }
    slot = static_cast<TokenId>(id);
  }
  return {};
}

Status Vocabulary::add_added(const TokenizerFile& file) {
  for (const TokenizerFile::Added& added : file.added) {
    Token& token = tokens_[static_cast<size_t>(added.id)];
    if (token.flags & kAdded) {
      return make_error(Code::kInvalidArgument, "tokenizer.json: two added tokens have the id {}", added.id);
    }
    if ((token.flags & kExists) && bytes(added.id) != added.content) {
      return make_error(Code::kInvalidArgument,
                        "tokenizer.json: id {} is one token in model.vocab and another in added_tokens", added.id);
    }
    if (!(token.flags & kExists)) {
      token.begin = static_cast<uint32_t>(arena_.size());
      token.length = static_cast<uint16_t>(added.content.size());
      arena_ += added.content;
    }
    token.flags = static_cast<uint8_t>(kExists | kAdded | (added.special ? kSpecial : 0));
    max_token_bytes_ = std::max<size_t>(max_token_bytes_, token.length);
    added_ids_.push_back(added.id);
  }
  std::sort(added_ids_.begin(), added_ids_.end());
  added_by_content_ = added_ids_;
  std::sort(added_by_content_.begin(), added_by_content_.end(),
            [&](TokenId a, TokenId b) { return bytes(a) < bytes(b); });
  for (size_t i = 1; i < added_by_content_.size(); ++i) {
    const TokenId a = added_by_content_[i - 1], b = added_by_content_[i];
    if (bytes(a) == bytes(b)) {
      return make_error(Code::kInvalidArgument, "tokenizer.json: the added tokens {} and {} have the same content", a,
                        b);
    }
  }
  return {};
}

// The slot that holds `bytes`, or the free one where it would be.
size_t Vocabulary::slot_of(std::string_view bytes) const {
  size_t slot = hash_bytes(bytes) & (slots_.size() - 1);
  while (slots_[slot] >= 0 && this->bytes(slots_[slot]) != bytes) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

std::optional<TokenId> Vocabulary::find_ordinary(std::string_view bytes) const {
  const TokenId id = slots_[slot_of(bytes)];
  if (id < 0 || is_added(id)) return std::nullopt;
  return id;
}

std::optional<TokenId> Vocabulary::find_added(std::string_view content) const {
  const auto at = std::lower_bound(added_by_content_.begin(), added_by_content_.end(), content,
                                   [&](TokenId id, std::string_view wanted) { return bytes(id) < wanted; });
  if (at == added_by_content_.end() || bytes(*at) != content) return std::nullopt;
  return *at;
}

}  // namespace deepinfer::text
