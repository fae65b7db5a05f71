#include "recipe/message_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deepinfer::recipe {

std::vector<PromptChunk> cut_into_messages(const Prompt& prompt) {
  const std::string_view text = prompt.text;
  const std::span<const TrustedSpan> specials = prompt.specials;
  std::vector<PromptChunk> chunks;
  size_t begin = 0, first = 0;
  const auto close = [&](size_t end, size_t last) {
    if (end > begin) chunks.push_back({text.substr(begin, end - begin), begin, specials.subspan(first, last - first)});
    begin = end;
    first = last;
  };
  for (size_t i = 0; i < specials.size(); ++i) {
    const SpecialToken token = specials[i].token;
    const bool opens = token == SpecialToken::kUser || token == SpecialToken::kSystem ||
                       token == SpecialToken::kAssistant || token == SpecialToken::kLatestReminder;
    if (opens) close(specials[i].begin, i);
  }
  close(text.size(), specials.size());
  return chunks;
}

MessageCache::NodeId MessageCache::root(std::string_view scope) { return XXH3_64bits(scope.data(), scope.size()); }

MessageCache::NodeId MessageCache::key_of(NodeId parent, const PromptChunk& chunk) {
  uint64_t seed = parent;
  for (const TrustedSpan& s : chunk.specials) {
    seed = (seed ^ ((s.begin - chunk.begin) * 32 + static_cast<uint64_t>(s.token))) * 0x9e3779b97f4a7c15u;
  }
  return XXH3_64bits_withSeed(chunk.text.data(), chunk.text.size(), seed);
}

bool MessageCache::matches(const Node& node, NodeId parent, const PromptChunk& chunk) {
  if (node.parent != parent || node.text != chunk.text || node.specials.size() != chunk.specials.size()) return false;
  for (size_t i = 0; i < node.specials.size(); ++i) {
    const TrustedSpan& s = chunk.specials[i];
    if (node.specials[i].offset != s.begin - chunk.begin || node.specials[i].token != s.token) return false;
  }
  return true;
}

bool MessageCache::find(NodeId& parent, const PromptChunk& chunk, std::vector<text::TokenId>& ids) {
  const NodeId key = key_of(parent, chunk);
  const auto found = index_.find(key);
  if (found == index_.end() || !matches(*found->second, parent, chunk)) return false;
  ids.insert(ids.end(), found->second->ids.begin(), found->second->ids.end());
  path_.push_back(found->second);
  parent = key;
  return true;
}

bool MessageCache::insert(NodeId& parent, const PromptChunk& chunk, std::span<const text::TokenId> ids) {
  const NodeId key = key_of(parent, chunk);
  const auto found = index_.find(key);
  if (found != index_.end()) {
    // Another thread was faster, or two chunks share a hash; the second then stays unknown.
    if (!matches(*found->second, parent, chunk)) return false;
    path_.push_back(found->second);
    parent = key;
    return true;
  }
  Node node{.key = key, .parent = parent, .text = std::string(chunk.text), .ids = {ids.begin(), ids.end()}};
  node.specials.reserve(chunk.specials.size());
  for (const TrustedSpan& s : chunk.specials)
    node.specials.push_back({static_cast<uint32_t>(s.begin - chunk.begin), s.token});
  if (node.bytes() > bytes_max_ / 4) return false;
  bytes_ += node.bytes();
  nodes_.push_front(std::move(node));
  index_.emplace(key, nodes_.begin());
  path_.push_back(nodes_.begin());
  parent = key;
  return true;
}

void MessageCache::touch_path() {
  for (auto at = path_.rbegin(); at != path_.rend(); ++at) nodes_.splice(nodes_.begin(), nodes_, *at);
  path_.clear();
}

void MessageCache::evict() {
  while (bytes_ > bytes_max_ && !nodes_.empty()) {
    const Node& oldest = nodes_.back();
    bytes_ -= oldest.bytes();
    index_.erase(oldest.key);
    nodes_.pop_back();
    ++evictions_;
  }
}

}  // namespace deepinfer::recipe
