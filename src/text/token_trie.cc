#include "text/token_trie.h"

#include "text/hash.h"

namespace deepinfer::text {
namespace {

constexpr uint32_t kBlock = 256;
constexpr int kTries = 32;  // free units tried for a node with several children before a fresh block is taken

}  // namespace

TokenTrie::Builder::Builder() : nodes_(1, Node{0, 0, 0, kNone, 0}), edges_(1 << 12, 0) {}

uint32_t TokenTrie::Builder::add(std::string_view bytes, uint32_t value, uint32_t prefix) {
  for (const char c : bytes) prefix = child(prefix, static_cast<uint8_t>(c));
  nodes_[prefix].value = value;
  return prefix;
}

// An edge is parent (28 bits), byte (8 bits), node (28 bits); no node but the root is 0, so 0 is a free slot.
uint32_t TokenTrie::Builder::child(uint32_t node, uint8_t byte) {
  const uint64_t key = uint64_t{node} << 8 | byte;
  size_t slot = mix(key, 0x9e3779b97f4a7c15) & (edges_.size() - 1);
  for (; edges_[slot] != 0; slot = (slot + 1) & (edges_.size() - 1)) {
    if (edges_[slot] >> 28 == key) return static_cast<uint32_t>(edges_[slot] & 0xfffffff);
  }
  const uint32_t made = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({node, 0, nodes_[node].first_child, kNone, byte});
  nodes_[node].first_child = made;
  edges_[slot] = key << 28 | made;
  if (2 * nodes_.size() > edges_.size()) grow_edges();
  return made;
}

void TokenTrie::Builder::grow_edges() {
  std::vector<uint64_t> old(4 * edges_.size(), 0);
  old.swap(edges_);
  for (const uint64_t edge : old) {
    if (edge == 0) continue;
    size_t slot = mix(edge >> 28, 0x9e3779b97f4a7c15) & (edges_.size() - 1);
    while (edges_[slot] != 0) slot = (slot + 1) & (edges_.size() - 1);
    edges_[slot] = edge;
  }
}

uint32_t TokenTrie::Builder::longest_prefix(uint32_t node) const {
  for (node = nodes_[node].parent; node != kRoot; node = nodes_[node].parent) {
    if (nodes_[node].value != kNone) return nodes_[node].value;
  }
  return kNone;
}

TokenTrie TokenTrie::Builder::finish() {
  // Unit 0 heads the ring; block 0 stays unused.
  trie_.units_.assign(kBlock, 0);
  next_free_.assign(kBlock, 0);
  previous_free_.assign(kBlock, 0);
  base_taken_.assign(kBlock, true);
  std::vector<uint32_t> base_of(nodes_.size(), 0), unit_of(nodes_.size(), 0);
  std::vector<uint8_t> bytes;
  // Nodes are numbered in order of their first token, so that frequent ones are placed first and densely.
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    bytes.clear();
    for (uint32_t c = nodes_[node].first_child; c != 0; c = nodes_[c].next_sibling) bytes.push_back(nodes_[c].byte);
    if (bytes.empty()) continue;
    const uint32_t base = find_base(bytes);
    base_taken_[base] = true;
    base_of[node] = base;
    for (uint32_t c = nodes_[node].first_child; c != 0; c = nodes_[c].next_sibling) {
      unit_of[c] = base ^ nodes_[c].byte;
      take(unit_of[c]);
    }
  }
  for (uint32_t node = 1; node < nodes_.size(); ++node) {
    trie_.units_[unit_of[node]] =
        uint64_t{base_of[node]} << kBaseShift | uint64_t{nodes_[node].value} << kValueShift | kUsed | nodes_[node].byte;
  }
  trie_.root_ = base_of[kRoot];
  return std::move(trie_);
}

// A base that no other node has and whose units for `bytes` are all free.
uint32_t TokenTrie::Builder::find_base(const std::vector<uint8_t>& bytes) {
  int tries = bytes.size() == 1 ? 4 * kTries : kTries;
  for (uint32_t unit = next_free_[0]; unit != 0 && tries > 0; unit = next_free_[unit], --tries) {
    const uint32_t base = unit ^ bytes[0];
    if (fits(base, bytes)) return base;
  }
  const uint32_t base = static_cast<uint32_t>(trie_.units_.size());
  add_block();
  return base;
}

bool TokenTrie::Builder::fits(uint32_t base, const std::vector<uint8_t>& bytes) const {
  if (base_taken_[base]) return false;
  for (const uint8_t byte : bytes) {
    if (trie_.units_[base ^ byte] != 0) return false;
  }
  return true;
}

void TokenTrie::Builder::add_block() {
  const uint32_t first = static_cast<uint32_t>(trie_.units_.size());
  trie_.units_.resize(first + kBlock, 0);
  next_free_.resize(first + kBlock);
  previous_free_.resize(first + kBlock);
  base_taken_.resize(first + kBlock, false);
  for (uint32_t unit = first; unit < first + kBlock; ++unit) {
    const uint32_t last = previous_free_[0];
    next_free_[last] = unit;
    previous_free_[unit] = last;
    next_free_[unit] = 0;
    previous_free_[0] = unit;
  }
}

void TokenTrie::Builder::take(uint32_t unit) {
  trie_.units_[unit] = kUsed;
  next_free_[previous_free_[unit]] = next_free_[unit];
  previous_free_[next_free_[unit]] = previous_free_[unit];
}

}  // namespace deepinfer::text
