// Texts: regular sets of strings, and how they are lowered to bytes.
#include <algorithm>
#include <map>

#include "grammar/grammar.h"
#include "grammar/grammar_impl.h"

namespace deepinfer::grammar {
namespace {

constexpr int kLowerDepthMax = 2000;

uint32_t add_lengths(uint32_t a, uint32_t b) {
  const uint64_t s = static_cast<uint64_t>(a) + b;
  return a == kUnbounded || b == kUnbounded || s >= kUnbounded ? kUnbounded : static_cast<uint32_t>(s);
}

uint32_t multiply_lengths(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return 0;
  const uint64_t p = static_cast<uint64_t>(a) * b;
  return a == kUnbounded || b == kUnbounded || p >= kUnbounded ? kUnbounded : static_cast<uint32_t>(p);
}

// The number of code points of valid UTF-8; false if it is not valid.
bool count_code_points(std::string_view s, uint32_t* count) {
  *count = 0;
  for (size_t i = 0; i < s.size(); ++*count) {
    const auto b = static_cast<unsigned char>(s[i]);
    const size_t size = b < 0x80                ? 1
                        : b >= 0xc2 && b < 0xe0 ? 2
                        : b >= 0xe0 && b < 0xf0 ? 3
                        : b >= 0xf0 && b < 0xf5 ? 4
                                                : 0;
    if (size == 0 || i + size > s.size()) return false;
    for (size_t k = 1; k < size; ++k) {
      const auto c = static_cast<unsigned char>(s[i + k]);
      const bool low_bad = k == 1 && ((b == 0xe0 && c < 0xa0) || (b == 0xf0 && c < 0x90));
      const bool high_bad = k == 1 && ((b == 0xed && c >= 0xa0) || (b == 0xf4 && c >= 0x90));
      if ((c & 0xc0) != 0x80 || low_bad || high_bad) return false;
    }
    i += size;
  }
  return true;
}

std::string encode_utf8(uint32_t c) {
  std::string out;
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
    return out;
  }
  const int tail = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out.push_back(static_cast<char>(kLead[tail] | c >> (6 * tail)));
  for (int i = tail - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (c >> (6 * i) & 0x3f)));
  return out;
}

std::string key_of(TextKind kind, uint32_t a, uint32_t b = 0, uint32_t c = 0) {
  std::string key(1, static_cast<char>(kind));
  for (uint32_t v : {a, b, c}) key.append(reinterpret_cast<const char*>(&v), sizeof v);
  return key;
}

std::string key_of(TextKind kind, std::span<const uint32_t> parts) {
  std::string key(1, static_cast<char>(kind));
  key.append(reinterpret_cast<const char*>(parts.data()), parts.size_bytes());
  return key;
}

}  // namespace

Text GrammarBuilder::no_text() { return {0}; }

Text GrammarBuilder::text(std::string_view utf8) {
  if (!impl_->charge()) return no_text();
  if (utf8.empty()) return {1};
  uint32_t count = 0;
  if (!count_code_points(utf8, &count)) {
    fail(make_error(Code::kInvalidArgument, "the constraint holds a string that is not valid UTF-8"));
    return no_text();
  }
  std::string key(1, static_cast<char>(TextKind::kString));
  key += utf8;
  const auto index = static_cast<uint32_t>(impl_->strings.size());
  const uint32_t id = impl_->add_text({TextKind::kString, index, 0, 0, count, count}, key);
  if (impl_->texts[id].a == index) impl_->strings.emplace_back(utf8);
  return {id};
}

Text GrammarBuilder::one_of(std::span<const std::string> values) {
  if (!impl_->charge()) return no_text();
  if (values.empty()) return no_text();
  if (values.size() == 1) return text(values[0]);
  uint32_t shortest = kUnbounded, longest = 0;
  for (const std::string& v : values) {
    uint32_t count = 0;
    if (!count_code_points(v, &count)) {
      fail(make_error(Code::kInvalidArgument, "the constraint holds a string that is not valid UTF-8"));
      return no_text();
    }
    shortest = std::min(shortest, count);
    longest = std::max(longest, count);
  }
  impl_->string_lists.emplace_back(values.begin(), values.end());
  impl_->texts.push_back(
      {TextKind::kStrings, static_cast<uint32_t>(impl_->string_lists.size() - 1), 0, 0, shortest, longest});
  return {static_cast<uint32_t>(impl_->texts.size() - 1)};
}

