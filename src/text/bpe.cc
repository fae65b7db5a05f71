#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <queue>

#include "text/utf8.h"

namespace deepinfer::text {
namespace {

enum class Edge : uint8_t { kCharacter, kInside, kUnknown };

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

Edge start_of(std::string_view bytes) { return is_continuation(bytes[0]) ? Edge::kInside : Edge::kCharacter; }

// Whether the bytes end where a character ends; continuation bytes alone do not tell.
Edge end_of(std::string_view bytes) {
  for (size_t have = 1; have <= std::min<size_t>(bytes.size(), 4); ++have) {
    const uint8_t c = static_cast<uint8_t>(bytes[bytes.size() - have]);
    if ((c & 0xc0) == 0x80) continue;
    const size_t need = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return have == need ? Edge::kCharacter : Edge::kInside;
  }
  return Edge::kUnknown;
}

}  // namespace


Result<Bpe> Bpe::build(const TokenizerFile& file, const Vocabulary& vocabulary) {
  if (file.merges.size() > kMaxMerges) {
    return make_error(Code::kInvalidArgument, "tokenizer.json: {} merges; at most {} are supported", file.merges.size(), kMaxMerges);
  }
  Bpe bpe;
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  pairs.reserve(file.merges.size());
  std::vector<Symbol> symbol_of(static_cast<size_t>(vocabulary.size()), ~Symbol{0});
  const auto symbol_for = [&](TokenId id) {
    Symbol& symbol = symbol_of[static_cast<size_t>(id)];
    if (symbol == ~Symbol{0}) {
      symbol = static_cast<Symbol>(bpe.ids_.size());
      bpe.ids_.push_back(id);
    }
    return symbol;
  };
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = vocabulary.find_ordinary({&c, 1});
    if (!id) return make_error(Code::kInvalidArgument, "tokenizer.json: model.vocab has no token for the byte {:#04x}", byte);
    symbol_for(*id);
  }
  std::string both;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    both.clear();
    append_token_bytes(file.merges[rank].left, &both);
    const size_t cut = both.size();
    append_token_bytes(file.merges[rank].right, &both);
    const std::string_view all = both;
    const auto left = vocabulary.find_ordinary(all.substr(0, cut)), right = vocabulary.find_ordinary(all.substr(cut));
    const auto result = vocabulary.find_ordinary(all);
    if (!left || !right || !result) {
      return make_error(Code::kInvalidArgument, "tokenizer.json: model.merges[{}] uses or makes a token that is not in model.vocab", rank);
    }
    const Symbol a = symbol_for(*left), b = symbol_for(*right);
    const size_t made = bpe.ids_.size();
    const Symbol c = symbol_for(*result);
    bpe.regular_ = bpe.regular_ && made == 256 + rank && c == made;
    pairs.emplace_back(a, b);
    bpe.results_.push_back(c);
  }
  DI_ASSIGN_OR_RETURN(bpe.pairs_, PairTable::build(pairs));
  if (bpe.regular_) {
    bpe.prepare_regular(pairs, vocabulary);
  } else {
    bpe.find_whole_by_heap(vocabulary);
  }
  return bpe;
}

void Bpe::find_whole_by_heap(const Vocabulary& vocabulary) {
  std::vector<TokenId> encoded;
  for (const TokenId id : ids_) {
    encoded.clear();
    encode_by_heap(vocabulary.bytes(id), &encoded);
    whole_.push_back(encoded.size() == 1);
  }
}

// A short piece being merged. Units sit at places 1 to kShortUnits; the places around them hold a symbol that never merges,
// so that no step asks whether there is a neighbour.
struct Bpe::Lane {
  static constexpr uint32_t kNothing = ~uint32_t{0};
  static constexpr int kPlaceBits = 6;
  static_assert(kShortUnits + 2 <= 1 << kPlaceBits);
  static constexpr size_t kNarrow = 16;  // the smallest of so many merges is found without a loop, whose length would be guessed wrong

  Job* job;
  bool wide;                           // more than kNarrow units
  uint64_t alive;                      // one bit per place that holds a unit, and the two at the ends
  Symbol units[kShortUnits + 2];
  uint32_t merges[kShortUnits + 2];    // of place i with the next one alive: rank and place, so that the smallest is next; kNothing
  size_t asked;                        // questions whose answers go into merges
  PairTable::Question questions[kShortUnits];
  uint32_t places[kShortUnits];

