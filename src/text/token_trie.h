// A trie over token bytes that finds the longest token at the start of a text. Double array: one 8-byte unit per node.
//
//   TokenTrie::Builder builder;
//   builder.add("the", 5); ...            // frequent tokens first: their nodes then lie close together in memory
//   TokenTrie trie = builder.finish();
//   TokenTrie::Match match = trie.longest(text.data(), text.size());
//
// Limits: values up to kMaxValue, fewer than 2^25 nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer::text {

class TokenTrie {
 public:
  static constexpr uint32_t kNone = (1u << 29) - 1;
  static constexpr uint32_t kMaxValue = kNone - 1;

  struct Match {
    uint32_t value = kNone;
    uint32_t length = 0;
  };
  Match longest(const char* text, size_t size) const {
    Match best;
    uint64_t base = root_;
    for (size_t i = 0; i < size; ++i) {
      const uint64_t byte = static_cast<uint8_t>(text[i]);
      const uint64_t unit = units_[base ^ byte];
      if ((unit & 0x1ff) != (byte | kUsed)) break;
      const uint32_t value = static_cast<uint32_t>(unit >> kValueShift) & kNone;
      if (value != kNone) best = {value, static_cast<uint32_t>(i + 1)};
      base = unit >> kBaseShift;
    }
    return best;
  }

  class Builder;

 private:
  // A unit: the byte that leads to its node, whether it is used, the node's value, and its children's base: the child
  // of byte b is at base ^ b. Base 0 (no children) leads to units that are never used.
  static constexpr uint64_t kUsed = 0x100;
  static constexpr int kValueShift = 9, kBaseShift = 38;

  std::vector<uint64_t> units_;
  uint64_t root_ = 0;
};

class TokenTrie::Builder {
 public:
  Builder();
  // Adds `bytes` below `prefix`, the node of an earlier token (kRoot for none), and returns its node.
  static constexpr uint32_t kRoot = 0;
  uint32_t add(std::string_view bytes, uint32_t value, uint32_t prefix = kRoot);
  // Value of the longest token that is a proper prefix of the node's; kNone if there is none.
  uint32_t longest_prefix(uint32_t node) const;
  TokenTrie finish();

 private:
  struct Node {
    uint32_t parent, first_child, next_sibling, value;
    uint8_t byte;
  };
  uint32_t child(uint32_t node, uint8_t byte);
  void grow_edges();
  uint32_t find_base(const std::vector<uint8_t>& bytes);
  bool fits(uint32_t base, const std::vector<uint8_t>& bytes) const;
  void add_block();
  void take(uint32_t unit);

  std::vector<Node> nodes_;
  std::vector<uint64_t> edges_;  // open addressing: parent, byte -> node
  TokenTrie trie_;
  // The units that are free, as a ring through unit 0.
  std::vector<uint32_t> next_free_, previous_free_;
  std::vector<bool> base_taken_;
};

}  // namespace deepinfer::text
