// Derivatives: what may follow after one byte. `same` shrinks to the bytes that surely lead to the same result.
#include <algorithm>

#include <boost/container/small_vector.hpp>

#include "grammar/rx.h"

namespace deepinfer::grammar {
namespace {

constexpr int kMaxDepth = 2'000;  // of optional parts in a row, and of nesting

// Where a JSON escape stands inside a string-set state: 3 bits stage, 3 bits hex digits read, 16 bits their value, 10
// bits of a high surrogate.
enum EscapeStage : uint32_t { kNoEscape, kBackslash, kFirstUnit, kHighDone, kHighBackslash, kSecondUnit };

uint32_t pack_escape(uint32_t stage, uint32_t digits = 0, uint32_t value = 0, uint32_t high = 0) {
  return stage << 29 | digits << 26 | value << 10 | high;
}
uint32_t stage_of(uint32_t e) { return e >> 29; }
uint32_t digits_of(uint32_t e) { return e >> 26 & 7; }
uint32_t value_of(uint32_t e) { return e >> 10 & 0xffff; }
uint32_t high_of(uint32_t e) { return e & 0x3ff; }

int hex_value(uint8_t b) {
  if (b >= '0' && b <= '9') return b - '0';
  if (b >= 'a' && b <= 'f') return b - 'a' + 10;
  if (b >= 'A' && b <= 'F') return b - 'A' + 10;
  return -1;
}

int short_escape(uint8_t b) {
  switch (b) {
    case '"': return '"';
    case '\\': return '\\';
    case '/': return '/';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return -1;
  }
}

struct Decoded {
  uint32_t code_point;
  uint32_t size;
};

// `s` is valid UTF-8 and `at` is at a character's start.
Decoded decode(const std::string& s, uint32_t at) {
  const auto byte = [&](uint32_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(s[at + i])); };
  const uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b < 0xe0) return {(b & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (b < 0xf0) return {(b & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(b & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

int encode(uint32_t c, uint8_t out[4]) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<uint8_t>(0xc0 | c >> 6);
    out[1] = static_cast<uint8_t>(0x80 | (c & 0x3f));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<uint8_t>(0xe0 | c >> 12);
    out[1] = static_cast<uint8_t>(0x80 | (c >> 6 & 0x3f));
    out[2] = static_cast<uint8_t>(0x80 | (c & 0x3f));
    return 3;
  }
  out[0] = static_cast<uint8_t>(0xf0 | c >> 18);
  out[1] = static_cast<uint8_t>(0x80 | (c >> 12 & 0x3f));
  out[2] = static_cast<uint8_t>(0x80 | (c >> 6 & 0x3f));
  out[3] = static_cast<uint8_t>(0x80 | (c & 0x3f));
  return 4;
}

// First index in [first, last) whose byte at `depth` is not below `byte` (strings that end at depth count as below).
uint32_t lower_bound_at(const StringSet& set, uint32_t first, uint32_t last, uint32_t depth, int byte) {
  const auto begin = set.values.begin();
  return static_cast<uint32_t>(std::partition_point(begin + first, begin + last,
                                                    [&](const std::string& s) {
                                                      return depth >= s.size() ||
                                                             static_cast<unsigned char>(s[depth]) < byte;
                                                    }) -
                               begin);
}

}  // namespace

uint32_t RxArena::add_strings(std::vector<std::string> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  uint64_t h = values.size();
  for (const std::string& v : values) h = mix_bits(h ^ std::hash<std::string>()(v));
  h &= ~(1ull << 63);
  for (;; ++h) {
    uint32_t& place = string_sets_[h];
    if (place == 0) {
      for (const std::string& v : values) memory_ += sizeof(std::string) + v.size();
      strings_.push_back(std::make_shared<const StringSet>(StringSet{std::move(values)}));
      place = static_cast<uint32_t>(strings_.size());
      return place - 1;
    }
    if (strings_[place - 1]->values == values) return place - 1;
  }
}

RxId RxArena::strings_state(RxKind kind, uint32_t set, uint32_t first, uint32_t last, uint32_t depth, uint32_t escape) {
  if (first >= last) return kRxNone;
  const auto& values = strings_[set]->values;
  const bool ends = escape == 0 && values[first].size() == depth;
  if (ends && last == first + 1) return kRxEmpty;
  uint8_t flags = kRxFinite | (ends ? kRxNullable : 0);
  if (kind == RxKind::kJsonStrings && depth == 0 && escape == 0) flags |= kRxJsonText;
  return intern({kind, flags, set, first, last, depth, escape});
}

RxId RxArena::strings(std::vector<std::string> values) {
  if (values.size() == 1) return literal(values[0]);
  const uint32_t set = add_strings(std::move(values));
  return strings_state(RxKind::kStrings, set, 0, static_cast<uint32_t>(strings_[set]->values.size()), 0, 0);
}

RxId RxArena::json_strings(std::vector<std::string> values) {
  const uint32_t set = add_strings(std::move(values));
  return strings_state(RxKind::kJsonStrings, set, 0, static_cast<uint32_t>(strings_[set]->values.size()), 0, 0);
}

RxId RxArena::derive_strings(const RxNode& state, uint8_t byte, ByteSet& same) {
  const RxNode n = state;
  const StringSet& set = *strings_[n.a];
  const uint32_t first = lower_bound_at(set, n.b, n.c, n.d, byte),
                 last = lower_bound_at(set, first, n.c, n.d, byte + 1);
  if (first < last) {
    same = same & ByteSet::one(byte);
    return strings_state(n.kind, n.a, first, last, n.d + 1, 0);
  }
  for (uint32_t i = lower_bound_at(set, n.b, n.c, n.d, 0); i < n.c;) {
    const auto b = static_cast<unsigned char>(set.values[i][n.d]);
    same.remove(b);
    i = lower_bound_at(set, i, n.c, n.d, b + 1);
  }
  return kRxNone;
}

RxId RxArena::json_advance(const RxNode& n, uint32_t code_point) {
  uint8_t utf8[4];
  const int size = encode(code_point, utf8);
  uint32_t first = n.b, last = n.c;
  for (int i = 0; i < size && first < last; ++i) {
    const uint32_t depth = n.d + static_cast<uint32_t>(i);
    first = lower_bound_at(*strings_[n.a], first, last, depth, utf8[i]);
    last = lower_bound_at(*strings_[n.a], first, last, depth, utf8[i] + 1);
  }
  return strings_state(RxKind::kJsonStrings, n.a, first, last, n.d + static_cast<uint32_t>(size), 0);
}

// Whether some string of the state goes on with a character whose escape starts as `escape` says.
bool RxArena::json_viable(const RxNode& n, uint32_t escape) const {
  const StringSet& set = *strings_[n.a];
  const uint32_t stage = stage_of(escape), shift = 4 * (4 - digits_of(escape));
  for (uint32_t i = lower_bound_at(set, n.b, n.c, n.d, 0); i < n.c;) {
    const Decoded c = decode(set.values[i], n.d);
    uint32_t unit = c.code_point, low = 0;
    const bool astral = c.code_point >= 0x10000;
    if (astral) {
      unit = 0xd800 | (c.code_point - 0x10000) >> 10;
      low = 0xdc00 | ((c.code_point - 0x10000) & 0x3ff);
    }
    bool fits = true;
    if (stage == kFirstUnit) fits = unit >> shift == value_of(escape);
    else if (stage >= kHighDone) fits = astral && (unit & 0x3ff) == high_of(escape);
    if (stage == kSecondUnit) fits = fits && low >> shift == value_of(escape);
    if (fits) return true;
    // On to the next distinct character.
    uint32_t end = n.c;
    uint32_t begin = i;
    for (uint32_t k = 0; k < c.size; ++k) {
      const auto b = static_cast<unsigned char>(set.values[i][n.d + k]);
      begin = lower_bound_at(set, begin, end, n.d + k, b);
      end = lower_bound_at(set, begin, end, n.d + k, b + 1);
    }
    i = end;
  }
  return false;
}

RxId RxArena::derive_json_strings(const RxNode& state, uint8_t byte, ByteSet& same) {
  const RxNode n = state;
  const uint32_t escape = n.e;
  auto to = [&](uint32_t next) {
    return json_viable(n, next) ? strings_state(RxKind::kJsonStrings, n.a, n.b, n.c, n.d, next) : kRxNone;
  };
  const StringSet& set = *strings_[n.a];
  if (escape == kNoEscape) {
    const bool at_start = n.d == 0 || n.d == set.values[n.b].size() ||
                          (static_cast<unsigned char>(set.values[n.b][n.d]) & 0xc0) != 0x80;
    if (byte == '\\') {
      same = same & ByteSet::one(byte);
      return at_start ? to(pack_escape(kBackslash)) : kRxNone;
    }
    if (byte == '"' || byte < 0x20) {
      same = same & ByteSet::one(byte);
      return kRxNone;
    }
    same.remove('\\');
    return derive_strings(n, byte, same);
  }
  same = same & ByteSet::one(byte);
  const uint32_t stage = stage_of(escape);
  if (stage == kBackslash) {
    if (byte == 'u') return to(pack_escape(kFirstUnit));
    const int c = short_escape(byte);
    return c < 0 ? kRxNone : json_advance(n, static_cast<uint32_t>(c));
  }
  if (stage == kHighDone) return byte == '\\' ? to(pack_escape(kHighBackslash, 0, 0, high_of(escape))) : kRxNone;
  if (stage == kHighBackslash) return byte == 'u' ? to(pack_escape(kSecondUnit, 0, 0, high_of(escape))) : kRxNone;
  const int digit = hex_value(byte);
  if (digit < 0) return kRxNone;
  const uint32_t value = value_of(escape) << 4 | static_cast<uint32_t>(digit), digits = digits_of(escape) + 1;
  if (digits < 4) return to(pack_escape(stage, digits, value, high_of(escape)));
  if (stage == kFirstUnit) {
    if (value >= 0xd800 && value <= 0xdbff) return to(pack_escape(kHighDone, 0, 0, value & 0x3ff));
    if (value >= 0xdc00 && value <= 0xdfff) return kRxNone;
    return json_advance(n, value);
  }
  if (value < 0xdc00 || value > 0xdfff) return kRxNone;
  return json_advance(n, 0x10000 + (high_of(escape) << 10 | (value & 0x3ff)));
}

RxId RxArena::dfa_state(uint32_t machine, uint32_t state) {
  const ByteDfa& dfa = *dfas_[machine];
  const bool accepts = dfa.accepts[state];
  if (dfa.edges[state].empty()) return accepts ? kRxEmpty : kRxNone;
  uint8_t flags = (accepts ? kRxNullable : 0) | (dfa.acyclic ? kRxFinite : 0);
  if (state == 0) flags |= dfa.universe;
  return intern({RxKind::kDfa, flags, machine, state});
}

RxId RxArena::derive(RxId r, uint8_t byte, ByteSet& same, int depth) {
  ++work_;
  if (depth > kMaxDepth) {
    error_ = true;
    return kRxNone;
  }
  const RxNode n = nodes_[r];
  switch (n.kind) {
    case RxKind::kNone:
    case RxKind::kEmpty:
      return kRxNone;
    case RxKind::kBytes: {
      const bool in = sets_[n.a].has(byte);
      same = same & (in ? sets_[n.a] : ~sets_[n.a]);
      return in ? kRxEmpty : kRxNone;
    }
    case RxKind::kLiteral: {
      const auto head = static_cast<uint8_t>(pool_[n.a]);
      if (head != byte) {
        same.remove(head);
        return kRxNone;
      }
      same = same & ByteSet::one(byte);
      return n.b == 1 ? kRxEmpty : intern({RxKind::kLiteral, kRxFinite, n.a + 1, n.b - 1});
    }
    case RxKind::kStrings:
      return derive_strings(n, byte, same);
    case RxKind::kJsonStrings:
      return derive_json_strings(n, byte, same);
    case RxKind::kDfa: {
      for (const ByteDfa::Edge& e : dfas_[n.a]->edges[n.b]) {
        ByteSet range;
        range.add_range(e.first, e.last);
        if (range.has(byte)) {
          same = same & range;
          return dfa_state(n.a, e.to);
        }
        same = same & ~range;
      }
      return kRxNone;
    }
    case RxKind::kConcat: {
      const RxId left = concat(derive(n.a, byte, same, depth + 1), n.b);
      if (!nullable(n.a)) return left;
      const RxId right = derive(n.b, byte, same, depth + 1);
      return right == kRxNone ? left : alt(left, right);
    }
    case RxKind::kAlt: {
      boost::container::small_vector<RxId, 16> parts;
      for (uint32_t i = 0; i < n.b; ++i) {
        const RxId d = derive(lists_[n.a + i], byte, same, depth + 1);
        if (d != kRxNone) parts.push_back(d);
      }
      if (parts.empty()) return kRxNone;
      return parts.size() == 1 ? parts[0] : alt(std::span<const RxId>(parts.data(), parts.size()));
    }
    case RxKind::kAnd: {
      boost::container::small_vector<RxId, 8> parts;
      for (uint32_t i = 0; i < n.b; ++i) {
        const RxId d = derive(lists_[n.a + i], byte, same, depth + 1);
        if (d == kRxNone) return kRxNone;
        parts.push_back(d);
      }
      return both(std::span<const RxId>(parts.data(), parts.size()));
    }
    case RxKind::kNot:
      return complement(derive(n.a, byte, same, depth + 1));
    case RxKind::kRepeat: {
      const RxId head = derive(n.a, byte, same, depth + 1);
      if (head == kRxNone) return kRxNone;
      const uint32_t min = n.b == 0 || n.b == kRxUnbounded ? n.b : n.b - 1;
      const uint32_t max = n.c == kRxUnbounded ? n.c : n.c - 1;
      return concat(head, repeat(n.a, min, max));
    }
  }
  return kRxNone;
}

}  // namespace deepinfer::grammar
