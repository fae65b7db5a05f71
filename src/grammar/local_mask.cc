#include <algorithm>

#include "grammar/vocabulary_impl.h"

namespace deepinfer::grammar {
namespace {

void set_bit(std::vector<uint32_t>& words, uint32_t token) { words[token >> 5] |= 1u << (token & 31); }

}  // namespace

// The state after one plain JSON character, if it is the same for all of them; kRxNone otherwise.
RxId LocalMasks::plain_successor(RxId state) {
  const uint32_t next = rx_.step(state, 'a');
  if (next == 0) return kRxNone;
  for (int b = 0x20; b < 0x80; ++b) {
    if (b != '"' && b != '\\' && rx_.step(state, static_cast<uint8_t>(b)) != next) return kRxNone;
  }
  // Continuation bytes: each state on the way must take its whole range to the next one.
  auto through = [&](uint32_t from, int first, int last) {
    if (from == 0) return uint32_t{0};
    const uint32_t to = rx_.step(from >> 1, static_cast<uint8_t>(first));
    for (int b = first + 1; b <= last; ++b) {
      if (rx_.step(from >> 1, static_cast<uint8_t>(b)) != to) return uint32_t{0};
    }
    return to;
  };
  uint32_t checked = 0;
  for (int lead = 0xc2; lead <= 0xf4; ++lead) {
    uint32_t at = rx_.step(state, static_cast<uint8_t>(lead));
    const bool special = lead == 0xe0 || lead == 0xed || lead == 0xf0 || lead == 0xf4;
    if (at == 0) return kRxNone;
    if (!special && at == checked) continue;
    if (!special) checked = at;
    at = through(at, lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf);
    if (lead >= 0xe0) at = through(at, 0x80, 0xbf);
    if (lead >= 0xf0) at = through(at, 0x80, 0xbf);
    if (at != next) return kRxNone;
  }
  return next >> 1;
}

// Whether the state takes `length` plain characters one after the other, whatever they are.
bool LocalMasks::takes_plain_run(RxId state, uint32_t length) {
  for (uint32_t i = 0; i < length; ++i) {
    const RxId next = plain_successor(state);
    if (next == kRxNone) return false;
    if (next == state) return true;
    state = next;
  }
  return true;
}

LocalMask LocalMasks::make(RxId state, int part) {
  LocalMask mask;
  const auto words = static_cast<uint32_t>((v_.entries.size() + 31) / 32);
  auto add = [&](const Trie::Node& n) {
    for (auto t = static_cast<uint32_t>(n.token); t != Vocabulary::Impl::kNoToken; t = v_.next_same[t]) mask.tokens.push_back(t);
  };
  auto exit = [&](uint32_t, const Trie::Node&) { mask.has_exits = true; };
  const Trie& all = v_.parts[part];
  if (part == 0 && (rx_.takes_any_json_text(state) || takes_plain_run(state, kPartLength[0]))) {
    mask.words = v_.plain;
    mask.quoted = rx_.ends_with_quote(state);
    mask.is_dense = true;
    mask.has_exits = !mask.quoted;  // plain text is not walked
    walk(v_.not_plain, 0, static_cast<uint32_t>(v_.not_plain.nodes.size()), 0, state, add, exit);
  } else {
    walk(all, 0, static_cast<uint32_t>(all.nodes.size()), 0, state, add, exit);
  }
  if (!mask.is_dense && mask.tokens.size() > words / 4) {
    mask.words.assign(words, 0);
    mask.is_dense = true;
  }
  if (mask.is_dense) {
    for (uint32_t t : mask.tokens) set_bit(mask.words, t);
    mask.tokens = {};
  }
  mask.tokens.shrink_to_fit();
  return mask;
}

void LocalMasks::look_for(RxId state, int part, const ByteSet& bytes, LocalMask& mask) {
  mask.looked_for = mask.looked_for | bytes;
  mask.groups.clear();
  mask.exit_nodes.clear();
  mask.exit_bytes = {};
  std::vector<std::pair<uint8_t, uint32_t>> found;
  const Trie& trie = exit_trie(mask, part);
  walk(trie, 0, static_cast<uint32_t>(trie.nodes.size()), 0, state, [](const Trie::Node&) {},
       [&](uint32_t index, const Trie::Node& n) {
         for (uint32_t i = index + 1; i < n.end; i = trie.nodes[i].end) {
           if (mask.looked_for.has(trie.nodes[i].byte)) found.emplace_back(trie.nodes[i].byte, i);
         }
       });
  std::sort(found.begin(), found.end());
  for (auto [byte, node] : found) {
    if (mask.groups.empty() || mask.groups.back().byte != byte) {
      const auto at = static_cast<uint32_t>(mask.exit_nodes.size());
      mask.groups.push_back({byte, at, at});
      mask.exit_bytes.add(byte);
    }
    mask.exit_nodes.push_back(node);
    mask.groups.back().end = static_cast<uint32_t>(mask.exit_nodes.size());
  }
}

}  // namespace deepinfer::grammar