  static uint32_t pack(uint32_t rank, size_t place) {
    static_assert(PairTable::kNone == kNothing);
    return (rank << kPlaceBits | static_cast<uint32_t>(place)) | (0u - (rank >> 31));  // no branch: it would be a coin toss
  }
};

// The symbols from which merging can start: characters, or bytes; 0 if there are more than kShortUnits.
__attribute__((always_inline)) inline size_t Bpe::find_units(std::string_view piece, Symbol* units) const {
  size_t count = 0;
  for (size_t i = 0; i < piece.size();) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(piece[i + at]); };
    const uint8_t lead = byte(0);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (count + length > kShortUnits) return 0;
    Symbol symbol = lead;
    if (length == 2) symbol = characters_[(lead & 0x1fu) << 6 | (byte(1) & 0x3fu)];
    if (length == 3) symbol = characters_[(lead & 0xfu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu)];
    if (length == 4 || symbol == kNever) {
      for (size_t at = 0; at < length; ++at) units[count++] = byte(at);
    } else {
      units[count++] = symbol;
    }
    i += length;
  }
  return count;
}

__attribute__((always_inline)) inline bool Bpe::start_lane(Job* job, Lane* lane) const {
  if (job->size > kShortBytes) return false;
  const size_t count = find_units({job->piece, job->size}, lane->units + 1);
  if (count == 0) return false;
  constexpr Symbol kMergesWithNothing = kSymbolMask;
  lane->job = job;
  lane->wide = count > Lane::kNarrow;
  std::fill_n(lane->merges, Lane::kNarrow + 1, Lane::kNothing);
  if (lane->wide) std::fill(lane->merges + Lane::kNarrow + 1, std::end(lane->merges), Lane::kNothing);
  lane->alive = (uint64_t{1} << (count + 2)) - 1;
  lane->units[0] = lane->units[count + 1] = kMergesWithNothing;
  lane->asked = 0;
  for (size_t i = 1; i < count; ++i) {
    const Symbol left = lane->units[i], right = lane->units[i + 1];
    if ((left | right) < kAscii) {
      lane->merges[i] = Lane::pack(ascii_ranks_[left * kAscii + right], i);
      continue;
    }
    lane->questions[lane->asked] = pairs_.ask(left, right);
    lane->places[lane->asked++] = static_cast<uint32_t>(i);
  }
  return true;
}

__attribute__((always_inline)) inline void Bpe::read_answers(Lane* lane) const {
  for (size_t i = 0; i < lane->asked; ++i) lane->merges[lane->places[i]] = Lane::pack(pairs_.answer(lane->questions[i]), lane->places[i]);
}

// Does the next merge and asks what comes of it; false if there is none left.
__attribute__((always_inline)) inline bool Bpe::step_lane(Lane* lane) const {
  // Four at a time, and without branches: which one is the smallest is as good as random.
  using Four = uint32_t __attribute__((vector_size(16)));
  const auto load = [&](size_t place) {
    Four four;
    std::memcpy(&four, lane->merges + place, sizeof four);
    return four;
  };
  const auto lower = [](Four a, Four b) { return a < b ? a : b; };
  Four best = lower(lower(load(1), load(5)), lower(load(9), load(13)));
  if (lane->wide) best = lower(best, lower(lower(load(17), load(21)), lower(load(25), load(29))));
  best = lower(best, __builtin_shuffle(best, Four{2, 3, 0, 1}));
  best = lower(best, __builtin_shuffle(best, Four{1, 0, 3, 2}));
  const uint32_t lowest = best[0];
  if (lowest == Lane::kNothing) return false;
  const uint32_t place = lowest & ((1u << Lane::kPlaceBits) - 1);
  const Symbol made = 256 + (lowest >> Lane::kPlaceBits);
  const uint64_t after = lane->alive & ~uint64_t{1} << place;
  const int absorbed = std::countr_zero(after);
  const int next = std::countr_zero(after & (after - 1));
  const int previous = 63 - std::countl_zero(lane->alive & ((uint64_t{1} << place) - 1));
  lane->alive &= ~(uint64_t{1} << absorbed);
  lane->units[place] = made;
  lane->merges[absorbed] = Lane::kNothing;
  lane->asked = 2;
  lane->questions[0] = pairs_.ask(made, lane->units[next]);
  lane->questions[1] = pairs_.ask(lane->units[previous], made);
  lane->places[0] = place;
  lane->places[1] = static_cast<uint32_t>(previous);
  return true;
}

