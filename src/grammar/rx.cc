#include "grammar/rx.h"

#include <algorithm>
#include <cstring>

#include <boost/container/small_vector.hpp>

namespace deepinfer::grammar {
namespace {

using IdVector = boost::container::small_vector<RxId, 16>;

constexpr size_t kRowSize = 256;
constexpr size_t kRowsPerChunk = 32;
constexpr uint8_t kTextFlags = kRxJsonText | kRxUtf8Text;

uint32_t saturating_multiply(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return 0;
  if (a == kRxUnbounded || b == kRxUnbounded) return kRxUnbounded;
  const uint64_t p = static_cast<uint64_t>(a) * b;
  return p >= kRxUnbounded ? kRxUnbounded : static_cast<uint32_t>(p);
}

uint32_t saturating_add(uint32_t a, uint32_t b) {
  const uint64_t s = static_cast<uint64_t>(a) + b;
  return a == kRxUnbounded || b == kRxUnbounded || s >= kRxUnbounded ? kRxUnbounded : static_cast<uint32_t>(s);
}

}  // namespace

RxArena::RxArena(bool bare) {
  if (!bare) {
    const RxArena& base = RxBase::arena();
    nodes_ = base.nodes_;
    rows_ = base.rows_;  // complete rows, shared and never written
    first_index_ = base.first_index_;
    alive_ = base.alive_;
    table_ = base.table_;
    pool_ = base.pool_;
    lists_ = base.lists_;
    sets_ = base.sets_;
    firsts_ = base.firsts_;
    strings_ = base.strings_;
    dfas_ = base.dfas_;
    dfa_sets_ = base.dfa_sets_;
    char_dfas_[0] = base.char_dfas_[0];
    char_dfas_[1] = base.char_dfas_[1];
    literals_ = base.literals_;
    universe_[0] = base.universe_[0];
    universe_[1] = base.universe_[1];
    truncated_ = base.truncated_;
    return;
  }
  table_.assign(256, UINT32_MAX);
  intern({RxKind::kNone, kRxJsonText | kRxUtf8Text | kRxFinite});
  intern({RxKind::kEmpty, kRxNullable | kRxJsonText | kRxUtf8Text | kRxFinite});
  intern({RxKind::kNot, kRxNullable | kRxInfinite, kRxNone});
}

uint64_t RxArena::hash(const RxNode& n) const {
  uint64_t h = static_cast<uint64_t>(n.kind) * 0x9e3779b97f4a7c15ull;
  auto add = [&h](uint64_t v) { h = mix_bits(h ^ (v + 0x9e3779b97f4a7c15ull)); };
  if (n.kind == RxKind::kAlt || n.kind == RxKind::kAnd) {
    for (RxId id : list(n)) add(id);
  } else {
    add(static_cast<uint64_t>(n.a) << 32 | n.b);
    add(static_cast<uint64_t>(n.c) << 32 | n.d);
    if (n.e != 0) add(n.e);
  }
  return h;
}

void RxArena::grow_table() {
  table_.assign(table_.size() * 2, UINT32_MAX);
  for (RxId id = 0; id < nodes_.size(); ++id) {
    size_t i = hash(nodes_[id]) & (table_.size() - 1);
    while (table_[i] != UINT32_MAX) i = (i + 1) & (table_.size() - 1);
    table_[i] = id;
  }
}

RxId RxArena::intern(const RxNode& node) {
  const bool is_list = node.kind == RxKind::kAlt || node.kind == RxKind::kAnd;
  size_t i = hash(node) & (table_.size() - 1);
  for (; table_[i] != UINT32_MAX; i = (i + 1) & (table_.size() - 1)) {
    const RxNode& other = nodes_[table_[i]];
    if (other.kind != node.kind) continue;
    if (is_list
            ? std::ranges::equal(list(other), list(node))
            : other.a == node.a && other.b == node.b && other.c == node.c && other.d == node.d && other.e == node.e) {
      if (is_list) lists_.resize(node.a);  // the list was appended for the comparison
      return table_[i];
    }
  }
  const RxId id = static_cast<RxId>(nodes_.size());
  table_[i] = id;
  nodes_.push_back(node);
  rows_.push_back(nullptr);
  first_index_.push_back(0);
  alive_.push_back(node.flags & kRxCheck ? -1 : node.kind != RxKind::kNone);
  memory_ += sizeof(RxNode) + 30 + (is_list ? node.b * sizeof(RxId) : 0);
  if (nodes_.size() * 2 > table_.size()) grow_table();
  return id;
}

RxId RxArena::intern_list(RxKind kind, uint8_t flags, std::span<const RxId> list) {
  const uint32_t begin = static_cast<uint32_t>(lists_.size());
  lists_.insert(lists_.end(), list.begin(), list.end());
  return intern({kind, flags, begin, static_cast<uint32_t>(list.size())});
}

RxId RxArena::bytes(const ByteSet& set) {
  if (set.empty()) return kRxNone;
  auto it = std::find(sets_.begin(), sets_.end(), set);
  if (it == sets_.end()) it = sets_.insert(it, set);
  const bool ascii = (set.words[2] | set.words[3]) == 0;
  ByteSet json_raw = ByteSet::all();
  for (int b = 0; b < 0x20; ++b) json_raw.remove(static_cast<uint8_t>(b));
  json_raw.remove('"');
  json_raw.remove('\\');
  const bool json = ascii && (set & json_raw) == set;
  return intern({RxKind::kBytes, static_cast<uint8_t>(kRxFinite | (ascii ? kRxUtf8Text : 0) | (json ? kRxJsonText : 0)),
                 static_cast<uint32_t>(it - sets_.begin())});
}

RxId RxArena::literal(std::string_view bytes) {
  if (bytes.empty()) return kRxEmpty;
  // Equal texts share one place in the pool, so that they are one expression.
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : bytes) h = mix_bits(h ^ c);
  h &= ~(1ull << 63);
  for (;; ++h) {
    uint32_t& place = literals_[h];
    if (place == 0) {
      place = static_cast<uint32_t>(pool_.size()) + 1;
      pool_.append(bytes);
      memory_ += bytes.size();
    }
    if (std::string_view(pool_).substr(place - 1, bytes.size()) == bytes) {
      return intern({RxKind::kLiteral, kRxFinite, place - 1, static_cast<uint32_t>(bytes.size())});
    }
  }
}

