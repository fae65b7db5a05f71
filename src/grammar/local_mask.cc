#include <algorithm>

#include "grammar/vocabulary_impl.h"

namespace deepinfer::grammar {
namespace {

constexpr int kExceptionsMax = 8;

void set_bit(std::vector<uint32_t>& words, uint32_t token) { words[token >> 5] |= 1u << (token & 31); }

}  // namespace

LocalMasks::PlainStep LocalMasks::plain_step(RxId state) {
  PlainStep step;
  const uint32_t next = rx_.step(state, 'e');
  if (next == 0) return step;
  for (int i = 0x20; i < 0x80; ++i) {
    const auto b = static_cast<uint8_t>(i);
    if (b == '"' || b == '\\' || rx_.step(state, b) == next) continue;
    if (v_.has_punctuation[b].empty()) return step;
    step.except.add(b);
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
    if (at == 0) return step;
    if (!special && at == checked) continue;
    if (!special) checked = at;
    at = through(at, lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf);
    if (lead >= 0xe0) at = through(at, 0x80, 0xbf);
    if (lead >= 0xf0) at = through(at, 0x80, 0xbf);
    if (at != next) return step;
  }
  step.next = next >> 1;
  step.uniform = true;
  return step;
}

bool LocalMasks::takes_no_plain(RxId state) {
  for (int b = 0x20; b < 0xf5; ++b) {
    const bool continuation = b >= 0x80 && b < 0xc2;
    if (b != '"' && b != '\\' && !continuation && rx_.step(state, static_cast<uint8_t>(b)) != 0) return false;
  }
  return true;
}

bool LocalMasks::decide_plain(RxId state, LocalMask& mask) {
  uint32_t longest = kPartLength[0];
  ByteSet except;
  if (!rx_.takes_any_json_text(state)) {
    RxId at = state;
    for (uint32_t run = 0; run < kPartLength[0]; ++run) {
      const PlainStep step = plain_step(at);
      if (!step.uniform) {
        if (run == 0 || !except.empty() || !takes_no_plain(at)) return false;
        longest = run;  // longer plain tokens do not fit
        break;
      }
      except = except | step.except;
      if (step.next == at) break;
      at = step.next;
    }
    if (except.size() > kExceptionsMax) return false;
  }
  mask.words = v_.plain[longest - 1];
  mask.tries.push_back(&v_.not_plain);
  for (int b = 0; b < 256; ++b) {
    if (b < 0x20 || b == '"' || b == '\\') mask.walked.add(static_cast<uint8_t>(b));
  }
  except.for_each([&](uint8_t b) {
    for (size_t w = 0; w < mask.words.size(); ++w) mask.words[w] &= ~v_.has_punctuation[b][w];
    mask.tries.push_back(&v_.with_punctuation[b]);
  });
  mask.walked = mask.walked | except;
  return true;
}

LocalMask LocalMasks::make(RxId state, int part) {
  LocalMask mask;
  mask.state = state;
  const auto words = static_cast<uint32_t>((v_.entries.size() + 31) / 32);
  mask.is_dense = part == 0 && decide_plain(state, mask);
  if (mask.is_dense) {
    mask.has_exits = !rx_.ends_with_quote(state);  // plain text is not walked
  } else {
    mask.tries.push_back(&v_.parts[part]);
    mask.walked = ByteSet::all();
  }
  auto add = [&](const Trie::Node& n) {
    if (!v_.has_same) {
      mask.tokens.push_back(static_cast<uint32_t>(n.token));
      return;
    }
    for (auto t = static_cast<uint32_t>(n.token); t != Vocabulary::Impl::kNoToken; t = v_.next_same[t]) mask.tokens.push_back(t);
  };
  auto exit = [&](uint32_t, const Trie::Node&) { mask.has_exits = true; };
  for (const Trie* trie : mask.tries) walk(*trie, 0, static_cast<uint32_t>(trie->nodes.size()), 0, state, add, exit);
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

// The children by a byte of mask.looked_for of all places where the piece may end.
void LocalMasks::find_exits(const Trie& trie, RxId state, LocalMask& mask) {
  Level* stack = stack_.data();
  stack[0] = {rx_.row(state), state, false};
  found_.clear();
  const auto end = static_cast<uint32_t>(trie.nodes.size());
  for (uint32_t i = 0; i < end;) {
    const Trie::Node& n = trie.nodes[i];
    Level& from = stack[n.depth - 1];
    if (from.nullable && mask.looked_for.has(n.byte)) found_.emplace_back(n.byte, i);
    uint32_t next = from.row == nullptr ? RxArena::kUnknown : from.row[n.byte];
    if (next == RxArena::kUnknown) next = rx_.step(from.state, n.byte);
    if (next == 0) {
      i = n.end;
      continue;
    }
    if (++i < n.end) stack[n.depth] = {rx_.row(next >> 1), next >> 1, (next & 1) != 0};
  }
  std::sort(found_.begin(), found_.end());
  for (auto [byte, node] : found_) {
    if (mask.groups.empty() || mask.groups.back().trie != &trie || mask.groups.back().byte != byte) {
      const auto at = static_cast<uint32_t>(mask.exit_nodes.size());
      mask.groups.push_back({&trie, byte, at, at});
    }
    mask.exit_nodes.push_back(node);
    mask.groups.back().end = static_cast<uint32_t>(mask.exit_nodes.size());
  }
}

void LocalMasks::look_for(int part, const ByteSet& bytes, LocalMask& mask) {
  mask.looked_for = mask.looked_for | bytes;
  mask.groups.clear();
  mask.exit_nodes.clear();
  if (stack_.size() < kStackSize) stack_.resize(kStackSize);
  // A piece that only a quote ends leaves plain text by the quote alone. Else an exit may stand in any plain token with one of the bytes.
  if ((mask.looked_for & ~mask.walked) != ByteSet{} && !rx_.ends_with_quote(mask.state)) {
    find_exits(v_.parts[part], mask.state, mask);
    return;
  }
  for (const Trie* trie : mask.tries) find_exits(*trie, mask.state, mask);
}

}  // namespace deepinfer::grammar
