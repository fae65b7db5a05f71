// Making a Bpe: symbols and merges out of the file, and what its faster ways need.
#include <algorithm>
#include <string>

#include "text/bpe.h"
#include "text/utf8.h"

namespace deepinfer::text {
namespace {

enum class Edge : uint8_t { kCharacter, kInside, kUnknown };

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

Edge start_of(std::string_view bytes) { return is_continuation(bytes[0]) ? Edge::kInside : Edge::kCharacter; }

// Whether the bytes end where a character ends; continuation bytes alone do not tell.
Edge end_of(std::string_view bytes) {
  for (size_t have = 1; have <= std::min<size_t>(bytes.size(), 4); ++have) {
    const uint8_t c = static_cast<uint8_t>(bytes[bytes.size() - have]);
    if ((c & 0xc0) == 0x80) continue;
    const size_t need = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return have == need ? Edge::kCharacter : Edge::kInside;
  }
  return Edge::kUnknown;
}

}  // namespace

Result<Bpe> Bpe::build(const TokenizerFile& file, const Vocabulary& vocabulary) {
  if (file.merges.size() > kMaxMerges) {
    return make_error(Code::kInvalidArgument, "tokenizer.json: {} merges; at most {} are supported", file.merges.size(),
                      kMaxMerges);
  }
  Bpe bpe;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  pairs.reserve(file.merges.size());
  std::vector<Symbol> symbol_of(static_cast<size_t>(vocabulary.size()), ~Symbol{0});
  const auto symbol_for = [&](TokenId id) {
    Symbol& symbol = symbol_of[static_cast<size_t>(id)];
    if (symbol == ~Symbol{0}) {
      symbol = static_cast<Symbol>(bpe.ids_.size());
      bpe.ids_.push_back(id);
    }
    return symbol;
  };
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = vocabulary.find_ordinary({&c, 1});
    if (!id)
      return make_error(Code::kInvalidArgument, "tokenizer.json: model.vocab has no token for the byte {:#04x}", byte);
    symbol_for(*id);
  }
  std::string both;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    both.clear();
    append_token_bytes(file.merges[rank].left, &both);
    const size_t cut = both.size();
    append_token_bytes(file.merges[rank].right, &both);
    const std::string_view all = both;
    const auto left = vocabulary.find_ordinary(all.substr(0, cut)), right = vocabulary.find_ordinary(all.substr(cut));
    const auto result = vocabulary.find_ordinary(all);
    if (!left || !right || !result) {
      return make_error(Code::kInvalidArgument,
                        "tokenizer.json: model.merges[{}] uses or makes a token that is not in model.vocab", rank);
    }
    const Symbol a = symbol_for(*left), b = symbol_for(*right);
    const size_t made = bpe.ids_.size();
    const Symbol c = symbol_for(*result);
    bpe.regular_ = bpe.regular_ && made == 256 + rank && c == made;
    pairs.emplace_back(a, b);
    bpe.results_.push_back(c);
  }
  DI_ASSIGN_OR_RETURN(bpe.pairs_, PairTable::build(pairs));
  if (bpe.regular_) {
    bpe.prepare_regular(pairs, vocabulary);
  } else {
    bpe.find_whole_by_heap(vocabulary);
  }
  return bpe;
}

void Bpe::find_whole_by_heap(const Vocabulary& vocabulary) {
  std::vector<TokenId> encoded;
  for (const TokenId id : ids_) {
    encoded.clear();
    encode_by_heap(vocabulary.bytes(id), &encoded);
    whole_.push_back(encoded.size() == 1);
  }
}

void Bpe::prepare_regular(const std::vector<std::pair<uint32_t, uint32_t>>& pairs, const Vocabulary& vocabulary) {
  left_.assign(256, 0);
  right_.assign(256, 0);
  for (const auto& [left, right] : pairs) {
    left_.push_back(left);
    right_.push_back(right);
  }
  find_edge_parts(vocabulary);
  whole_.assign(ids_.size(), true);
  for (Symbol s = 256; s < ids_.size(); ++s) {
    whole_[s] = whole_[left_[s]] && whole_[right_[s]] && !merges_across(left_[s], right_[s], s);
  }
  build_trie(vocabulary);
  build_characters(vocabulary);
}