RxId RxArena::concat(RxId a, RxId b) {
  if (a == kRxNone || b == kRxNone) return kRxNone;
  if (a == kRxEmpty) return b;
  if (b == kRxEmpty) return a;
  if (nodes_[a].kind == RxKind::kConcat) {  // the list leans to the right; without recursion, since it may be long
    std::vector<RxId> parts;
    for (; nodes_[a].kind == RxKind::kConcat; a = nodes_[a].b) parts.push_back(nodes_[a].a);
    RxId r = concat(a, b);
    for (size_t i = parts.size(); i-- > 0;) r = concat(parts[i], r);
    return r;
  }
  const RxNode x = nodes_[a];
  const RxNode y = nodes_[b];
  // x{l,h} followed by x or x{m,n} is one count.
  const RxId head = y.kind == RxKind::kConcat ? y.a : b;
  const RxId tail = y.kind == RxKind::kConcat ? y.b : kRxEmpty;
  const RxNode z = nodes_[head];
  const RxId unit = x.kind == RxKind::kRepeat ? x.a : a;
  if (!(nodes_[unit].flags & kRxNullable) && (z.kind == RxKind::kRepeat ? z.a == unit : head == unit) &&
      (x.kind == RxKind::kRepeat || z.kind == RxKind::kRepeat)) {
    const uint32_t low_x = x.kind == RxKind::kRepeat ? x.b : 1, high_x = x.kind == RxKind::kRepeat ? x.c : 1;
    const uint32_t low_z = z.kind == RxKind::kRepeat ? z.b : 1, high_z = z.kind == RxKind::kRepeat ? z.c : 1;
    return concat(repeat(unit, saturating_add(low_x, low_z), saturating_add(high_x, high_z)), tail);
  }
  uint8_t flags = x.flags & y.flags & (kRxNullable | kTextFlags | kRxFinite);
  flags |= (x.flags | y.flags) & (kRxCheck | kRxInfinite);
  if (flags & kRxCheck) flags &= ~kRxInfinite;
  return intern({RxKind::kConcat, flags, a, b});
}

// Joins x{l,h}·t and x{m,n}·t into one count where the ranges touch: keeps the states of ambiguous counts few.
bool RxArena::merge_counts(std::vector<RxId>& parts) {
  struct Entry {
    RxId unit, tail;
    uint32_t low, high;
    RxId id;
  };
  boost::container::small_vector<Entry, 16> entries;
  for (RxId id : parts) {
    const RxNode& n = nodes_[id];
    const RxId head = n.kind == RxKind::kConcat ? n.a : id;
    const RxNode& h = nodes_[head];
    if (h.kind == RxKind::kRepeat) entries.push_back({h.a, n.kind == RxKind::kConcat ? n.b : kRxEmpty, h.b, h.c, id});
  }
  if (entries.size() < 2) return false;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.unit, a.tail, a.low, a.high) < std::tie(b.unit, b.tail, b.low, b.high);
  });
  bool changed = false;
  for (size_t i = 0; i + 1 < entries.size();) {
    Entry& a = entries[i];
    Entry& b = entries[i + 1];
    if (a.unit == b.unit && a.tail == b.tail && (a.high == kRxUnbounded || b.low <= a.high + 1)) {
      std::erase(parts, a.id);
      std::erase(parts, b.id);
      a.high = std::max(a.high, b.high);
      a.id = concat(repeat(a.unit, a.low, a.high), a.tail);
      parts.push_back(a.id);
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      changed = true;
    } else {
      ++i;
    }
  }
  return changed;
}

