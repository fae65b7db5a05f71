#include "text/bpe.h"

#include <bit>
#include <queue>

#include "text/hash.h"

namespace deepinfer::text {

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
    DI_RETURN_IF_ERROR(bpe.add_merge(rank, symbol_for(*left), symbol_for(*right), symbol_for(*result)));
  }
  return bpe;
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

}  // namespace deepinfer::text
