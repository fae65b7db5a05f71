// The merges of a byte-level BPE model and the encoding of one piece of text (a pre-token).
//
//   DI_ASSIGN_OR_RETURN(Bpe bpe, Bpe::build(file, vocabulary));
//   Bpe::Scratch scratch;
//   bpe.encode(jobs, &scratch);
//
// A piece's encoding, by definition: start from its bytes; as long as some adjacent pair has a merge, do the one of
// lowest rank, leftmost among equal (spec/protocol.md 1.1).
//
// How it is found. Short pieces: as defined, but starting from characters where no merge can cross a character's edge
// before it is whole. Long pieces: a list of tokens is the encoding of its bytes exactly if every adjacent pair of it
// is the encoding of the pair's bytes. So encode() takes the longest token at each place, checks it against the one
// before, and goes back where nothing fits; each place is given up at most once, so the work is linear in the piece.
// Of short pieces many are merged at a time, so that their waits for memory overlap: in turn, or side by side in
// vectors. All of this needs merges as training makes them: each makes a new token, out of bytes or results of earlier
// merges. Other files (is_regular() false) are merged with a heap in O(n log n).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/pair_table.h"
#include "text/token_trie.h"
#include "text/vocabulary.h"

namespace deepinfer::text {

class Bpe {
 public:
  static constexpr size_t kMaxMerges = (1 << 21) - 256;

  struct Scratch {
    std::vector<uint64_t> dead;  // places that no encoding reaches, one bit each
    std::vector<TokenId> ids;
  };

  static Result<Bpe> build(const TokenizerFile& file, const Vocabulary& vocabulary);

  // A piece to encode, where its ids go (room for one per byte), and after encode() how many there are.
  struct Job {
    const char* piece;
    uint32_t size;
    uint32_t count;
    TokenId* ids;
  };
  // Many pieces at a time, so that their waits for memory overlap.
  void encode(std::span<Job> jobs, Scratch* scratch) const;
  // How short pieces are merged: the same ids come from all. encode() takes the one that suits the machine and the
  // number of jobs.
  enum class Way : uint8_t { kPortable, kAvx2, kAvx512 };
  static bool can_run(Way way);
  void encode(std::span<Job> jobs, Way way, Scratch* scratch) const;
  // The definition carried out with a heap; appends the ids.
  void encode_by_heap(std::string_view piece, std::vector<TokenId>* ids) const;

  bool is_regular() const { return regular_; }
  // Calls visit(id) for every token that is the encoding of its own bytes.
  template <class Visit>
  void for_each_whole(Visit visit) const {
    for (size_t s = 0; s < whole_.size(); ++s) {
      if (whole_[s]) visit(ids_[s]);
    }
  }

 private:
  // A symbol is a token inside this class: the byte of that value below 256, then the results of merges in order of
  // rank, so that in a regular file a symbol's number is also the time at which BPE makes it.
  using Symbol = uint32_t;
  static constexpr Symbol kSymbolMask = PairTable::kSymbols - 1;
  static constexpr Symbol kNever = ~Symbol{0};

  // Token `symbol` lies at the edge of another one until it is absorbed by the merge that makes `absorbed_at`.
  struct EdgePart {
    Symbol symbol;
    Symbol absorbed_at;
  };
  // For every symbol the parts at one of its edges, besides itself, that could merge across it in time.
  struct EdgeParts {
    std::vector<uint32_t> begin;  // of symbol s: parts[begin[s]] to parts[begin[s + 1]]
    std::vector<EdgePart> parts;
    std::span<const EdgePart> of(Symbol s) const { return {parts.data() + begin[s], begin[s + 1] - begin[s]}; }
  };
  // Bits above a symbol in a flagged symbol: it is itself the left (right) half of some merge; it has right (left) edge
  // parts.
  enum Flag : uint32_t {
    kMergesRight = 1u << 21,
    kMergesLeft = 1u << 22,
    kRightParts = 1u << 23,
    kLeftParts = 1u << 24
  };

  // Pieces of at most this many bytes and units (characters, or bytes of characters that are no token) count as short.
  static constexpr size_t kShortBytes = 96, kShortUnits = 32, kLanes = 32;
  struct Lane;
  static constexpr size_t kColumnJobs = 128;  // for which encode_columns() has room
  struct UnitRows;
  struct Columns;

  size_t encode_long(std::string_view piece, Scratch* scratch, TokenId* ids) const;
  size_t find_units(std::string_view piece, Symbol* units) const;
  bool start_lane(Job* job, Lane* lane) const;
  void read_answers(Lane* lane) const;
  bool step_lane(Lane* lane) const;
  void finish_lane(const Lane& lane) const;
  void run_lanes(std::span<Job> jobs, Scratch* scratch) const;
  void encode_lanes(std::span<Job> jobs, Scratch* scratch) const;
  void encode_lanes_avx2(std::span<Job> jobs, Scratch* scratch) const;
  size_t sort_by_units(std::span<Job> jobs, UnitRows* rows, Scratch* scratch) const;
  void load_columns(const UnitRows& rows, size_t first, size_t jobs, size_t units, Columns* columns) const;
  void find_first_merges(size_t units, Columns* columns) const;
  template <size_t kBatches>
  void merge_columns(size_t units, Columns* batches) const;
  void store_columns(const Columns& columns, const UnitRows& rows, size_t first, std::span<Job> jobs) const;
  void encode_columns(std::span<Job> jobs, Scratch* scratch) const;
  // Files number merged tokens in order of rank, so that no table is needed for them.
  TokenId id_of(Symbol symbol) const {
    return symbol < 256 || !ids_in_order_ ? ids_[symbol] : first_merged_id_ + static_cast<TokenId>(symbol - 256);
  }
  void find_whole_by_heap(const Vocabulary& vocabulary);
  void prepare_regular(const std::vector<std::pair<uint32_t, uint32_t>>& pairs, const Vocabulary& vocabulary);
  void find_edge_parts(const Vocabulary& vocabulary);
  void build_trie(const Vocabulary& vocabulary);
  void build_characters(const Vocabulary& vocabulary);
  bool merges_across(Symbol left, Symbol right, Symbol before) const;
  bool parts_merge(EdgePart left, EdgePart right) const;
  bool compatible(uint32_t left, uint32_t right) const;

  PairTable pairs_;
  std::vector<Symbol> results_;  // by rank
  std::vector<TokenId> ids_;     // by symbol
  std::vector<bool> whole_;      // by symbol
  bool regular_ = true;

  // Only for regular files, by symbol.
  std::vector<Symbol> left_, right_;  // the halves of a merged symbol
  std::vector<uint32_t> flags_;
  EdgeParts right_parts_, left_parts_;
  std::vector<uint32_t>
      shorter_;  // flagged symbol of the longest token that is a proper prefix; TokenTrie::kNone if none
  std::vector<uint16_t> length_;
  TokenTrie trie_;
  static constexpr Symbol kAscii = 128;
  std::vector<uint32_t> ascii_ranks_;  // of the merges of two bytes below 128
  bool ids_in_order_ = false;
  TokenId first_merged_id_ = 0;
  std::vector<Symbol> characters_;  // by code point below 0x10000: its symbol if merging can start from it, else kNever
};

}  // namespace deepinfer::text