RxId RxArena::alt(std::span<const RxId> input) {
  std::vector<RxId> parts;
  parts.reserve(input.size());
  for (RxId id : input) {
    const RxNode& n = nodes_[id];
    if (n.kind == RxKind::kNone) continue;
    if (id == kRxAnything) return kRxAnything;
    if (n.kind == RxKind::kAlt) {
      parts.insert(parts.end(), list(n).begin(), list(n).end());
    } else {
      parts.push_back(id);
    }
  }
  auto tidy = [&parts] {
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  };
  tidy();
  if (parts.size() > 1 && merge_counts(parts)) tidy();
  ByteSet joined;
  int byte_sets = 0;
  uint8_t all = 0xff, any = 0;
  for (RxId id : parts) {
    const RxNode& n = nodes_[id];
    all &= n.flags;
    any |= n.flags;
    if (n.kind == RxKind::kBytes) {
      joined = joined | sets_[n.a];
      ++byte_sets;
    }
  }
  for (Encoding encoding : {Encoding::kUtf8, Encoding::kJson}) {
    const uint8_t flag = encoding == Encoding::kUtf8 ? kRxUtf8Text : kRxJsonText;
    if (parts.size() > 1 && all & flag) {
      const RxId everything = universe(encoding);
      if (std::binary_search(parts.begin(), parts.end(), everything)) return everything;
    }
  }
  if (byte_sets > 1) {
    std::erase_if(parts, [this](RxId id) { return nodes_[id].kind == RxKind::kBytes; });
    parts.push_back(bytes(joined));
    tidy();
  }
  if (parts.size() > 1 && parts[0] == kRxEmpty &&
      std::any_of(parts.begin() + 1, parts.end(), [this](RxId id) { return nullable(id); })) {
    parts.erase(parts.begin());
  }
  if (parts.empty()) return kRxNone;
  if (parts.size() == 1) return parts[0];
  uint8_t flags = (all & (kTextFlags | kRxFinite)) | (any & (kRxNullable | kRxCheck));
  for (RxId id : parts) {
    if ((nodes_[id].flags & (kRxInfinite | kRxCheck)) == kRxInfinite) flags |= kRxInfinite;
  }
  return intern_list(RxKind::kAlt, flags, parts);
}

RxId RxArena::both(std::span<const RxId> input) {
  IdVector parts;
  uint8_t all = 0xff, any = 0;
  for (RxId id : input) {
    const RxNode& n = nodes_[id];
    if (n.kind == RxKind::kNone) return kRxNone;
    if (id == kRxAnything) continue;
    if (n.kind == RxKind::kAnd) {
      parts.insert(parts.end(), list(n).begin(), list(n).end());
    } else {
      parts.push_back(id);
    }
  }
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  for (RxId id : parts) {
    all &= nodes_[id].flags;
    any |= nodes_[id].flags;
  }
  if (parts.empty()) return kRxAnything;
  if (parts[0] == kRxEmpty) return all & kRxNullable ? kRxEmpty : kRxNone;
  for (Encoding encoding : {Encoding::kUtf8, Encoding::kJson}) {
    const uint8_t flag = encoding == Encoding::kUtf8 ? kRxUtf8Text : kRxJsonText;
    if (parts.size() < 2) break;
    const RxId everything = universe(encoding);
    auto it = std::lower_bound(parts.begin(), parts.end(), everything);
    if (it == parts.end() || *it != everything) continue;
    const bool covered = std::any_of(parts.begin(), parts.end(),
                                     [&](RxId id) { return id != everything && nodes_[id].flags & flag; });
    if (covered) parts.erase(it);
  }
  if (parts.size() == 1) return parts[0];
  uint8_t flags = (all & kRxNullable) | (any & (kTextFlags | kRxFinite)) | kRxCheck;
  return intern_list(RxKind::kAnd, flags, std::span<const RxId>(parts.data(), parts.size()));
}

RxId RxArena::complement(RxId a) {
  if (a == kRxNone) return kRxAnything;
  if (nodes_[a].kind == RxKind::kNot) return nodes_[a].a;
  const uint8_t nullable_flag = nodes_[a].flags & kRxNullable ? 0 : kRxNullable;
  return intern({RxKind::kNot, static_cast<uint8_t>(nullable_flag | kRxCheck), a});
}

