// Finds added tokens in text: leftmost, longest among those that start at one place.
//
//   AddedTokenMatcher matcher;  matcher.add("<think>", 7);  matcher.finish();
//   std::optional<AddedTokenMatcher::Match> match = matcher.find(text, from);
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::text {

class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin, end;
    TokenId id;
  };

  void add(std::string_view content, TokenId id) { tokens_.emplace_back(content, id); }
  void finish();
  bool empty() const { return tokens_.empty(); }
  // The first match at or after `from`. Time is linear in the text for a fixed set of tokens.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Node {
    uint32_t first_edge = 0, edges = 0;
    TokenId id = -1;
  };
  struct Edge {
    uint8_t byte;
    uint32_t node;
  };
  uint32_t build(size_t begin, size_t end, size_t depth);

  std::vector<std::pair<std::string, TokenId>> tokens_;
  std::vector<Node> nodes_;  // a trie; edges of a node are adjacent and sorted
  std::vector<Edge> edges_;
  std::array<uint32_t, 256> first_{};  // node of each first byte, 0 for none
};

}  // namespace deepinfer::text