Text GrammarBuilder::chars(const CharSet& set) {
  if (!impl_->charge() || set.empty()) return no_text();
  std::string key(1, static_cast<char>(TextKind::kChars));
  key.append(reinterpret_cast<const char*>(set.ranges().data()), set.ranges().size() * sizeof(CharSet::Range));
  const auto index = static_cast<uint32_t>(impl_->sets.size());
  const uint32_t id = impl_->add_text({TextKind::kChars, index, 0, 0, 1, 1}, key);
  if (impl_->texts[id].a == index) impl_->sets.push_back(set);
  return {id};
}

Text GrammarBuilder::any_char() { return chars(CharSet::all()); }
Text GrammarBuilder::any_text() { return repeat(any_char(), 0, kUnbounded); }

// The string of a Text that is exactly one, or null.
const std::string* GrammarBuilder::Impl::single(uint32_t text) {
  TextNode& n = texts[text];
  if (n.kind == TextKind::kString) return &strings[n.a];
  if (n.kind != TextKind::kChars) return nullptr;
  const auto& ranges = sets[n.a].ranges();
  if (ranges.size() != 1 || ranges[0].first != ranges[0].last) return nullptr;
  scratch = encode_utf8(ranges[0].first);
  return &scratch;
}

// Joins neighbours that are single strings.
std::vector<Text> GrammarBuilder::join_strings(std::span<const Text> parts) {
  std::vector<Text> joined;
  std::string run;
  size_t in_run = 0;
  auto flush = [&] {
    if (in_run > 1) joined.back() = text(run);
    in_run = 0;
    run.clear();
  };
  for (Text t : parts) {
    const std::string* s = impl_->single(t.id);
    if (s == nullptr) {
      flush();
      joined.push_back(t);
      continue;
    }
    if (in_run++ == 0) joined.push_back(t);
    run += *s;
  }
  flush();
  return joined;
}

Text GrammarBuilder::concat(std::span<const Text> input) {
  if (!impl_->charge()) return no_text();
  const std::vector<Text> parts = join_strings(input);
  std::vector<uint32_t> ids;
  uint32_t shortest = 0, longest = 0;
  for (Text t : parts) {
    const TextNode& n = impl_->texts[t.id];
    if (n.kind == TextKind::kNone) return no_text();
    if (n.kind == TextKind::kEmpty) continue;
    ids.push_back(t.id);
    shortest = add_lengths(shortest, n.shortest);
    longest = add_lengths(longest, n.longest);
  }
  if (ids.empty()) return {1};
  if (ids.size() == 1) return {ids[0]};
  TextNode node{TextKind::kConcat,
                static_cast<uint32_t>(impl_->lists.size()),
                static_cast<uint32_t>(ids.size()),
                0,
                shortest,
                longest};
  const uint32_t id = impl_->add_text(node, key_of(TextKind::kConcat, ids));
  if (impl_->texts[id].a == node.a) impl_->lists.insert(impl_->lists.end(), ids.begin(), ids.end());
  return {id};
}

Text GrammarBuilder::any_of(std::span<const Text> parts) {
  if (!impl_->charge()) return no_text();
  const Text everything = any_text();
  std::vector<uint32_t> ids;
  std::vector<std::string> values;
  CharSet joined;
  uint32_t shortest = kUnbounded, longest = 0;
  for (Text t : parts) {
    const TextNode& n = impl_->texts[t.id];
    if (t == everything) return everything;
    if (n.kind == TextKind::kNone) continue;
    shortest = std::min(shortest, n.shortest);
    longest = std::max(longest, n.longest);
    if (n.kind == TextKind::kChars) joined = joined | impl_->sets[n.a];
    else if (n.kind == TextKind::kString) values.push_back(impl_->strings[n.a]);
    else ids.push_back(t.id);
  }
  if (!joined.empty()) ids.push_back(chars(joined).id);
  if (!values.empty()) ids.push_back(one_of(values).id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty()) return no_text();
  if (ids.size() == 1) return {ids[0]};
  TextNode node{
      TextKind::kUnion, static_cast<uint32_t>(impl_->lists.size()), static_cast<uint32_t>(ids.size()), 0, shortest,
      longest};
  const uint32_t id = impl_->add_text(node, key_of(TextKind::kUnion, ids));
  if (impl_->texts[id].a == node.a) impl_->lists.insert(impl_->lists.end(), ids.begin(), ids.end());
  return {id};
}