RxId RxArena::repeat(RxId a, uint32_t min, uint32_t max) {
  const RxNode x = nodes_[a];
  if (max == 0 || a == kRxEmpty) return kRxEmpty;
  if (max < min) return kRxNone;
  if (a == kRxNone) return min == 0 ? kRxEmpty : kRxNone;
  if (x.flags & kRxNullable) min = 0;
  if (min == 1 && max == 1) return a;
  if (x.flags & kRxNullable && max == 1) return a;
  if (a == kRxAnything) return a;
  if (x.kind == RxKind::kRepeat) {
    // x{l,h}{m,n}: the counts reached are the union of [k*l, k*h]; one range if these touch from the first k on.
    const bool touch =
        min == max || (min == 0 ? x.b <= 1
                                : static_cast<uint64_t>(min + 1) * x.b <= static_cast<uint64_t>(min) * x.c + 1 ||
                                      x.c == kRxUnbounded);
    if (touch) return repeat(x.a, saturating_multiply(x.b, min), saturating_multiply(x.c, max));
  }
  uint8_t flags = x.flags & (kTextFlags | kRxCheck);
  if (min == 0) flags |= kRxNullable;
  if (!(x.flags & kRxCheck)) {
    if (max == kRxUnbounded || x.flags & kRxInfinite) flags |= kRxInfinite;
    else if (x.flags & kRxFinite) flags |= kRxFinite;
  }
  if (x.flags & kRxNullable) flags |= kRxNullable;
  return intern({RxKind::kRepeat, flags, a, min, max});
}

RxId RxArena::without_empty(RxId a) {
  if (!nullable(a)) return a;
  const RxNode n = nodes_[a];
  if (n.kind == RxKind::kEmpty) return kRxNone;
  if (n.kind == RxKind::kRepeat && !nullable(n.a)) return repeat(n.a, 1, n.c);
  if (n.kind == RxKind::kAlt) {
    std::vector<RxId> parts(list(n).begin(), list(n).end());
    for (RxId& id : parts) id = without_empty(id);
    return alt(parts);
  }
  return both(a, complement(kRxEmpty));
}

uint32_t* RxArena::make_row(RxId r) {
  if (rows_left_ == 0) {
    row_chunks_.push_back(std::make_unique_for_overwrite<uint32_t[]>(kRowSize * kRowsPerChunk));
    rows_left_ = kRowsPerChunk;
  }
  uint32_t* row = row_chunks_.back().get() + (kRowsPerChunk - rows_left_--) * kRowSize;
  std::memset(row, 0xff, kRowSize * sizeof(uint32_t));
  memory_ += kRowSize * sizeof(uint32_t);
  rows_[r] = row;
  return row;
}

const uint32_t* RxArena::new_row(RxId r) { return nodes_[r].kind == RxKind::kLiteral ? nullptr : make_row(r); }

uint32_t RxArena::step_slow(RxId r, uint8_t byte) {
  const RxNode& n = nodes_[r];
  if (n.kind == RxKind::kLiteral) {
    if (static_cast<uint8_t>(pool_[n.a]) != byte) return 0;
    if (n.b == 1) return pack(kRxEmpty);
    return pack(intern({RxKind::kLiteral, kRxFinite, n.a + 1, n.b - 1}));
  }
  if (rows_[r] == nullptr) make_row(r);
  ByteSet same = ByteSet::all();
  RxId next = derive(r, byte, same, 0);
  if (next != kRxNone && nodes_[next].flags & kRxCheck && !alive(next)) next = kRxNone;
  const uint32_t value = next == kRxNone ? 0 : pack(next);
  if (error_) return 0;
  uint32_t* row = rows_[r];
  same.for_each([&](uint8_t b) { row[b] = value; });
  return value;
}

const ByteSet& RxArena::first(RxId r) {
  if (first_index_[r] == 0) {
    ByteSet set;
    if (nodes_[r].kind == RxKind::kLiteral) {
      set.add(static_cast<uint8_t>(pool_[nodes_[r].a]));
    } else {
      for (int b = 0; b < 256; ++b) {
        if (step(r, static_cast<uint8_t>(b)) != 0) set.add(static_cast<uint8_t>(b));
      }
    }
    firsts_.push_back(set);
    memory_ += sizeof(ByteSet);
    first_index_[r] = static_cast<uint32_t>(firsts_.size());
  }
  return firsts_[first_index_[r] - 1];
}

bool RxArena::matches(RxId r, std::string_view bytes) {
  uint32_t state = pack(r);
  for (unsigned char b : bytes) {
    state = step(state >> 1, b);
    if (state == 0) return false;
  }
  return state & 1;
}

}  // namespace deepinfer::grammar
