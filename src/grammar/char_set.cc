#include "grammar/char_set.h"

#include <algorithm>

namespace deepinfer::grammar {
namespace {

constexpr uint32_t kSurrogateFirst = 0xD800, kSurrogateLast = 0xDFFF;

}  // namespace

CharSet CharSet::all() {
  CharSet s;
  s.ranges_ = {{0, kSurrogateFirst - 1}, {kSurrogateLast + 1, kMaxCodePoint}};
  return s;
}

CharSet CharSet::range(uint32_t first, uint32_t last) {
  CharSet s;
  s.add(first, last);
  return s;
}

CharSet CharSet::of(std::u32string_view chars) {
  CharSet s;
  for (char32_t c : chars) s.add(c, c);
  return s;
}

void CharSet::add(uint32_t first, uint32_t last) {
  last = std::min(last, kMaxCodePoint);
  if (first <= kSurrogateLast && last >= kSurrogateFirst) {
    if (first < kSurrogateFirst) add(first, kSurrogateFirst - 1);
    if (last > kSurrogateLast) add(kSurrogateLast + 1, last);
    return;
  }
  if (first > last) return;
  if (ranges_.empty() || first > ranges_.back().last + 1) {  // the usual case: sorted input
    ranges_.push_back({first, last});
    return;
  }
  auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), first,
                                [](const Range& r, uint32_t c) { return r.last + 1 < c; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  if (begin == end) {
    ranges_.insert(begin, {first, last});
  } else {
    *begin = {first, last};
    ranges_.erase(begin + 1, end);
  }
}

bool CharSet::contains(uint32_t c) const {
  auto it = std::lower_bound(ranges_.begin(), ranges_.end(), c, [](const Range& r, uint32_t v) { return r.last < v; });
  return it != ranges_.end() && it->first <= c;
}

CharSet CharSet::operator|(const CharSet& other) const {
  CharSet out;
  size_t i = 0, j = 0;
  while (i < ranges_.size() || j < other.ranges_.size()) {
    const bool left = j == other.ranges_.size() || (i < ranges_.size() && ranges_[i].first < other.ranges_[j].first);
    const Range r = left ? ranges_[i++] : other.ranges_[j++];
    if (!out.ranges_.empty() && r.first <= out.ranges_.back().last + 1) {
      out.ranges_.back().last = std::max(out.ranges_.back().last, r.last);
    } else {
      out.ranges_.push_back(r);
    }
  }
  return out;
}

CharSet CharSet::operator&(const CharSet& other) const {
  CharSet out;
  for (size_t i = 0, j = 0; i < ranges_.size() && j < other.ranges_.size();) {
    const Range a = ranges_[i], b = other.ranges_[j];
    const uint32_t first = std::max(a.first, b.first), last = std::min(a.last, b.last);
    if (first <= last) out.ranges_.push_back({first, last});
    if (a.last < b.last) ++i; else ++j;
  }
  return out;
}

CharSet CharSet::operator~() const {
  CharSet out;
  uint32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.first > next) out.add(next, r.first - 1);
    next = r.last + 1;
  }
  if (next <= kMaxCodePoint) out.add(next, kMaxCodePoint);
  return out;
}

}  // namespace deepinfer::grammar