// Lengths that another part implies are dropped, and (char){m,n} of a narrower set takes them over: such intersections
// would otherwise have a state for each count and each place.
std::vector<uint32_t> GrammarBuilder::Impl::drop_implied_lengths(std::vector<uint32_t> parts) {
  const auto is_length = [this](uint32_t id) {
    const TextNode& n = texts[id];
    return n.kind == TextKind::kRepeat && texts[n.a].kind == TextKind::kChars && sets[texts[n.a].a] == CharSet::all();
  };
  uint32_t min = 0, max = kUnbounded;
  std::vector<uint32_t> rest;
  for (uint32_t id : parts) {
    if (is_length(id)) {
      min = std::max(min, texts[id].b);
      max = std::min(max, texts[id].c);
    } else {
      rest.push_back(id);
    }
  }
  if (rest.size() == parts.size()) return parts;
  for (uint32_t& id : rest) {
    const TextNode n = texts[id];
    if (n.shortest >= min && n.longest <= max) return rest;
    if (n.kind == TextKind::kRepeat && texts[n.a].kind == TextKind::kChars) {
      const uint32_t low = std::max(min, n.b), high = std::min(max, n.c);
      if (low > high) return {0};
      TextNode narrowed{TextKind::kRepeat, n.a, low, high, low, high};
      id = add_text(narrowed, key_of(TextKind::kRepeat, n.a, low, high));
      return rest;
    }
  }
  if (min > max) return {0};
  const TextNode any = texts[*std::find_if(parts.begin(), parts.end(), is_length)];
  rest.push_back(add_text({TextKind::kRepeat, any.a, min, max, min, max}, key_of(TextKind::kRepeat, any.a, min, max)));
  return rest;
}

Text GrammarBuilder::all_of(std::span<const Text> parts) {
  if (!impl_->charge()) return no_text();
  std::vector<uint32_t> ids;
  for (Text t : parts) {
    const TextNode& n = impl_->texts[t.id];
    if (n.kind == TextKind::kNone) return no_text();
    if (n.kind == TextKind::kIntersection) {
      ids.insert(ids.end(), impl_->lists.begin() + n.a, impl_->lists.begin() + n.a + n.b);
    } else {
      ids.push_back(t.id);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.empty()) return any_text();
  ids = impl_->drop_implied_lengths(std::move(ids));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.size() == 1) return {ids[0]};
  uint32_t shortest = 0, longest = kUnbounded;
  for (uint32_t id : ids) {
    shortest = std::max(shortest, impl_->texts[id].shortest);
    longest = std::min(longest, impl_->texts[id].longest);
  }
  if (shortest > longest) return no_text();
  TextNode node{TextKind::kIntersection,
                static_cast<uint32_t>(impl_->lists.size()),
                static_cast<uint32_t>(ids.size()),
                0,
                shortest,
                longest};
  const uint32_t id = impl_->add_text(node, key_of(TextKind::kIntersection, ids));
  if (impl_->texts[id].a == node.a) impl_->lists.insert(impl_->lists.end(), ids.begin(), ids.end());
  return {id};
}

Text GrammarBuilder::complement(Text a) {
  if (!impl_->charge()) return no_text();
  const TextNode n = impl_->texts[a.id];
  if (n.kind == TextKind::kNone) return any_text();
  if (n.kind == TextKind::kComplement) return {n.a};
  return {impl_->add_text({TextKind::kComplement, a.id, 0, 0, 0, kUnbounded}, key_of(TextKind::kComplement, a.id))};
}

Text GrammarBuilder::repeat(Text a, uint32_t min, uint32_t max) {
  if (!impl_->charge()) return no_text();
  const TextNode n = impl_->texts[a.id];
  if (max == 0 || n.kind == TextKind::kEmpty) return {1};
  if (max < min) return no_text();
  if (n.kind == TextKind::kNone) return min == 0 ? Text{1} : no_text();
  if (min == 1 && max == 1) return a;
  const TextNode node{
      TextKind::kRepeat, a.id, min, max, multiply_lengths(n.shortest, min), multiply_lengths(n.longest, max)};
  return {impl_->add_text(node, key_of(TextKind::kRepeat, a.id, min, max))};
}

