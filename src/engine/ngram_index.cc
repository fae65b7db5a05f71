#include "engine/ngram_index.h"

#include <algorithm>

namespace deepinfer::engine {

uint32_t NgramIndex::hash(std::span<const int32_t> tokens) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (const int32_t t : tokens) {
    h = (h ^ static_cast<uint32_t>(t)) * 0xff51afd7ed558ccd;
    h ^= h >> 32;
  }
  return static_cast<uint32_t>(h);
}

void NgramIndex::Places::grow() {
  const std::vector<Entry> old = std::move(entries_);
  entries_.assign(std::max<size_t>(64, 2 * old.size()), {});
  used_ = 0;
  for (const Entry& e : old) {
    if (e.behind != 0) add(e.hash, e.behind);
  }
}

void NgramIndex::Places::add(uint32_t hash, int32_t behind) {
  if (2 * (used_ + 1) > entries_.size()) grow();
  const size_t mask = entries_.size() - 1;
  size_t at = hash & mask;
  while (entries_[at].behind != 0 && entries_[at].hash != hash) at = (at + 1) & mask;
  used_ += entries_[at].behind == 0;
  entries_[at] = {hash, behind};
}

int32_t NgramIndex::Places::find(uint32_t hash) const {
  if (entries_.empty()) return -1;
  const size_t mask = entries_.size() - 1;
  size_t at = hash & mask;
  while (entries_[at].behind != 0 && entries_[at].hash != hash) at = (at + 1) & mask;
  return entries_[at].behind != 0 ? entries_[at].behind : -1;
}

void NgramIndex::Places::clear() {
  entries_.clear();
  used_ = 0;
}

// An n-gram is entered once the token behind it is known, so the end of the text never finds itself.
void NgramIndex::enter() {
  const std::span<const int32_t> text(text_);
  for (; entered_ < text.size(); ++entered_) {
    for (Places& p : places_) {
      const auto n = static_cast<size_t>(p.n());
      if (entered_ >= n) p.add(hash(text.subspan(entered_ - n, n)), static_cast<int32_t>(entered_));
    }
  }
}

NgramIndex::Proposal NgramIndex::propose(std::span<int32_t> drafts, std::span<const int32_t> ahead) const {
  Proposal best;
  if (drafts.empty() || ahead.size() > kAheadMax) return best;
  // The end of the text, oldest first.
  std::array<int32_t, kMatchMax + kAheadMax> tail;
  const size_t from_text = std::min<size_t>(kMatchMax, text_.size());
  std::copy_n(text_.end() - static_cast<std::ptrdiff_t>(from_text), from_text, tail.begin());
  std::ranges::copy(ahead, tail.begin() + static_cast<std::ptrdiff_t>(from_text));
  const std::span<const int32_t> end(tail.data(), from_text + ahead.size());
  int32_t behind = -1;
  for (const Places& p : places_) {
    const auto n = static_cast<size_t>(p.n());
    if (end.size() < n) continue;
    const int32_t place = p.find(hash(end.last(n)));
    if (place < 0) continue;
    int matched = 0;
    while (matched < kMatchMax && matched < place && matched < std::ssize(end) &&
           text_[static_cast<size_t>(place - 1 - matched)] == end[end.size() - 1 - static_cast<size_t>(matched)]) {
      ++matched;
    }
    if (matched < p.n()) continue;  // another n-gram with the same hash
    behind = place;
    best.matched = matched;
    break;
  }
  if (behind < 0) return best;
  for (int32_t& d : drafts) {
    // Behind the end of what is known the drafts themselves go on.
    const auto at = static_cast<size_t>(behind + best.count);
    const size_t in_ahead = at - text_.size();
    if (at < text_.size()) {
      d = text_[at];
    } else if (in_ahead < ahead.size()) {
      d = ahead[in_ahead];
    } else {
      d = drafts[in_ahead - ahead.size()];
    }
    ++best.count;
  }
  return best;
}

void NgramIndex::clear() {
  text_.clear();
  entered_ = 0;
  for (Places& p : places_) p.clear();
}

}  // namespace deepinfer::engine
