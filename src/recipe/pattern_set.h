// Finds, byte by byte, which of several literals completes first, however the bytes are cut into pieces.
//
//   PatternSet set({{"</think>", true}, {"STOP", false}});
//   PatternSet::State state;
//   size_t pos = 0;
//   const int found = set.scan(state, chunk, &pos);   // -1: chunk used up; else which pattern ends at *pos
//   const size_t held = set.held(state);              // trailing bytes that may still become part of a match
//
// Each pattern has its own Knuth-Morris-Pratt matcher (spec/protocol.md 8.2), so the one that completes on the earliest
// byte wins, by list order on a tie. A pattern with takes_newlines also covers the run of "\n" directly before it.
// Bytes that can start no pattern are skipped by a table look-up. Time is linear in the bytes and in the patterns alive
// at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::recipe {

class PatternSet {
 public:
  static constexpr int kMaxPatterns = 64;

  struct Pattern {
    std::string literal;          // not empty
    bool takes_newlines = false;  // then the literal holds no "\n"
  };

  // The matchers' progress. The arrays hold something only for live patterns.
  struct State {
    uint64_t live = 0;    // bit p: pattern p has matched some bytes
    size_t newlines = 0;  // "\n" directly before the current position, if some pattern takes them
    std::array<uint32_t, kMaxPatterns> matched;
    std::array<size_t, kMaxPatterns> newlines_before;
    void restart() { live = 0, newlines = 0; }
  };

  PatternSet() = default;
  explicit PatternSet(std::vector<Pattern> patterns);  // at most kMaxPatterns

  // Reads text from *pos on. Returns the pattern that completes, with *pos just behind it, or -1 with *pos at the end.
  int scan(State& state, std::string_view text, size_t* pos) const;
  // Length of the match that scan just reported, with the newlines it takes.
  size_t match_length(const State& state, int pattern) const {
    return patterns_[pattern].literal.size() + state.newlines_before[pattern];
  }
  size_t held(const State& state) const;

 private:
  bool advance(State& state, int pattern, unsigned char c) const;

  std::vector<Pattern> patterns_;
  std::vector<std::vector<uint32_t>> fallback_;  // per pattern and matched length
  std::array<uint64_t, 256> starts_{};           // patterns whose first byte is c
  std::array<bool, 256> hot_{};                  // c starts a pattern or is a newline that counts
  bool counts_newlines_ = false;
};

}  // namespace deepinfer::recipe