__attribute__((always_inline)) inline void Bpe::finish_lane(const Lane& lane) const {
  TokenId* out = lane.job->ids;
  uint64_t left = lane.alive & ~uint64_t{1};
  for (left &= ~(uint64_t{1} << (63 - std::countl_zero(left))); left != 0; left &= left - 1) {
    *out++ = id_of(lane.units[std::countr_zero(left)]);
  }
  lane.job->count = static_cast<uint32_t>(out - lane.job->ids);
}

// Inlined into encode_lanes(), once for any processor and once for those with AVX2, whose instructions it uses well.
__attribute__((always_inline)) inline void Bpe::run_lanes(std::span<Job> jobs, Scratch* scratch) const {
  std::array<Lane, kLanes> storage;
  std::array<Lane*, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = &storage[i];
  size_t active = 0, next = 0;
  const auto fill = [&](Lane* lane) {
    for (; next < jobs.size(); ++next) {
      if (start_lane(&jobs[next], lane)) {
        ++next;
        return true;
      }
      jobs[next].count = static_cast<uint32_t>(encode_long({jobs[next].piece, jobs[next].size}, scratch, jobs[next].ids));
    }
    return false;
  };
  while (active < kLanes && fill(lanes[active])) ++active;
  while (active > 0) {
    for (size_t i = 0; i < active; ++i) read_answers(lanes[i]);
    for (size_t i = 0; i < active; ++i) {
      if (step_lane(lanes[i])) continue;
      finish_lane(*lanes[i]);
      if (!fill(lanes[i])) std::swap(lanes[i--], lanes[--active]);
    }
  }
}

void Bpe::encode_lanes(std::span<Job> jobs, Scratch* scratch) const { run_lanes(jobs, scratch); }

#if defined(__x86_64__)
__attribute__((target("avx2,bmi,bmi2,lzcnt"))) void Bpe::encode_lanes_avx2(std::span<Job> jobs, Scratch* scratch) const { run_lanes(jobs, scratch); }
#endif

void Bpe::encode(std::span<Job> jobs, Scratch* scratch) const {
  if (!regular_) {
    for (Job& job : jobs) {
      scratch->ids.clear();
      encode_by_heap({job.piece, job.size}, &scratch->ids);
      std::copy(scratch->ids.begin(), scratch->ids.end(), job.ids);
      job.count = static_cast<uint32_t>(scratch->ids.size());
    }
    return;
  }
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  if (has_avx2) return encode_lanes_avx2(jobs, scratch);
#endif
  encode_lanes(jobs, scratch);
}

size_t Bpe::encode_long(std::string_view piece, Scratch* scratch, TokenId* ids) const {
  uint32_t* const stack = reinterpret_cast<uint32_t*>(ids);  // flagged symbols, until all are known
  std::vector<uint64_t>& dead = scratch->dead;
  bool any_dead = false;
  const auto is_dead = [&](size_t place) { return any_dead && (dead[place / 64] >> place % 64 & 1); };
  size_t place = 0, count = 0;
  while (place < piece.size()) {
    const TokenTrie::Match match = trie_.longest(piece.data() + place, piece.size() - place);
    uint32_t symbol = match.value;
    size_t length = match.length;
    while (is_dead(place + length) || (count > 0 && !compatible(stack[count - 1], symbol))) {
      symbol = shorter_[symbol & kSymbolMask];
      while (symbol == TokenTrie::kNone) {  // nothing fits here: give the place up and shorten the token before it
        if (!any_dead) dead.assign(piece.size() / 64 + 1, 0);
        any_dead = true;
        dead[place / 64] |= uint64_t{1} << place % 64;
        const Symbol last = stack[--count] & kSymbolMask;
        place -= length_[last];
        symbol = shorter_[last];
      }
      length = length_[symbol & kSymbolMask];
    }
    stack[count++] = symbol;
    place += length;
  }
  for (size_t i = 0; i < count; ++i) ids[i] = id_of(stack[i] & kSymbolMask);
  return count;
}

