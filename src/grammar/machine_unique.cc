// Arrays of unique items: exact positions, which remember items, beside the plain ones that masks are computed for
// (machine.h).
#include <algorithm>

#include "grammar/machine.h"
#include "grammar/symbol.h"

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kSearchMax = 2'000;  // positions looked at to find out whether a text leads on
constexpr int kSearchDepthMax = 1'000;

}  // namespace

// The position without what it remembers about items (keep: with nothing remembered so far).
NodeId Machine::rebuild(NodeId node, bool keep, FlatMap& known) {
  if (!nodes_[node].is_exact || !error_.ok()) return node;
  if (const uint32_t* made = known.find(node)) return *made;
  Items raw, out;
  append_raw(node, raw);
  for (const Item& i : raw) {
    const NodeId rest = rebuild(i.rest, keep, known);
    const uint32_t index = index_of(i.symbol);
    switch (kind_of(i.symbol)) {
      case SymbolKind::kItemText:
        if (keep) out.push_back({text_symbol(UniqueStore::kNoText), rest});
        else append_raw(rest, out);
        break;
      case SymbolKind::kItemSet:
        if (keep) out.push_back({set_symbol(unique_.emptied(index)), rest});
        else append_raw(rest, out);
        break;
      case SymbolKind::kUniqueExpr:
        out.push_back({keep ? i.symbol : expr_symbol(index), rest});
        break;
      default:
        out.push_back({i.symbol, rest});
    }
  }
  const NodeId made = make(out);
  if (error_.ok()) {
    known[node] = made;
    memory_ += 24;
  }
  return made;
}

NodeId Machine::plain(NodeId node) { return rebuild(node, false, plain_of_); }
NodeId Machine::blank(NodeId node) { return rebuild(node, true, blank_of_); }

// Adds a byte to the texts of all items that are being written.
NodeId Machine::advance(NodeId node, uint8_t byte) {
  if (!nodes_[node].has_text || !error_.ok()) return node;
  const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
  if (const uint32_t* known = advanced_.find(key)) return *known;
  Items items;
  append_raw(node, items);
  for (Item& i : items) {
    i.rest = advance(i.rest, byte);
    if (kind_of(i.symbol) != SymbolKind::kItemText) continue;
    const UniqueStore::TextId text = unique_.extend(index_of(i.symbol), byte);
    i.symbol = text_symbol(text);
    // Every exponent would repeat a zero: without end, so that no search would find out.
    if (unique_.becomes_zero(text) && unique_.zero()) i.rest = insert(i.rest, *unique_.zero(), true);
    if (unique_.length(text) > limits_.unique_item_bytes_max) {
      fail(make_error(Code::kResourceExhausted,
                      "an item of an array of unique items has more than {} bytes (limit unique_item_bytes_max)",
                      limits_.unique_item_bytes_max));
    }
  }
  std::erase_if(items, [](const Item& i) { return kind_of(i.symbol) != SymbolKind::kEnd && i.rest == kNodeDead; });
  const NodeId made = make(items);
  if (error_.ok()) {
    advanced_[key] = made;
    memory_ += 24;
  }
  return made;
}

// Behind the end of an item with this text; dead if the item was there before.
NodeId Machine::finish_item(NodeId rest, UniqueStore::TextId text) {
  return text == UniqueStore::kNoText ? rest : insert(rest, unique_.value_of(text), false);
}

