// How characters are written in bytes, and the expressions that are worked out once per process.
#include <algorithm>
#include <map>

#include "grammar/rx.h"

namespace deepinfer::grammar {
namespace {

// One way to write a range of code points: a byte range (or a range of hex digits) per position.
struct Unit {
  uint8_t first, last;
  bool hex = false;
  auto operator<=>(const Unit&) const = default;
};
using Spelled = std::vector<Unit>;

void add_utf8(uint32_t first, uint32_t last, std::vector<Spelled>& out) {
  static constexpr uint32_t kBorders[] = {0x80, 0x800, 0x10000};
  for (uint32_t border : kBorders) {
    if (first < border && last >= border) {
      add_utf8(first, border - 1, out);
      add_utf8(border, last, out);
      return;
    }
  }
  const int tail = first < 0x80 ? 0 : first < 0x800 ? 1 : first < 0x10000 ? 2 : 3;
  // Split until each continuation byte runs over one range for the whole piece.
  for (int i = tail; i >= 1; --i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if (first & mask) {
      add_utf8(first, first | mask, out);
      add_utf8((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      add_utf8(first, (last & ~mask) - 1, out);
      add_utf8(last & ~mask, last, out);
      return;
    }
  }
  static constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  Spelled s;
  for (int i = tail; i >= 0; --i) {
    const uint8_t mark = i == tail ? kLead[tail] : 0x80;
    const uint32_t mask = i == tail ? 0xff : 0x3f;
    s.push_back({static_cast<uint8_t>(mark | (first >> (6 * i) & mask)),
                 static_cast<uint8_t>(mark | (last >> (6 * i) & mask))});
  }
  out.push_back(std::move(s));
}

// All numbers of `digits` hex digits in [first, last], each piece with one range per digit, after `head`.
void add_hex(uint32_t first, uint32_t last, int digits, const Spelled& head, std::vector<Spelled>& out) {
  for (int i = digits - 1; i >= 1; --i) {
    const uint32_t mask = (1u << (4 * i)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if (first & mask) {
      add_hex(first, first | mask, digits, head, out);
      add_hex((first | mask) + 1, last, digits, head, out);
      return;
    }
    if ((last & mask) != mask) {
      add_hex(first, (last & ~mask) - 1, digits, head, out);
      add_hex(last & ~mask, last, digits, head, out);
      return;
    }
  }
  Spelled s = head;
  for (int i = digits - 1; i >= 0; --i) {
    s.push_back({static_cast<uint8_t>(first >> (4 * i) & 15), static_cast<uint8_t>(last >> (4 * i) & 15), true});
  }
  out.push_back(std::move(s));
}

Unit exactly(char c) { return {static_cast<uint8_t>(c), static_cast<uint8_t>(c)}; }

void add_surrogate_pairs(uint32_t first, uint32_t last, std::vector<Spelled>& out) {
  while (first <= last) {
    const uint32_t high = 0xd800 + ((first - 0x10000) >> 10);
    const uint32_t low = 0xdc00 + ((first - 0x10000) & 0x3ff);
    const uint32_t last_high = 0xd800 + ((last - 0x10000) >> 10);
    const uint32_t last_low = 0xdc00 + ((last - 0x10000) & 0x3ff);
    // Whole rows of low surrogates go together.
    uint32_t high_end = high, low_end = 0xdfff;
    if (low == 0xdc00 && last_high > high) high_end = last_low == 0xdfff ? last_high : last_high - 1;
    else if (last_high == high) low_end = last_low;
    if (high == last_high) low_end = last_low;
    std::vector<Spelled> highs;
    add_hex(high, high_end, 4, {exactly('\\'), exactly('u')}, highs);
    for (Spelled& h : highs) {
      h.push_back(exactly('\\'));
      h.push_back(exactly('u'));
      add_hex(low, low_end, 4, h, out);
    }
    first = 0x10000 + ((high_end - 0xd800) << 10 | (low_end - 0xdc00)) + 1;
  }
}

void add_json_escapes(const CharSet& set, std::vector<Spelled>& out) {
  static constexpr struct {
    char c, escape;
  } kShort[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
  for (auto [c, escape] : kShort) {
    if (set.contains(static_cast<uint32_t>(c))) out.push_back({exactly('\\'), exactly(escape)});
  }
  for (const CharSet::Range& r : set.ranges()) {
    if (r.first < 0x10000) add_hex(r.first, std::min(r.last, 0xffffu), 4, {exactly('\\'), exactly('u')}, out);
    if (r.last >= 0x10000) add_surrogate_pairs(std::max(r.first, 0x10000u), r.last, out);
  }
}

class DfaMaker {
 public:
  std::shared_ptr<const ByteDfa> make(std::vector<Spelled> ways) {
    std::sort(ways.begin(), ways.end());
    for (size_t i = 0; i < ways.size(); ++i) ways_.push_back(&ways[i]);
    dfa_ = std::make_shared<ByteDfa>();
    add_state();
    fill(0, build(0, ways.size(), 0));
    return dfa_;
  }

 private:
  using Edges = std::vector<ByteDfa::Edge>;

  uint32_t add_state() {
    dfa_->edges.emplace_back();
    dfa_->accepts.push_back(false);
    return static_cast<uint32_t>(dfa_->edges.size() - 1);
  }
  void fill(uint32_t state, Edges edges) { dfa_->edges[state] = std::move(edges); }

  // A state for ways [begin, end), which agree before `depth`; equal states are made once.
  uint32_t state_for(size_t begin, size_t end, size_t depth) {
    if (ways_[begin]->size() == depth) {
      if (end_state_ == 0) {
        end_state_ = add_state();
        dfa_->accepts[end_state_] = true;
      }
      return end_state_;
    }
    Edges edges = build(begin, end, depth);
    std::vector<uint64_t> key;
    for (const auto& e : edges)
      key.push_back(static_cast<uint64_t>(e.first) << 40 | static_cast<uint64_t>(e.last) << 32 | e.to);
    auto [it, fresh] = known_.try_emplace(std::move(key), 0);
    if (fresh) {
      const uint32_t state = add_state();
      it->second = state;
      fill(state, std::move(edges));
    }
    return it->second;
  }

  Edges build(size_t begin, size_t end, size_t depth) {
    Edges edges;
    for (size_t i = begin; i < end;) {
      size_t j = i + 1;
      const Unit u = (*ways_[i])[depth];
      while (j < end && (*ways_[j])[depth] == u) ++j;
      const uint32_t to = state_for(i, j, depth + 1);
      auto add = [&](int first, int last) {
        if (first <= last) edges.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(last), to});
      };
      if (u.hex) {
        add('0' + u.first, '0' + std::min<int>(u.last, 9));
        add('A' + std::max<int>(u.first, 10) - 10, 'A' + u.last - 10);
        add('a' + std::max<int>(u.first, 10) - 10, 'a' + u.last - 10);
      } else {
        add(u.first, u.last);
      }
      i = j;
    }
    std::sort(edges.begin(), edges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    Edges joined;
    for (const auto& e : edges) {
      if (!joined.empty() && joined.back().to == e.to && joined.back().last + 1 == e.first) joined.back().last = e.last;
      else joined.push_back(e);
    }
    return joined;
  }

  std::shared_ptr<ByteDfa> dfa_;
  std::vector<const Spelled*> ways_;
  std::map<std::vector<uint64_t>, uint32_t> known_;
  uint32_t end_state_ = 0;
};

}  // namespace

std::shared_ptr<const ByteDfa> make_char_dfa(const CharSet& set, Encoding encoding) {
  CharSet raw = set;
  if (encoding == Encoding::kJson) {
    CharSet escaped = CharSet::range(0, 0x1f);
    escaped.add('"', '"');
    escaped.add('\\', '\\');
    raw = set & ~escaped;
  }
  std::vector<Spelled> ways;
  for (const CharSet::Range& r : raw.ranges()) add_utf8(r.first, r.last, ways);
  if (encoding == Encoding::kJson) add_json_escapes(set, ways);
  auto dfa = std::const_pointer_cast<ByteDfa>(DfaMaker().make(std::move(ways)));
  dfa->universe = encoding == Encoding::kUtf8 ? kRxUtf8Text : kRxJsonText;
  return dfa;
}

uint32_t RxArena::dfa_index(std::shared_ptr<const ByteDfa> machine) {
  memory_ += machine->edges.size() * 64;
  dfas_.push_back(std::move(machine));
  dfa_sets_.emplace_back();
  return static_cast<uint32_t>(dfas_.size() - 1);
}

RxId RxArena::chars(const CharSet& set, Encoding encoding) {
  if (set.empty()) return kRxNone;
  if (encoding == Encoding::kUtf8 && set.ranges().back().last < 0x80) {
    ByteSet bytes_of_set;
    for (const CharSet::Range& r : set.ranges())
      bytes_of_set.add_range(static_cast<uint8_t>(r.first), static_cast<uint8_t>(r.last));
    return bytes(bytes_of_set);
  }
  uint64_t h = set.ranges().size();
  for (const CharSet::Range& r : set.ranges()) h = mix_bits(h ^ (static_cast<uint64_t>(r.first) << 32 | r.last));
  h &= ~(1ull << 63);
  for (;; ++h) {
    uint32_t& place = char_dfas_[static_cast<int>(encoding)][h];
    if (place == 0) {
      const uint32_t index = dfa_index(make_char_dfa(set, encoding));
      dfa_sets_[index] = set;
      place = index + 1;
    }
    if (dfa_sets_[place - 1] == set) return dfa_state(place - 1, 0);
  }
}

RxId RxArena::dfa(std::shared_ptr<const ByteDfa> machine) { return dfa_state(dfa_index(std::move(machine)), 0); }

struct RxBase::Made {
  RxArena rx{true};
  RxBase base{};

  Made() {
    make_text();
    make_numbers();
    explore();
    base.size = rx.size();
  }

  void make_text() {
    base.utf8_char = rx.chars(CharSet::all(), Encoding::kUtf8);
    base.json_char = rx.chars(CharSet::all(), Encoding::kJson);
    base.utf8_text = rx.repeat(base.utf8_char, 0, kRxUnbounded);
    base.json_text = rx.repeat(base.json_char, 0, kRxUnbounded);
    rx.universe_[0] = base.utf8_text;
    rx.universe_[1] = base.json_text;
    const RxId quote = rx.literal("\"");
    auto string_of = [&](RxId text) { return rx.concat(quote, rx.concat(text, quote)); };
    base.json_string = string_of(base.json_text);
    base.json_string_not_empty = string_of(rx.repeat(base.json_char, 1, kRxUnbounded));
  }

  RxId one_of(std::string_view chars) {
    ByteSet set;
    for (char c : chars) set.add(static_cast<uint8_t>(c));
    return rx.bytes(set);
  }

  void make_numbers() {
    const RxId digit = one_of("0123456789"), some_digits = rx.repeat(digit, 1, kRxUnbounded);
    auto optional = [&](RxId r) { return rx.repeat(r, 0, 1); };
    const RxId whole = rx.alt(rx.literal("0"), rx.concat(one_of("123456789"), rx.repeat(digit, 0, kRxUnbounded)));
    base.json_integer = rx.concat(optional(rx.literal("-")), whole);
    const RxId fraction = optional(rx.concat(rx.literal("."), some_digits));
    const RxId exponent = optional(rx.concat(one_of("eE"), rx.concat(optional(one_of("+-")), some_digits)));
    base.json_number = rx.concat(base.json_integer, rx.concat(fraction, exponent));
    base.whitespace = rx.repeat(one_of(" \t\n\r"), 0, kMaxWhitespaceRun);
  }

  // All states, also of the forms with forgotten counts; the size moves on while new ones appear.
  void explore() {
    for (RxId r = 0; r < rx.size(); ++r) {
      const ByteSet first = rx.first(r);  // looks at every byte
      first.for_each([&](uint8_t byte) { rx.step(r, byte); });
      for (uint32_t length : kPartLength) rx.truncate(r, length);
    }
  }
};

const RxBase::Made& RxBase::made() {
  static const Made* made = new Made;  // lives as long as the process
  return *made;
}

const RxArena& RxBase::arena() { return made().rx; }
const RxBase& RxBase::get() { return made().base; }

}  // namespace deepinfer::grammar
