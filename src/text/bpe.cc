#include "text/bpe.h"

#include <algorithm>
#include <queue>

namespace deepinfer::text {

namespace {

// Fewer jobs than this leave most of the vectors empty.
constexpr size_t kJobsForVectors = 8;

}  // namespace

bool Bpe::can_run(Way way) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  static const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return way == Way::kAvx512 ? avx512 : way == Way::kAvx2 ? avx2 : true;
#else
  return way == Way::kPortable;
#endif
}

void Bpe::encode(std::span<Job> jobs, Scratch* scratch) const {
  const bool vectors = jobs.size() >= kJobsForVectors && can_run(Way::kAvx512);
  encode(jobs, vectors ? Way::kAvx512 : can_run(Way::kAvx2) ? Way::kAvx2 : Way::kPortable, scratch);
}

void Bpe::encode(std::span<Job> jobs, Way way, Scratch* scratch) const {
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
  if (way == Way::kAvx2) return encode_lanes_avx2(jobs, scratch);
  while (way == Way::kAvx512 && !jobs.empty()) {
    const size_t count = std::min(jobs.size(), kColumnJobs);
    encode_columns(jobs.first(count), scratch);
    jobs = jobs.subspan(count);
  }
#endif
  encode_lanes(jobs, scratch);
}

// The symbols from which merging can start: characters, or bytes; 0 if there are more than kShortUnits.
size_t Bpe::find_units(std::string_view piece, Symbol* units) const {
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

size_t Bpe::encode_long(std::string_view piece, Scratch* scratch, TokenId* ids) const {
  uint32_t* const stack = reinterpret_cast<uint32_t*>(ids);  // flagged symbols, until all are known
  std::vector<uint64_t>& dead = scratch->dead;
  bool any_dead = false;
  const auto is_dead = [&](size_t place) { return any_dead && (dead[place / 64] >> place % 64 & 1); };
  size_t place = 0, count = 0;
  uint32_t fitting[2] = {kNever, kNever};  // the last pair seen to fit: long pieces tend to repeat it
  const auto fits = [&](uint32_t left, uint32_t right) {
    if (left == fitting[0] && right == fitting[1]) return true;
    if (!compatible(left, right)) return false;
    fitting[0] = left;
    fitting[1] = right;
    return true;
  };
  while (place < piece.size()) {
    const TokenTrie::Match match = trie_.longest(piece.data() + place, piece.size() - place);
    uint32_t symbol = match.value;
    size_t length = match.length;
    while (is_dead(place + length) || (count > 0 && !fits(stack[count - 1], symbol))) {
      symbol = shorter_[symbol & kSymbolMask];
      while (symbol == TokenTrie::kNone) {  // nothing fits here: give the place up and shorten the token before it
        if (!any_dead) dead.assign(piece.size() / 64 + 1, 0);
        any_dead = true;
        dead[place / 64] |= uint64_t{1} << place % 64;
        if (count == 0) {  // every piece has an encoding, so this would be a defect; the definition still holds then
          scratch->ids.clear();
          encode_by_heap(piece, &scratch->ids);
          std::copy(scratch->ids.begin(), scratch->ids.end(), ids);
          return scratch->ids.size();
        }
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

// Whether the two parts merge with each other before something else absorbs one of them. Among merges of one kind the
// leftmost comes first: the seam's comes after one inside the left token and before one inside the right token.
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