// Adds a value to the nearest set of each reading.
NodeId Machine::insert(NodeId node, UniqueStore::ValueId value, bool keep) {
  Items raw, out;
  append_raw(node, raw);
  charge(raw.size());
  if (!error_.ok()) return kNodeDead;
  for (const Item& i : raw) {
    if (kind_of(i.symbol) == SymbolKind::kItemSet) {
      const UniqueStore::SetId set = index_of(i.symbol);
      if (unique_.contains(set, value)) continue;
      if (keep) {
        out.push_back(i);
        continue;
      }
      if (unique_.size(set) >= limits_.unique_items_max) {
        fail(make_error(Code::kResourceExhausted,
                        "an array of unique items has more than {} items (limit unique_items_max)",
                        limits_.unique_items_max));
      }
      out.push_back({set_symbol(unique_.add(set, value)), i.rest});
    } else if (!nodes_[i.rest].has_set) {
      out.push_back(i);
    } else if (const NodeId rest = insert(i.rest, value, keep); rest != kNodeDead) {
      out.push_back({i.symbol, rest});
    }
  }
  return make(out);
}

// Whether some reading can go on whatever its items become: none may still repeat an earlier one, no array may run out
// of values.
bool Machine::is_free(NodeId node, UniqueStore::TextId text) {
  if (!nodes_[node].has_set) return true;
  const uint32_t begin = nodes_[node].items, count = nodes_[node].count;
  charge(count);
  if (!error_.ok()) return true;
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Item item = items_[i];
    const uint32_t index = index_of(item.symbol);
    if (kind_of(item.symbol) == SymbolKind::kItemText) {
      if (is_free(item.rest, index)) return true;
    } else if (kind_of(item.symbol) == SymbolKind::kItemSet) {
      if (!unique_.may_repeat(text, index) && !unique_.runs_short(index, 1) && is_free(item.rest, UniqueStore::kNoText))
        return true;
    } else if (is_free(item.rest, text)) {
      return true;
    }
  }
  return false;
}

// Whether some text leads on from an exact position: there may be none but those that repeat an item.
bool Machine::is_live(NodeId node) {
  if (nodes_[node].is_live >= 0) return nodes_[node].is_live != 0;
  open(node);
  if (!error_.ok()) return true;
  bool live = nodes_[node].accepts;
  const uint32_t begin = nodes_[node].open, count = nodes_[node].open_count;
  for (uint32_t i = begin; i < begin + count && !live; ++i) live = is_free(items_[i].rest, UniqueStore::kNoText);
  if (!live && count > 0) {
    if (search_depth_ == 0) search_left_ = kSearchMax;
    if (search_left_ == 0 || search_depth_ >= kSearchDepthMax) return true;
    --search_left_;
    ++search_depth_;
    ByteSet repeats;
    for (uint32_t i = begin; i < begin + count; ++i) find_repeats(items_[i].rest, UniqueStore::kNoText, repeats);
    const ByteSet possible = first(node);
    ByteSet closing, space;
    for (char c : {'"', '}', ']'}) closing.add(static_cast<uint8_t>(c));
    for (char c : {' ', '\t', '\n', '\r'}) space.add(static_cast<uint8_t>(c));
    // The likely ones first.
    for (const ByteSet& bytes :
         {possible & ~repeats & closing, possible & ~repeats & ~space, possible & repeats & ~space, possible & space}) {
      bytes.for_each([&](uint8_t b) { live = live || !error_.ok() || step(node, b) != kNodeDead; });
    }
    --search_depth_;
  }
  if (error_.ok()) nodes_[node].is_live = live;
  return live;
}

// Adds the bytes with which items that are being written may still repeat earlier ones. text: of the nearest item above
// `node`.
void Machine::find_repeats(NodeId node, UniqueStore::TextId text, ByteSet& next) {
  if (!nodes_[node].has_set) return;
  const uint32_t begin = nodes_[node].items, count = nodes_[node].count;
  charge(count);
  if (!error_.ok()) return;
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Item item = items_[i];
    const uint32_t index = index_of(item.symbol);
    if (kind_of(item.symbol) == SymbolKind::kItemText) {
      find_repeats(item.rest, index, next);
    } else if (kind_of(item.symbol) == SymbolKind::kItemSet) {
      unique_.may_repeat(text, index, &next);
      find_repeats(item.rest, UniqueStore::kNoText, next);
    } else {
      find_repeats(item.rest, text, next);
    }
  }
}