void Bpe::encode_by_heap(std::string_view piece, std::vector<TokenId>* ids) const {
  struct Node {
    Symbol symbol;
    size_t previous, next;  // next == piece.size() at the end; previous is unused at the start
  };
  struct Candidate {
    uint32_t rank;
    size_t left;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  constexpr Symbol kGone = ~Symbol{0};
  std::vector<Node> nodes(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) nodes[i] = {static_cast<uint8_t>(piece[i]), i - 1, i + 1};
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](size_t left) {
    if (nodes[left].next >= nodes.size()) return;
    const uint32_t rank = pairs_.find(nodes[left].symbol, nodes[nodes[left].next].symbol);
    if (rank != PairTable::kNone) queue.push({rank, left});
  };
  for (size_t i = 0; i < nodes.size(); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Node& node = nodes[best.left];
    if (node.symbol == kGone || node.next >= nodes.size()) continue;
    if (pairs_.find(node.symbol, nodes[node.next].symbol) != best.rank) continue;  // a neighbour has changed since
    node.symbol = results_[best.rank];
    nodes[node.next].symbol = kGone;
    node.next = nodes[node.next].next;
    if (node.next < nodes.size()) nodes[node.next].previous = best.left;
    offer(best.left);
    if (best.left > 0) offer(node.previous);
  }
  for (size_t i = 0; i < nodes.size(); i = nodes[i].next) ids->push_back(ids_[nodes[i].symbol]);
}

void Bpe::prepare_regular(const std::vector<std::pair<uint32_t, uint32_t>>& pairs, const Vocabulary& vocabulary) {
  left_.assign(256, 0);
  right_.assign(256, 0);
  for (const auto& [left, right] : pairs) {
    left_.push_back(left);
    right_.push_back(right);
  }
  find_edge_parts(vocabulary);
  whole_.assign(ids_.size(), true);
  for (Symbol s = 256; s < ids_.size(); ++s) {
    whole_[s] = whole_[left_[s]] && whole_[right_[s]] && !merges_across(left_[s], right_[s], s);
  }
  build_trie(vocabulary);
  build_characters(vocabulary);
}

void Bpe::build_characters(const Vocabulary& vocabulary) {
  characters_.assign(0x10000, kNever);
  ascii_ranks_.resize(kAscii * kAscii);
  for (Symbol left = 0; left < kAscii; ++left) {
    for (Symbol right = 0; right < kAscii; ++right) ascii_ranks_[left * kAscii + right] = pairs_.find(left, right);
  }
  first_merged_id_ = ids_.size() > 256 ? ids_[256] : 0;
  ids_in_order_ = true;
  for (Symbol s = 256; s < ids_.size(); ++s) ids_in_order_ = ids_in_order_ && ids_[s] == first_merged_id_ + static_cast<TokenId>(s - 256);
  for (Symbol s = 256; s < ids_.size(); ++s) {
    const std::string_view bytes = vocabulary.bytes(ids_[s]);
    const Utf8Step step = read_utf8(bytes);
    // Without edge parts the character is whole before anything can merge across its edges.
    if (whole_[s] && (flags_[s] & (kLeftParts | kRightParts)) == 0 && step.head == Utf8Head::kCharacter && step.length == bytes.size() &&
        step.code_point < 0x10000) {
      characters_[step.code_point] = s;
    }
  }
}

