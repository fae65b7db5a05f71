#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "text/hash.h"

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
    return make_error(Code::kInvalidArgument, "tokenizer.json: {} merges; at most {} are supported", file.merges.size(), kMaxMerges);
  }
  Bpe bpe;
  bpe.pairs_.assign(std::bit_ceil(std::max<size_t>(2 * file.merges.size(), 16)), kNoMerge);
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
    if (!id) return make_error(Code::kInvalidArgument, "tokenizer.json: model.vocab has no token for the byte {:#04x}", byte);
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
      return make_error(Code::kInvalidArgument, "tokenizer.json: model.merges[{}] uses or makes a token that is not in model.vocab", rank);
    }
    const Symbol a = symbol_for(*left), b = symbol_for(*right);
    const size_t made = bpe.ids_.size();
    const Symbol c = symbol_for(*result);
    bpe.regular_ = bpe.regular_ && made == 256 + rank && c == made;
    DI_RETURN_IF_ERROR(bpe.add_merge(rank, a, b, c));
    bpe.left_.push_back(a);
    bpe.right_.push_back(b);
  }
  if (bpe.regular_) {
    bpe.prepare_regular(vocabulary);
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

Status Bpe::add_merge(size_t rank, Symbol left, Symbol right, Symbol result) {
  const uint64_t key = (uint64_t{left} << kSymbolBits | right) << kRankBits;
  size_t slot = mix(key, 0x9e3779b97f4a7c15) & (pairs_.size() - 1);
  while (pairs_[slot] != kNoMerge) {
    if (pairs_[slot] >> kRankBits == key >> kRankBits) {
      return make_error(Code::kInvalidArgument, "tokenizer.json: model.merges[{}] is listed before", rank);
    }
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  pairs_[slot] = key | rank;
  results_.push_back(result);
  return {};
}

uint64_t Bpe::find_merge(Symbol left, Symbol right) const {
  const uint64_t key = (uint64_t{left} << kSymbolBits | right) << kRankBits;
  size_t slot = mix(key, 0x9e3779b97f4a7c15) & (pairs_.size() - 1);
  while (pairs_[slot] != kNoMerge) {
    if (pairs_[slot] >> kRankBits == key >> kRankBits) return pairs_[slot] & ((1u << kRankBits) - 1);
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  return kNoMerge;
}

size_t Bpe::encode(std::string_view piece, Scratch* scratch, TokenId* ids) const {
  if (!regular_) {
    scratch->ids.clear();
    encode_by_heap(piece, &scratch->ids);
    std::copy(scratch->ids.begin(), scratch->ids.end(), ids);
    return scratch->ids.size();
  }
  uint32_t* const stack = reinterpret_cast<uint32_t*>(ids);  // flagged symbols, until all are known
  std::vector<uint64_t>& dead = scratch->dead;
  bool any_dead = false;
  const auto is_dead = [&](size_t place) { return any_dead && (dead[place / 64] >> place % 64 & 1); };
  size_t place = 0, count = 0;
  while (place < piece.size()) {
    const TokenTrie::Match match = trie_.longest(piece.data() + place, piece.size() - place);
    uint32_t symbol = match.value;
    size_t length = match.length;
    while (is_dead(place + length) || (count > 0 && !compatible(stack[count - 1], symbol))) {
      symbol = shorter_[symbol & kSymbolMask];
      while (symbol == TokenTrie::kNone) {  // nothing fits here: give the place up and shorten the token before it
        if (!any_dead) dead.assign(piece.size() / 64 + 1, 0);
        any_dead = true;
        dead[place / 64] |= uint64_t{1} << place % 64;
        const Symbol last = stack[--count] & kSymbolMask;
        place -= length_[last];
        symbol = shorter_[last];
      }
      length = length_[symbol & kSymbolMask];
    }
    stack[count++] = symbol;
    place += length;
  }
  for (size_t i = 0; i < count; ++i) ids[i] = ids_[stack[i] & kSymbolMask];
  return count;
}

void Bpe::encode_by_heap(std::string_view piece, std::vector<TokenId>* ids) const {
  struct Node {
    Symbol symbol;
    size_t previous, next;  // next == piece.size() at the end; previous is unused at the start
  };
  struct Candidate {
    uint64_t rank;
    size_t left;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  constexpr Symbol kGone = ~Symbol{0};
  std::vector<Node> nodes(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) nodes[i] = {static_cast<uint8_t>(piece[i]), i - 1, i + 1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](size_t left) {
    if (nodes[left].next >= nodes.size()) return;
    const uint64_t rank = find_merge(nodes[left].symbol, nodes[nodes[left].next].symbol);
    if (rank != kNoMerge) queue.push({rank, left});
  };
  for (size_t i = 0; i < nodes.size(); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& node = nodes[best.left];
    if (node.symbol == kGone || node.next >= nodes.size()) continue;
    if (find_merge(node.symbol, nodes[node.next].symbol) != best.rank) continue;  // a neighbour has changed since
    node.symbol = results_[best.rank];
    nodes[node.next].symbol = kGone;
    node.next = nodes[node.next].next;
    if (node.next < nodes.size()) nodes[node.next].previous = best.left;
    offer(best.left);
    if (best.left > 0) offer(node.previous);
  }
  for (size_t i = 0; i < nodes.size(); i = nodes[i].next) ids->push_back(ids_[nodes[i].symbol]);
}

void Bpe::prepare_regular(const Vocabulary& vocabulary) {
  // From here on left_ and right_ are indexed by symbol.
  left_.insert(left_.begin(), 256, 0);
  right_.insert(right_.begin(), 256, 0);
  build_filter();
  find_edge_parts(vocabulary);
  whole_.assign(ids_.size(), true);
  for (Symbol s = 256; s < ids_.size(); ++s) {
    whole_[s] = whole_[left_[s]] && whole_[right_[s]] && !merges_across(left_[s], right_[s], s);
  }
  build_trie(vocabulary);
}

void Bpe::build_filter() {
  const int bits = std::max<int>(std::bit_width(8 * results_.size()), 6);
  filter_shift_ = 64 - bits;
  filter_.assign(size_t{1} << (bits - 6), 0);
  for (Symbol s = 256; s < ids_.size(); ++s) {
    const uint64_t bit = pair_hash(left_[s], right_[s]) >> filter_shift_;
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
  }
}

void Bpe::find_edge_parts(const Vocabulary& vocabulary) {
  const size_t n = ids_.size();
  const auto bytes = [&](Symbol s) { return vocabulary.bytes(ids_[s]); };
  // The first merge in which a symbol is the left (right) half: of all, and of those whose seam can be between two characters.
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
  const auto collect = [&](const std::vector<First>& first, const std::vector<Symbol>& inner, Symbol s, bool between, EdgeParts* out) {
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
    nodes[s] = s < 256 ? builder.add(bytes, s | flags_[s]) : builder.add(bytes.substr(length_[left]), s | flags_[s], nodes[left]);
  }
  shorter_.assign(n, TokenTrie::kNone);
  for (Symbol s = 0; s < n; ++s) {
    if (whole_[s]) shorter_[s] = builder.longest_prefix(nodes[s]);
  }
  trie_ = builder.finish();
}

// Whether the two parts merge with each other before something else absorbs one of them. Among merges of one kind the leftmost
// comes first: the seam's comes after one inside the left token and before one inside the right token.
bool Bpe::parts_merge(EdgePart left, EdgePart right) const {
  if (!may_merge(left.symbol, right.symbol)) return false;
  const uint64_t rank = find_merge(left.symbol, right.symbol);
  if (rank == kNoMerge) return false;
  const Symbol made = results_[rank];
  return made < left.absorbed_at && made <= right.absorbed_at;
}

// Whether, before the symbol `before` would be made, a merge crosses the seam of two tokens that are each whole.
bool Bpe::merges_across(Symbol left, Symbol right, Symbol before) const {
  const EdgePart whole_left{left, before}, whole_right{right, before};
  if (before == kNever && parts_merge(whole_left, whole_right)) return true;
  for (const EdgePart r : left_parts_.of(right)) {
    if (parts_merge(whole_left, r)) return true;
  }
  for (const EdgePart l : right_parts_.of(left)) {
    if (parts_merge(l, whole_right)) return true;
    for (const EdgePart r : left_parts_.of(right)) {
      if (parts_merge(l, r)) return true;
    }
  }
  return false;
}

bool Bpe::compatible(uint32_t left, uint32_t right) const {
  if ((left & (kMergesRight | kRightParts)) == 0 || (right & (kMergesLeft | kLeftParts)) == 0) return true;
  const Symbol l = left & kSymbolMask, r = right & kSymbolMask;
  if ((left & kRightParts) == 0 && (right & kLeftParts) == 0) return !may_merge(l, r) || find_merge(l, r) == kNoMerge;
  return !merges_across(l, r, kNever);
}

}  // namespace deepinfer::text
