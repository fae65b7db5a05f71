#include "text/added_tokens.h"

#include <algorithm>

namespace deepinfer::text {

void AddedTokenMatcher::finish() {
  std::sort(tokens_.begin(), tokens_.end());
  nodes_.assign(1, Node{});  // node 0 means "none"
  edges_.clear();
  const uint32_t root = build(0, tokens_.size(), 0);
  for (uint32_t i = 0; i < nodes_[root].edges; ++i) {
    const Edge edge = edges_[nodes_[root].first_edge + i];
    first_[edge.byte] = edge.node;
  }
}

// The node of the sorted tokens [begin, end), which share their first `depth` bytes. Recursion is as deep as the
// longest token.
uint32_t AddedTokenMatcher::build(size_t begin, size_t end, size_t depth) {
  const uint32_t node = static_cast<uint32_t>(nodes_.size());
  nodes_.emplace_back();
  if (begin < end && tokens_[begin].first.size() == depth) nodes_[node].id = tokens_[begin++].second;
  std::vector<Edge> edges;
  while (begin < end) {
    const char byte = tokens_[begin].first[depth];
    size_t next = begin;
    while (next < end && tokens_[next].first[depth] == byte) ++next;
    edges.push_back({static_cast<uint8_t>(byte), build(begin, next, depth + 1)});
    begin = next;
  }
  nodes_[node].first_edge = static_cast<uint32_t>(edges_.size());
  nodes_[node].edges = static_cast<uint32_t>(edges.size());
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  return node;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    uint32_t node = first_[static_cast<uint8_t>(text[begin])];
    std::optional<Match> best;
    for (size_t at = begin + 1; node != 0; ++at) {
      if (nodes_[node].id >= 0) best = {begin, at, nodes_[node].id};
      if (at == text.size()) break;
      const Edge* const edges = &edges_[0] + nodes_[node].first_edge;
      const Edge* const end = edges + nodes_[node].edges;
      const Edge* const edge =
          std::find_if(edges, end, [&](Edge e) { return e.byte == static_cast<uint8_t>(text[at]); });
      node = edge == end ? 0 : edge->node;
    }
    if (best) return best;
  }
  return std::nullopt;
}

}  // namespace deepinfer::text