Text GrammarBuilder::automaton(const Automaton& machine) {
  if (!impl_->charge()) return no_text();
  auto dfa = std::make_shared<ByteDfa>();
  dfa->acyclic = false;
  dfa->universe = kRxUtf8Text;
  for (const Automaton::State& s : machine.states) {
    dfa->accepts.push_back(s.accepts);
    auto& edges = dfa->edges.emplace_back();
    for (const Automaton::Edge& e : s.edges) {
      if (e.last >= 0x80 || e.to >= machine.states.size()) {
        fail(make_error(Code::kInternal, "an automaton of the grammar form has an edge outside ASCII or to no state"));
        return no_text();
      }
      edges.push_back({e.first, e.last, e.to});
    }
    std::sort(edges.begin(), edges.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
  }
  if (dfa->edges.empty()) return no_text();
  impl_->automata.push_back(std::move(dfa));
  impl_->texts.push_back(
      {TextKind::kAutomaton, static_cast<uint32_t>(impl_->automata.size() - 1), 0, 0, 0, kUnbounded});
  return {static_cast<uint32_t>(impl_->texts.size() - 1)};
}

RxId GrammarBuilder::Impl::lower_node(const TextNode& n, Encoding encoding) {
  RxArena& rx = grammar->exprs.rx();
  std::vector<RxId> parts;
  if (n.kind == TextKind::kConcat || n.kind == TextKind::kUnion || n.kind == TextKind::kIntersection) {
    for (uint32_t i = 0; i < n.b; ++i) parts.push_back(lower(lists[n.a + i], encoding));
  }
  switch (n.kind) {
    case TextKind::kNone:
      return kRxNone;
    case TextKind::kEmpty:
      return kRxEmpty;
    case TextKind::kString:
      return encoding == Encoding::kUtf8 ? rx.literal(strings[n.a]) : rx.json_strings({strings[n.a]});
    case TextKind::kStrings:
      return encoding == Encoding::kUtf8 ? rx.strings(string_lists[n.a]) : rx.json_strings(string_lists[n.a]);
    case TextKind::kChars:
      return rx.chars(sets[n.a], encoding);
    case TextKind::kConcat: {
      RxId r = kRxEmpty;
      for (size_t i = parts.size(); i-- > 0;) r = rx.concat(parts[i], r);
      return r;
    }
    case TextKind::kUnion:
      return rx.alt(parts);
    case TextKind::kIntersection:
      return rx.both(parts);
    case TextKind::kComplement:
      return rx.both(rx.universe(encoding), rx.complement(lower(n.a, encoding)));
    case TextKind::kRepeat:
      return rx.repeat(lower(n.a, encoding), n.b, n.c);
    case TextKind::kAutomaton:
      if (encoding == Encoding::kJson && status.ok()) {
        status = make_error(Code::kInternal, "an automaton of the grammar form stands inside a JSON string");
      }
      return rx.dfa(automata[n.a]);
  }
  return kRxNone;
}

RxId GrammarBuilder::Impl::lower(uint32_t text, Encoding encoding) {
  auto& cache = lowered[static_cast<int>(encoding)];
  if (cache.size() < texts.size()) cache.resize(texts.size(), UINT32_MAX);
  if (cache[text] != UINT32_MAX) return cache[text];
  if (!charge()) return kRxNone;
  if (lower_depth >= kLowerDepthMax) {
    status = make_error(Code::kResourceExhausted,
                        "a condition on a string nests more than {} levels deep; make it simpler", kLowerDepthMax);
    return kRxNone;
  }
  ++lower_depth;
  const RxId r = lower_node(texts[text], encoding);
  --lower_depth;
  lowered[static_cast<int>(encoding)][text] = r;
  return r;
}

bool GrammarBuilder::is_empty(Text a) {
  RxArena& rx = impl_->grammar->exprs.rx();
  const RxId r = impl_->lower(a.id, Encoding::kUtf8);
  const bool alive = rx.alive(r);
  if (rx.error()) {
    impl_->fail_search();
    return true;
  }
  return !alive;
}

// By length: every state that is reached stands for at least one string, and different ways to it for different
// strings.
uint32_t GrammarBuilder::count_at_least(Text a, uint32_t enough) {
  constexpr uint32_t kStepsMax = 50'000;
  RxArena& rx = impl_->grammar->exprs.rx();
  const RxId start = impl_->lower(a.id, Encoding::kUtf8);
  if (!ok() || !rx.alive(start)) return 0;
  std::map<RxId, uint64_t> level{{start, 1}};
  uint64_t finished = 0, best = 0;
  uint32_t steps = 0;
  while (!level.empty() && best < enough && steps < kStepsMax && !rx.error()) {
    uint64_t open = 0;
    for (auto [state, ways] : level) {
      open += ways;
      if (rx.nullable(state)) finished += ways;
    }
    // A state that is reached may only stand for the string that ends here.
    best = std::max({best, finished, open});
    std::map<RxId, uint64_t> next;
    for (auto [state, ways] : level) {
      const ByteSet bytes = rx.first(state);
      bytes.for_each([&](uint8_t b) {
        ++steps;
        if (const uint32_t to = rx.step(state, b); to != 0)
          next[to >> 1] = std::min<uint64_t>(next[to >> 1] + ways, enough);
      });
    }
    level = std::move(next);
  }
  rx.clear_error();
  return static_cast<uint32_t>(std::min<uint64_t>(best, enough));
}

bool GrammarBuilder::contains(Text a, std::string_view value) {
  return impl_->grammar->exprs.rx().matches(impl_->lower(a.id, Encoding::kUtf8), value);
}

}  // namespace deepinfer::grammar