void Bpe::build_characters(const Vocabulary& vocabulary) {
  characters_.assign(0x10000, kNever);
  ascii_ranks_.resize(kAscii * kAscii);
  for (Symbol left = 0; left < kAscii; ++left) {
    for (Symbol right = 0; right < kAscii; ++right) ascii_ranks_[left * kAscii + right] = pairs_.find(left, right);
  }
  first_merged_id_ = ids_.size() > 256 ? ids_[256] : 0;
  ids_in_order_ = true;
  for (Symbol s = 256; s < ids_.size(); ++s)
    ids_in_order_ = ids_in_order_ && ids_[s] == first_merged_id_ + static_cast<TokenId>(s - 256);
  for (Symbol s = 256; s < ids_.size(); ++s) {
    const std::string_view bytes = vocabulary.bytes(ids_[s]);
    const Utf8Step step = read_utf8(bytes);
    // Without edge parts the character is whole before anything can merge across its edges.
    if (whole_[s] && (flags_[s] & (kLeftParts | kRightParts)) == 0 && step.head == Utf8Head::kCharacter &&
        step.length == bytes.size() && step.code_point < 0x10000) {
      characters_[step.code_point] = s;
    }
  }
}

void Bpe::find_edge_parts(const Vocabulary& vocabulary) {
  const size_t n = ids_.size();
  const auto bytes = [&](Symbol s) { return vocabulary.bytes(ids_[s]); };
  // The first merge in which a symbol is the left (right) half: of all, and of those whose seam can be between two
  // characters.
  struct First {
    Symbol any = kNever, between_characters = kNever;
  };
  std::vector<First> as_left(n), as_right(n);
  for (Symbol s = static_cast<Symbol>(n); s-- > 256;) {
    const Symbol l = left_[s], r = right_[s];
    as_left[l].any = as_right[r].any = s;
    if (end_of(bytes(l)) != Edge::kInside && start_of(bytes(r)) == Edge::kCharacter) {
      as_left[l].between_characters = as_right[r].between_characters = s;
    }
  }
  flags_.assign(n, 0);
  const auto collect = [&](const std::vector<First>& first, const std::vector<Symbol>& inner, Symbol s, bool between,
                           EdgeParts* out) {
    out->begin.push_back(static_cast<uint32_t>(out->parts.size()));
    Symbol outer = s;
    while (outer >= 256) {
      const Symbol part = inner[outer];
      // Not `<`: a merge across the seam of the same kind as the one that absorbs a part counts too (parts_merge).
      if ((between ? first[part].between_characters : first[part].any) <= outer) out->parts.push_back({part, outer});
      outer = part;
    }
    return out->parts.size() > out->begin.back();
  };
  for (Symbol s = 0; s < n; ++s) {
    const bool ends = end_of(bytes(s)) == Edge::kCharacter, starts = start_of(bytes(s)) == Edge::kCharacter;
    if ((ends ? as_left[s].between_characters : as_left[s].any) != kNever) flags_[s] |= kMergesRight;
    if ((starts ? as_right[s].between_characters : as_right[s].any) != kNever) flags_[s] |= kMergesLeft;
    if (collect(as_left, right_, s, ends, &right_parts_)) flags_[s] |= kRightParts;
    if (collect(as_right, left_, s, starts, &left_parts_)) flags_[s] |= kLeftParts;
  }
  right_parts_.begin.push_back(static_cast<uint32_t>(right_parts_.parts.size()));
  left_parts_.begin.push_back(static_cast<uint32_t>(left_parts_.parts.size()));
}

void Bpe::build_trie(const Vocabulary& vocabulary) {
  const size_t n = ids_.size();
  TokenTrie::Builder builder;
  std::vector<uint32_t> nodes(n, TokenTrie::Builder::kRoot);
  length_.resize(n);
  for (Symbol s = 0; s < n; ++s) {
    const std::string_view bytes = vocabulary.bytes(ids_[s]);
    length_[s] = static_cast<uint16_t>(bytes.size());
    if (!whole_[s]) continue;
    const Symbol left = s < 256 ? 0 : left_[s];  // a whole symbol's halves are whole and were added before it
    nodes[s] = s < 256 ? builder.add(bytes, s | flags_[s])
                       : builder.add(bytes.substr(length_[left]), s | flags_[s], nodes[left]);
  }
  shorter_.assign(n, TokenTrie::kNone);
  for (Symbol s = 0; s < n; ++s) {
    if (whole_[s]) shorter_[s] = builder.longest_prefix(nodes[s]);
  }
  trie_ = builder.finish();
}

}  // namespace deepinfer::text
