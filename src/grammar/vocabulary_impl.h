// What a vocabulary precomputes. Internal to the room.
#pragma once

#include <memory>
#include <string>
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

// The tokens that a state of a regular piece allows without leaving it, and where in the trie the piece may end inside a token.
struct LocalMask {
  RxId state = kRxNone;
  bool is_dense = false;
  bool has_exits = false;        // the piece may end inside some token
  bool quoted = false;           // exits are only behind a quote: the trie `not_plain` has them all
  std::vector<uint32_t> words;   // dense: one bit per token
  std::vector<uint32_t> tokens;  // else: their ids
  // Trie nodes reached by one byte after a place where the piece may end, grouped by that byte. Only for the bytes in `looked_for`.
  struct Group {
    uint8_t byte;
    uint32_t begin, end;  // in exit_nodes
  };
  ByteSet looked_for, exit_bytes;
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
  // Ordinary tokens by length (kPartLength), so that states which differ only in counts beyond a length share the masks of that part.
  Trie parts[kParts];
  // Of part 0: the tokens that are not plain JSON text (whole characters, no quote, backslash or control character).
  Trie not_plain;
  std::vector<uint32_t> plain;  // the others, one bit per token
  std::vector<uint32_t> next_same;  // another token with the same bytes, or kNoToken
  std::vector<LocalMask> base;      // of the RxBase expressions: [id * kParts + part]

  static constexpr uint32_t kNoToken = UINT32_MAX;
};

// Works out the LocalMasks of states (local_mask.cc).
class LocalMasks {
 public:
  LocalMasks(const Vocabulary::Impl& vocabulary, RxArena& rx) : v_(vocabulary), rx_(rx) {}
  LocalMask make(RxId state, int part);
  // Adds the exits for more bytes.
  void look_for(RxId state, int part, const ByteSet& bytes, LocalMask& mask);

  // The trie that holds the exit_nodes of a mask.
  const Trie& exit_trie(const LocalMask& mask, int part) const { return mask.quoted ? v_.not_plain : v_.parts[part]; }
  // Walks the nodes [begin, end) of a trie from `state`, which stands at `depth`. Calls token(node) where a token ends and exit(index,
  // node) where the piece may end before the end of a token.
  template <class Token, class Exit>
  void walk(const Trie& trie, uint32_t begin, uint32_t end, uint32_t depth, RxId state, Token&& token, Exit&& exit) {
    if (stack_.size() < 1100) stack_.resize(1100);
    Level* stack = stack_.data();
    stack[0] = {rx_.row(state), state};
    for (uint32_t i = begin; i < end;) {
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
        stack[n.depth - depth] = {rx_.row(next >> 1), next >> 1};
      }
    }
  }

 private:
  struct Level {
    const uint32_t* row;
    RxId state;
  };
  bool takes_plain_run(RxId state, uint32_t length);
  RxId plain_successor(RxId state);

  const Vocabulary::Impl& v_;
  RxArena& rx_;
  std::vector<Level> stack_;
};

}  // namespace deepinfer::grammar
