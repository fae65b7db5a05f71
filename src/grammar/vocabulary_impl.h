// What a vocabulary precomputes. Internal to the room.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grammar/byte_set.h"
#include "grammar/rx.h"
#include "grammar/vocabulary.h"

namespace deepinfer::grammar {

// A trie in preorder. The children of node i lie in [i + 1, nodes[i].end); those of the root in [0, nodes.size()).
struct Trie {
  struct Node {
    uint32_t end;    // behind the last node below this one
    int32_t token;   // the token that ends here, or -1
    uint16_t depth;  // bytes up to here, so 1 at the top
    uint8_t byte;
  };
  std::vector<Node> nodes;
};

// The tokens that a state of a regular piece allows without leaving it, and where in the tries the piece may end inside
// a token.
struct LocalMask {
  RxId state = kRxNone;
  bool is_dense = false;
  bool has_exits = false;             // the piece may end inside some token
  std::vector<uint32_t> words;        // dense: one bit per token
  std::vector<uint32_t> tokens;       // else: their ids
  // Trie nodes reached by one byte after a place where the piece may end. Only for the bytes in `looked_for`.
  struct Group {
    const Trie* trie;
    uint8_t byte;
    uint32_t begin, end;              // in exit_nodes
  };
  ByteSet looked_for;
  std::vector<Group> groups;
  std::vector<uint32_t> exit_nodes;
  uint64_t memory_bytes() const {
    return sizeof(LocalMask) + (words.size() + tokens.size() + exit_nodes.size()) * 4 + groups.size() * sizeof(Group);
  }
};

struct Vocabulary::Impl {
  std::vector<Entry> entries;
  std::vector<uint32_t> end_tokens;
  std::vector<bool> is_end;
  std::vector<AddedToken> added_tokens;
  // Ordinary tokens by length (kPartLength), so that states which differ only in counts beyond a length share the masks
  // of that part.
  Trie parts[kParts];
  uint32_t top_begin[256] = {}, top_end[256] = {};  // nodes of part 0 by first byte
  // Of part 0: the tokens that are not plain JSON text (whole characters, no quote, backslash or control character),
  // and the plain ones: plain[k] has a bit for those of at most k + 1 characters.
  Trie not_plain;
  std::vector<std::vector<uint32_t>> plain;
  // The plain tokens that hold an ASCII punctuation character, by that character.
  Trie with_punctuation[128];
  std::vector<uint32_t> has_punctuation[128];
  // The ordinary tokens that hold a comma; those with a quote, and with a bracket, somewhere before one.
  Trie with_comma, quote_comma, bracket_comma;
  ByteSet indexed;                  // bytes whose tokens of part 0 are all in not_plain and with_punctuation[byte]
  bool has_same = false;            // some tokens have the same bytes
  std::vector<uint32_t> next_same;  // another token with the same bytes, or kNoToken
  std::vector<LocalMask> base;      // of the RxBase expressions: [id * kParts + part]

  static constexpr uint32_t kNoToken = UINT32_MAX;
};

// Works out the LocalMasks of states (local_mask.cc).
class LocalMasks {
 public:
  LocalMasks(const Vocabulary::Impl& vocabulary, RxArena& rx) : v_(vocabulary), rx_(rx) {}
  LocalMask make(RxId state, int part);
  // Nodes of tries that were looked at since the last call.
  uint64_t take_walked() { return std::exchange(walked_, 0); }
  // Adds the exits for more bytes.
  void look_for(int part, const ByteSet& bytes, LocalMask& mask);

  // Walks the nodes [begin, end) of a trie from `state`, which stands at `depth`. Calls token(node) where a token ends
  // and exit(index, node) where the piece may end before the end of a token.
  template <class Token, class Exit>
  void walk(const Trie& trie, uint32_t begin, uint32_t end, uint32_t depth, RxId state, Token&& token, Exit&& exit) {
    if (stack_.size() < kStackSize) stack_.resize(kStackSize);
    Level* stack = stack_.data();
    stack[0] = {rx_.row(state), state, false};
    for (uint32_t i = begin; i < end; ++walked_) {
      const Trie::Node& n = trie.nodes[i];
      Level& from = stack[n.depth - depth - 1];
      uint32_t next = from.row == nullptr ? RxArena::kUnknown : from.row[n.byte];
      if (next == RxArena::kUnknown) next = rx_.step(from.state, n.byte);
      if (next == 0) {
        i = n.end;
        continue;
      }
      if (n.token >= 0) token(n);
      ++i;
      if (i < n.end) {
        if (next & 1) exit(i - 1, n);
        stack[n.depth - depth] = {rx_.row(next >> 1), next >> 1, false};
      }
    }
  }

 private:
  struct Level {
    const uint32_t* row;
    RxId state;
    bool nullable;
  };
  static constexpr size_t kStackSize = kPartLength[kParts - 1] + 2;
  // How plain characters are taken from a state: all but the punctuation in `except` lead to `next`.
  struct PlainStep {
    RxId next = kRxNone;
    ByteSet except;
    bool uniform = false;
  };
  PlainStep plain_step(RxId state);
  bool takes_no_plain(RxId state);
  // Whether the plain tokens are decided in mask.words but for those in `tries`.
  bool decide_plain(RxId state, LocalMask& mask, std::vector<const Trie*>& tries);
  bool borrow(RxId state, LocalMask& mask, std::vector<uint8_t>& different);
  template <class F>
  void for_same(int32_t token, F&& f) const;
  void find_exits(const Trie& trie, RxId state, LocalMask& mask);

  const Vocabulary::Impl& v_;
  RxArena& rx_;
  std::vector<Level> stack_;
  uint64_t walked_ = 0;
  std::vector<std::pair<uint8_t, uint32_t>> found_;
  std::vector<uint32_t> list_;  // of make()
};

}  // namespace deepinfer::grammar
