// The memory of PromptEncoder: prompts as paths of messages, each with its ids. Internal to the room.
//
// A node is one message after its predecessor: the same system prompt or chat history is stored once, and the next turn
// adds only its new messages. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "recipe/prompt.h"
#include "text/tokenizer.h"

namespace deepinfer::recipe {

// One message of a prompt: from one turn token to the next. Offsets of the specials count from the start of the prompt.
struct PromptChunk {
  std::string_view text;
  size_t begin = 0;
  std::span<const TrustedSpan> specials;
};

// Cuts a prompt before each token that opens a turn.
std::vector<PromptChunk> cut_into_messages(const Prompt& prompt);

class MessageCache {
 public:
  using NodeId = uint64_t;

  explicit MessageCache(size_t bytes_max) : bytes_max_(bytes_max) {}

  static NodeId root(std::string_view scope);
  // Appends the ids of `chunk` after `parent` and moves `parent` on; false if they are not known.
  bool find(NodeId& parent, const PromptChunk& chunk, std::vector<text::TokenId>& ids);
  // Stores the chunk and moves `parent` on. Chunks above a quarter of the budget are not kept.
  bool insert(NodeId& parent, const PromptChunk& chunk, std::span<const text::TokenId> ids);
  // Marks the path found or inserted last as used, newest at its beginning, so that the oldest node has no successors.
  void touch_path();
  void evict();

  size_t bytes() const { return bytes_; }
  size_t size() const { return nodes_.size(); }
  uint64_t evictions() const { return evictions_; }

 private:
  struct Special {
    uint32_t offset;
    SpecialToken token;
    bool operator==(const Special&) const = default;
  };
  struct Node {
    NodeId key;
    NodeId parent;
    std::string text;
    std::vector<Special> specials;
    std::vector<text::TokenId> ids;
    size_t bytes() const {
      return sizeof(Node) + 64 + text.size() + specials.size() * sizeof(Special) + ids.size() * sizeof(text::TokenId);
    }
  };
  using Nodes = std::list<Node>;  // most recently used first

  static NodeId key_of(NodeId parent, const PromptChunk& chunk);
  static bool matches(const Node& node, NodeId parent, const PromptChunk& chunk);

  size_t bytes_max_;
  size_t bytes_ = 0;
  uint64_t evictions_ = 0;
  Nodes nodes_;
  std::unordered_map<NodeId, Nodes::iterator> index_;
  std::vector<Nodes::iterator> path_;
};

}  // namespace deepinfer::recipe
