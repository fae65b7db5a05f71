#include "recipe/pattern_set.h"

#include <algorithm>
#include <bit>

namespace deepinfer::recipe {

PatternSet::PatternSet(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
  if (patterns_.size() > kMaxPatterns) patterns_.resize(kMaxPatterns);
  fallback_.reserve(patterns_.size());
  for (size_t p = 0; p < patterns_.size(); ++p) {
    const std::string& s = patterns_[p].literal;
    // fallback[k]: longest proper border of the first k bytes.
    std::vector<uint32_t> fallback(s.size() + 1, 0);
    for (size_t k = 1; k < s.size(); ++k) {
      uint32_t b = fallback[k];
      while (b > 0 && s[b] != s[k]) b = fallback[b];
      fallback[k + 1] = s[b] == s[k] ? b + 1 : 0;
    }
    fallback_.push_back(std::move(fallback));
    const auto first = static_cast<unsigned char>(s[0]);
    starts_[first] |= uint64_t{1} << p;
    hot_[first] = true;
    counts_newlines_ |= patterns_[p].takes_newlines;
  }
  if (counts_newlines_) hot_['\n'] = true;
}

bool PatternSet::advance(State& state, int pattern, unsigned char c) const {
  const std::string& s = patterns_[pattern].literal;
  const uint64_t bit = uint64_t{1} << pattern;
  uint32_t k = (state.live & bit) != 0 ? state.matched[pattern] : 0;
  while (k > 0 && static_cast<unsigned char>(s[k]) != c) {
    k = fallback_[pattern][k];
    state.newlines_before[pattern] = 0;
  }
  if (static_cast<unsigned char>(s[k]) != c) {
    state.live &= ~bit;
    return false;
  }
  if (k == 0) state.newlines_before[pattern] = patterns_[pattern].takes_newlines ? state.newlines : 0;
  state.matched[pattern] = ++k;
  state.live |= bit;
  return k == s.size();
}

int PatternSet::scan(State& state, std::string_view text, size_t* pos) const {
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  const size_t n = text.size();
  size_t i = *pos;
  while (i < n) {
    if (state.live == 0 && !hot_[data[i]]) {
      state.newlines = 0;
      do ++i;
      while (i < n && !hot_[data[i]]);
      continue;
    }
    const unsigned char c = data[i++];
    for (uint64_t todo = state.live | starts_[c]; todo != 0; todo &= todo - 1) {
      const int pattern = std::countr_zero(todo);
      if (advance(state, pattern, c)) {
        *pos = i;
        return pattern;
      }
    }
    state.newlines = counts_newlines_ && c == '\n' ? state.newlines + 1 : 0;
  }
  *pos = i;
  return -1;
}

size_t PatternSet::held(const State& state) const {
  size_t longest = state.newlines;
  for (uint64_t todo = state.live; todo != 0; todo &= todo - 1) {
    const int pattern = std::countr_zero(todo);
    longest = std::max(longest, state.matched[pattern] + state.newlines_before[pattern]);
  }
  return longest;
}

}  // namespace deepinfer::recipe
