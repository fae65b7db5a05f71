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
    at = through(at,
                 lead == 0xe0   ? 0xa0
                 : lead == 0xf0 ? 0x90
                                : 0x80,
                 lead == 0xed   ? 0x9f
                 : lead == 0xf4 ? 0x8f
                                : 0xbf);
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

bool LocalMasks::decide_plain(RxId state, LocalMask& mask, std::vector<const Trie*>& tries) {
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
  tries.push_back(&v_.not_plain);
  except.for_each([&](uint8_t b) {
    for (size_t w = 0; w < mask.words.size(); ++w) mask.words[w] &= ~v_.has_punctuation[b][w];
    tries.push_back(&v_.with_punctuation[b]);
  });
  return true;
}

// Many states differ from a loop state only in a few first bytes (where a keyword may go on): the rest of the mask is
// that of the loop.
bool LocalMasks::borrow(RxId state, LocalMask& mask, std::vector<uint8_t>& different) {
  const RxId loop = rx_.step(state, 'e') >> 1;
  if (loop == kRxNone || loop == state) return false;
  std::vector<const Trie*> tries;
  LocalMask other;
  if (!decide_plain(loop, other, tries)) return false;
  size_t nodes = 0;
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    if (rx_.step(state, byte) == rx_.step(loop, byte)) continue;
    different.push_back(byte);
    nodes += v_.top_end[byte] - v_.top_begin[byte];
  }
  if (nodes > v_.parts[0].nodes.size() / 2) return false;
  other = make(loop, 0);
  mask.words = std::move(other.words);
  mask.has_exits = other.has_exits;
  mask.is_dense = true;
  for (uint8_t b : different) {
    for (uint32_t i = v_.top_begin[b]; i < v_.top_end[b]; ++i) {
      const int32_t token = v_.parts[0].nodes[i].token;
      if (token >= 0) for_same(token, [&](uint32_t t) { mask.words[t >> 5] &= ~(1u << (t & 31)); });
    }
  }
  return true;
}

template <class F>
void LocalMasks::for_same(int32_t token, F&& f) const {
  f(static_cast<uint32_t>(token));
  if (!v_.has_same) return;
  for (uint32_t t = v_.next_same[static_cast<uint32_t>(token)]; t != Vocabulary::Impl::kNoToken; t = v_.next_same[t])
    f(t);
}

LocalMask LocalMasks::make(RxId state, int part) {
  LocalMask mask;
  mask.state = state;
  const size_t words = (v_.entries.size() + 31) / 32;
  std::vector<const Trie*> tries;  // of the tokens that need a walk
  std::vector<uint8_t> different;
  const Trie& all = v_.parts[part];
  auto add = [&](const Trie::Node& n) {
    for_same(n.token, [&](uint32_t t) {
      if (mask.is_dense) set_bit(mask.words, t);
      else list_.push_back(t);
    });
    if (!mask.is_dense && list_.size() > words / 4) {  // a bit for each token takes less from here on
      mask.is_dense = true;
      mask.words.assign(words, 0);
      for (uint32_t t : list_) set_bit(mask.words, t);
    }
  };
  auto exit = [&](uint32_t, const Trie::Node&) { mask.has_exits = true; };
  list_.clear();
  if (part == 0 && decide_plain(state, mask, tries)) {
    mask.is_dense = true;
    mask.has_exits = !rx_.ends_with_quote(state);  // plain text is not walked
    for (const Trie* trie : tries) walk(*trie, 0, static_cast<uint32_t>(trie->nodes.size()), 0, state, add, exit);
  } else if (part == 0 && borrow(state, mask, different)) {
    for (uint8_t b : different) walk(all, v_.top_begin[b], v_.top_end[b], 0, state, add, exit);
  } else {
    walk(all, 0, static_cast<uint32_t>(all.nodes.size()), 0, state, add, exit);
  }
  if (!mask.is_dense) mask.tokens = list_;
  return mask;
}

// The children by a byte of mask.looked_for of all places where the piece may end.
void LocalMasks::find_exits(const Trie& trie, RxId state, LocalMask& mask) {
  Level* stack = stack_.data();
  stack[0] = {rx_.row(state), state, false};
  found_.clear();
  const auto end = static_cast<uint32_t>(trie.nodes.size());
  for (uint32_t i = 0; i < end; ++walked_) {
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
  if (part == 0) {
    ByteSet exits = mask.looked_for;
    // A piece that only a quote ends can leave a token nowhere but behind a quote.
    if (rx_.ends_with_quote(mask.state)) exits = ByteSet{};
    if ((exits & ~v_.indexed) == ByteSet{}) {
      // A token with one of these bytes is not plain, or it is in the trie of the byte.
      find_exits(v_.not_plain, mask.state, mask);
      exits.for_each([&](uint8_t b) {
        if (b < 128) find_exits(v_.with_punctuation[b], mask.state, mask);
      });
      return;
    }
  }
  find_exits(v_.parts[part], mask.state, mask);
}

}  // namespace deepinfer::grammar