// Whether the nearest remembered thing in some reading is a set of items, so that another item may begin here or soon.
bool Machine::is_between_items(NodeId node) {
  if (!nodes_[node].has_set) return false;
  const uint32_t begin = nodes_[node].items, count = nodes_[node].count;
  charge(count);
  if (!error_.ok()) return false;
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Item item = items_[i];
    const uint32_t index = index_of(item.symbol);
    if (kind_of(item.symbol) == SymbolKind::kItemText) continue;
    if (kind_of(item.symbol) == SymbolKind::kItemSet) {
      if (unique_.size(index) > 0 || unique_.runs_short(index, 1)) return true;
    } else if (is_between_items(item.rest)) {
      return true;
    }
  }
  return false;
}

// Whether one of the sets below may run out of values within a token.
bool Machine::runs_short(NodeId node) {
  if (!nodes_[node].has_set) return false;
  const uint32_t begin = nodes_[node].items, count = nodes_[node].count;
  charge(count);
  if (!error_.ok()) return false;
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Item item = items_[i];
    constexpr uint32_t kItemsOfToken = 32;
    if (kind_of(item.symbol) == SymbolKind::kItemSet && unique_.runs_short(index_of(item.symbol), kItemsOfToken))
      return true;
    if (runs_short(item.rest)) return true;
  }
  return false;
}

// The bytes behind which a text may still repeat an item, or begin one.
ByteSet Machine::risky_bytes(NodeId node) {
  ByteSet bytes;
  open(node);
  const uint32_t begin = nodes_[node].open, count = nodes_[node].is_open ? nodes_[node].open_count : 0;
  for (uint32_t i = begin; i < begin + count; ++i) {
    const Item item = items_[i];
    find_repeats(item.rest, UniqueStore::kNoText, bytes);
    if (kind_of(item.symbol) == SymbolKind::kState && is_between_items(item.rest)) {
      bytes = bytes | grammar_.exprs.rx().first(item.symbol);
    }
  }
  return bytes;
}

// Takes out of the mask of the plain position what the exact one does not allow.
void Machine::remove_repeats(NodeId node, std::span<uint32_t> mask) {
  if (nodes_[node].has_set) {
    for (const Trie& part : vocabulary_.parts)
      remove_below(part, 0, static_cast<uint32_t>(part.nodes.size()), node, mask);
  }
  const NodeId empty = blank(node);
  if (!error_.ok()) return;
  const uint32_t found = comma_tokens(empty);
  auto check = [&](const std::vector<uint32_t>& tokens) {
    for (uint32_t t : tokens) {
      if (!error_.ok()) return;
      if ((mask[t >> 5] >> (t & 31) & 1) && !fits(node, t)) remove_token(static_cast<int32_t>(t), mask);
    }
  };
  check(comma_tokens_[found].with_item);
  if (!comma_tokens_[found].others.empty() && runs_short(node)) check(comma_tokens_[found].others);
}

void Machine::remove_token(int32_t token, std::span<uint32_t> mask) {
  for (auto t = static_cast<uint32_t>(token); t != Vocabulary::Impl::kNoToken; t = vocabulary_.next_same[t]) {
    mask[t >> 5] &= ~(1u << (t & 31));
  }
}

void Machine::remove_below(const Trie& trie, uint32_t begin, uint32_t end, NodeId node, std::span<uint32_t> mask) {
  const ByteSet can = first(node), gone = first(plain(node)) & ~can, risky = risky_bytes(node) & can;
  if (gone.empty() && risky.empty()) return;
  for (uint32_t c = begin; c < end && error_.ok(); c = trie.nodes[c].end) {
    const uint8_t byte = trie.nodes[c].byte;
    NodeId to = kNodeDead;
    if (!gone.has(byte)) {
      if (!risky.has(byte)) continue;
      to = step(node, byte);
    }
    if (to != kNodeDead) {
      remove_below(trie, c + 1, trie.nodes[c].end, to, mask);
      continue;
    }
    for (uint32_t i = c; i < trie.nodes[c].end; ++i) {
      if (trie.nodes[i].token >= 0) remove_token(trie.nodes[i].token, mask);
    }
  }
}

