#include "engine/grammar_trigger.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace deepinfer::engine {
namespace {

// How many tokens come before it opens; -1: never.
int opens_after(GrammarTrigger trigger, const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_FALSE(trigger.open());
    trigger.take(tokens[i]);
    if (trigger.open()) return static_cast<int>(i) + 1;
  }
  return -1;
}

TEST(GrammarTrigger, FindsOverlappingMatches) {
  EXPECT_EQ(opens_after({{1, 1, 2}, -1}, {1, 1, 1, 2}), 4);
  EXPECT_EQ(opens_after({{1, 2, 1, 3}, -1}, {1, 2, 1, 2, 1, 3}), 6);
  EXPECT_EQ(opens_after({{7}, -1}, {1, 7, 7}), 2);
  EXPECT_EQ(opens_after({{1, 2}, -1}, {1, 1, 3, 2}), -1);
}

TEST(GrammarTrigger, AgreesWithSearchOnAllShortSequences) {
  for (uint32_t bits = 0; bits < 1u << 12; ++bits) {
    for (uint32_t shape = 0; shape < 1u << 4; ++shape) {
      std::vector<int32_t> text, ids;
      for (int i = 0; i < 12; ++i) text.push_back(bits >> i & 1);
      for (int i = 0; i < 4; ++i) ids.push_back(shape >> i & 1);
      const auto at = std::ranges::search(text, ids);
      const int want = at.empty() ? -1 : static_cast<int>(at.end() - text.begin());
      text.resize(want < 0 ? text.size() : static_cast<size_t>(want));
      ASSERT_EQ(opens_after({ids, -1}, text), want) << bits << " " << shape;
    }
  }
}

TEST(GrammarTrigger, ForcesTheSequenceBehindTheBound) {
  GrammarTrigger t({5, 6, 7}, 9);
  std::vector<int32_t> forced;
  for (int32_t free : {1, 5, 9}) {
    EXPECT_EQ(t.forced(), -1);
    t.take(free);
  }
  while (t.forced() >= 0) {
    forced.push_back(t.forced());
    t.take(forced.back());
  }
  EXPECT_EQ(forced, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_TRUE(t.open());
  // A bound that begins the sequence counts as its first token as well, where the rest fits.
  GrammarTrigger overlap({9, 9}, 9);
  overlap.take(9);
  EXPECT_EQ(overlap.forced(), 9);
  overlap.take(9);
  EXPECT_TRUE(overlap.open());
}

}  // namespace
}  // namespace deepinfer::engine