void Bpe::find_edge_parts(const Vocabulary& vocabulary) {
  const size_t n = ids_.size();
  const auto bytes = [&](Symbol s) { return vocabulary.bytes(ids_[s]); };
  // The first merge in which a symbol is the left (right) half: of all, and of those whose seam can be between two characters.
  struct First {
    Symbol any = kNever, between_characters = kNever;
  };
  std::vector<First> as_left(n), as_right(n);
  for (Symbol s = static_cast<Symbol>(n); s-- > 256;) {
    const Symbol l = left_[s], r = right_[s];
    as_left[l].any = as_right[r].any = s;
    if (end_of(bytes(l)) != Edge::kInside && start_of(bytes(r)) == Edge::kCharacter) {
      as_left[l].between_characters = as_right[r].between_characters = s;
    }
  }
  flags_.assign(n, 0);
  const auto collect = [&](const std::vector<First>& first, const std::vector<Symbol>& inner, Symbol s, bool between, EdgeParts* out) {
    out->begin.push_back(static_cast<uint32_t>(out->parts.size()));
    Symbol outer = s;
    while (outer >= 256) {
      const Symbol part = inner[outer];
      // Not `<`: a merge across the seam of the same kind as the one that absorbs a part counts too (parts_merge).
      if ((between ? first[part].between_characters : first[part].any) <= outer) out->parts.push_back({part, outer});
      outer = part;
    }
    return out->parts.size() > out->begin.back();
  };
  for (Symbol s = 0; s < n; ++s) {
    const bool ends = end_of(bytes(s)) == Edge::kCharacter, starts = start_of(bytes(s)) == Edge::kCharacter;
    if ((ends ? as_left[s].between_characters : as_left[s].any) != kNever) flags_[s] |= kMergesRight;
    if ((starts ? as_right[s].between_characters : as_right[s].any) != kNever) flags_[s] |= kMergesLeft;
    if (collect(as_left, right_, s, ends, &right_parts_)) flags_[s] |= kRightParts;
    if (collect(as_right, left_, s, starts, &left_parts_)) flags_[s] |= kLeftParts;
  }
  right_parts_.begin.push_back(static_cast<uint32_t>(right_parts_.parts.size()));
  left_parts_.begin.push_back(static_cast<uint32_t>(left_parts_.parts.size()));
}

void Bpe::build_trie(const Vocabulary& vocabulary) {
  const size_t n = ids_.size();
  TokenTrie::Builder builder;
  std::vector<uint32_t> nodes(n, TokenTrie::Builder::kRoot);
  length_.resize(n);
  for (Symbol s = 0; s < n; ++s) {
    const std::string_view bytes = vocabulary.bytes(ids_[s]);
    length_[s] = static_cast<uint16_t>(bytes.size());
    if (!whole_[s]) continue;
    const Symbol left = s < 256 ? 0 : left_[s];  // a whole symbol's halves are whole and were added before it
    nodes[s] = s < 256 ? builder.add(bytes, s | flags_[s]) : builder.add(bytes.substr(length_[left]), s | flags_[s], nodes[left]);
  }
  shorter_.assign(n, TokenTrie::kNone);
  for (Symbol s = 0; s < n; ++s) {
    if (whole_[s]) shorter_[s] = builder.longest_prefix(nodes[s]);
  }
  trie_ = builder.finish();
}

// Whether the two parts merge with each other before something else absorbs one of them. Among merges of one kind the leftmost
// comes first: the seam's comes after one inside the left token and before one inside the right token.
bool Bpe::parts_merge(EdgePart left, EdgePart right) const {
  const uint32_t rank = pairs_.find(left.symbol, right.symbol);
  if (rank == PairTable::kNone) return false;
  const Symbol made = 256 + rank;
  return made < left.absorbed_at && made <= right.absorbed_at;
}

// Whether, before the symbol `before` would be made, a merge crosses the seam of two tokens that are each whole.
bool Bpe::merges_across(Symbol left, Symbol right, Symbol before) const {
  const EdgePart whole_left{left, before}, whole_right{right, before};
  if (before == kNever && parts_merge(whole_left, whole_right)) return true;
  for (const EdgePart r : left_parts_.of(right)) {
    if (parts_merge(whole_left, r)) return true;
  }
  for (const EdgePart l : right_parts_.of(left)) {
    if (parts_merge(l, whole_right)) return true;
    for (const EdgePart r : left_parts_.of(right)) {
      if (parts_merge(l, r)) return true;
    }
  }
  return false;
}

bool Bpe::compatible(uint32_t left, uint32_t right) const {
  if ((left & (kMergesRight | kRightParts)) == 0 || (right & (kMergesLeft | kLeftParts)) == 0) return true;
  const Symbol l = left & kSymbolMask, r = right & kSymbolMask;
  if ((left & kRightParts) == 0 && (right & kLeftParts) == 0) return pairs_.find(l, r) == PairTable::kNone;
  return !merges_across(l, r, kNever);
}

}  // namespace deepinfer::text
