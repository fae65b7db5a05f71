// Encodes plain text: pieces (pretokenizer.h), each looked up as a whole token, then among pieces seen lately, then
// merged.
//
//   Encoder encoder(bpe, vocabulary);
//   Encoder::Scratch scratch;                // one per thread
//   encoder.encode(text, &scratch, &ids);    // valid UTF-8
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/piece_table.h"
#include "text/pretokenizer.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace deepinfer::text {

class Encoder {
 public:
  struct Scratch {
    PieceSplitter splitter;
    Bpe::Scratch bpe;
    WordCache cache;
    std::vector<TokenId> ids;     // of one window
    std::vector<TokenId> merged;  // of one window's pieces that had to be merged
    std::vector<char> padded;     // the last window with room to read past its end
  };

  Encoder() = default;
  Encoder(Bpe bpe, const Vocabulary& vocabulary);
  // Appends the ids of `text`.
  void encode(std::string_view text, Scratch* scratch, std::vector<TokenId>* ids) const;

 private:
  // Pieces are handled in groups: first all table lines are asked for, then they are read.
  static constexpr size_t kGroup = 128;
  TokenId* encode_group(const char* base, const uint32_t* starts, size_t count, Scratch* scratch, TokenId* out) const;

  Bpe bpe_;
  PieceTable whole_;
};

}  // namespace deepinfer::text