bool Machine::fits(NodeId node, uint32_t token) {
  for (unsigned char b : vocabulary_.entries[token].bytes) {
    node = step(node, b);
    if (node == kNodeDead) return false;
  }
  return true;
}

// By a position that remembers no items: the tokens that end an item and go on, so that another one may begin and end
// inside them.
uint32_t Machine::comma_tokens(NodeId node) {
  if (const uint32_t* known = comma_tokens_of_.find(node)) return *known;
  CommaTokens found;
  open(node);
  const uint32_t begin = nodes_[node].open, count = nodes_[node].is_open ? nodes_[node].open_count : 0;
  bool has_text = false, has_set = false;
  for (uint32_t i = begin; i < begin + count; ++i) {
    has_text |= nodes_[items_[i].rest].has_text;
    has_set |= nodes_[items_[i].rest].has_set;
  }
  const Trie& any = has_set ? vocabulary_.with_comma : vocabulary_.bracket_comma;
  if (has_text || !has_set) {
    find_comma_tokens(any, 0, static_cast<uint32_t>(any.nodes.size()), node, 0, found);
  } else {
    for (uint32_t i = begin; i < begin + count && error_.ok(); ++i) {
      const Item item = items_[i];
      if (kind_of(item.symbol) != SymbolKind::kState) continue;
      const Trie& trie = grammar_.exprs.rx().ends_with_quote(item.symbol) ? vocabulary_.quote_comma : any;
      const size_t mark = exits_.size();
      masks_of_.walk(trie, 0, static_cast<uint32_t>(trie.nodes.size()), 0, item.symbol, [](const Trie::Node&) {},
                     [&](uint32_t index, const Trie::Node&) { exits_.emplace_back(index, item.rest); });
      for (size_t k = mark; k < exits_.size(); ++k) {
        const uint32_t at = exits_[k].first;
        find_comma_tokens(trie, at + 1, trie.nodes[at].end, item.rest, 1, found);
      }
      exits_.resize(mark);
    }
  }
  for (auto* list : {&found.with_item, &found.others}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  const auto index = static_cast<uint32_t>(comma_tokens_.size());
  memory_ += 64 + (found.with_item.size() + found.others.size()) * sizeof(uint32_t);
  comma_tokens_.push_back(std::move(found));
  if (error_.ok()) comma_tokens_of_[node] = index;
  return index;
}

// seen: 1 behind a comma, 2 with an item begun there.
void Machine::find_comma_tokens(const Trie& trie, uint32_t begin, uint32_t end, NodeId node, int seen,
                                CommaTokens& found) {
  const ByteSet plain_first = first(plain(node));
  for (uint32_t c = begin; c < end && error_.ok(); c = trie.nodes[c].end) {
    const uint8_t byte = trie.nodes[c].byte;
    if (!plain_first.has(byte)) continue;
    const NodeId to = step(node, byte);
    if (to == kNodeDead) {
      for (uint32_t i = c; i < trie.nodes[c].end; ++i) {
        if (trie.nodes[i].token >= 0) found.with_item.push_back(static_cast<uint32_t>(trie.nodes[i].token));
      }
      continue;
    }
    int now = seen | (byte == ',' ? 1 : 0);
    if (now != 0 && nodes_[to].has_text) now = 2;
    if (now != 0 && trie.nodes[c].token >= 0)
      (now == 2 ? found.with_item : found.others).push_back(static_cast<uint32_t>(trie.nodes[c].token));
    find_comma_tokens(trie, c + 1, trie.nodes[c].end, to, now, found);
  }
}

}  // namespace deepinfer::grammar
