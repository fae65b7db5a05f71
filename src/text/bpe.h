// The merges of a byte-level BPE model and the encoding of one piece of text (a pre-token).
//
//   DI_ASSIGN_OR_RETURN(Bpe bpe, Bpe::build(file, vocabulary));
//   bpe.encode(piece, &scratch, &ids);
//
// A piece's encoding: start from its bytes; as long as some adjacent pair has a merge, do the one of lowest rank, leftmost
// among equal (spec/protocol.md 1.1).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/vocabulary.h"

namespace deepinfer::text {

class Bpe {
 public:
  static constexpr size_t kMaxMerges = (1 << 21) - 256;

  static Result<Bpe> build(const TokenizerFile& file, const Vocabulary& vocabulary);

  // Appends the ids of `piece`. O(n log n).
  void encode_by_heap(std::string_view piece, std::vector<TokenId>* ids) const;

 private:
  // A symbol is a token inside this class: the byte of that value below 256, then results of merges in order of rank.
  using Symbol = uint32_t;
  static constexpr uint64_t kNoMerge = ~uint64_t{0};
  static constexpr int kSymbolBits = 21, kRankBits = 22;

  uint64_t find_merge(Symbol left, Symbol right) const;  // rank, or kNoMerge
  Status add_merge(size_t rank, Symbol left, Symbol right, Symbol result);

  std::vector<uint64_t> pairs_;  // open addressing: left | right | rank; kNoMerge is free
  std::vector<Symbol> results_;  // by rank
  std::vector<TokenId> ids_;     // by symbol
};

}  // namespace deepinfer::text
