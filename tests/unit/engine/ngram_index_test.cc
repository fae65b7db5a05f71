#include "engine/ngram_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace deepinfer::engine {
namespace {

std::vector<int32_t> proposed(const NgramIndex& index, int count, int* matched = nullptr,
                              std::vector<int32_t> ahead = {}) {
  std::vector<int32_t> drafts(static_cast<size_t>(count), -7);
  const NgramIndex::Proposal p = index.propose(drafts, ahead);
  if (matched != nullptr) *matched = p.matched;
  drafts.resize(static_cast<size_t>(p.count));
  return drafts;
}

NgramIndex index_of(const std::vector<int32_t>& text) {
  NgramIndex index;
  index.append(text);
  return index;
}

TEST(Ngrams, ContinueTheLatestLongestMatch) {
  int matched = 0;
  // "1 2 3 4" occurs twice; behind the first is 5, behind the second 9.
  EXPECT_EQ(proposed(index_of({1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 9, 8, 7, 1, 2, 3, 4}), 3, &matched),
            (std::vector<int32_t>{9, 8, 7}));
  EXPECT_EQ(matched, 4);
  // Two tokens match late, four match early: the longer one wins.
  EXPECT_EQ(proposed(index_of({1, 2, 3, 4, 5, 0, 3, 4, 6, 0, 1, 2, 3, 4}), 2, &matched), (std::vector<int32_t>{5, 0}));
}

TEST(Ngrams, NothingToSay) {
  EXPECT_TRUE(proposed(NgramIndex(), 5).empty());
  EXPECT_TRUE(proposed(index_of({7}), 5).empty());
  EXPECT_TRUE(proposed(index_of({7, 8}), 5).empty());
  EXPECT_TRUE(proposed(index_of({1, 2, 3, 4, 5}), 5).empty());
  EXPECT_TRUE(proposed(index_of({1, 2, 1, 2}), 0).empty());
}

// Bug case 17: a prompt of one token repeated.
TEST(Ngrams, RepeatedTokenGoesOn) {
  EXPECT_EQ(proposed(index_of(std::vector<int32_t>(64, 3)), 5), std::vector<int32_t>(5, 3));
  EXPECT_EQ(proposed(index_of({3, 3, 3}), 5), std::vector<int32_t>(5, 3));
  EXPECT_EQ(proposed(index_of({1, 2, 1, 2, 1, 2}), 5), (std::vector<int32_t>{1, 2, 1, 2, 1}));
}

TEST(Ngrams, AheadOfTheText) {
  int matched = 0;
  EXPECT_EQ(proposed(index_of({5, 6, 7, 8, 5}), 2, &matched, {6}), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(matched, 2);
  EXPECT_EQ(proposed(NgramIndex(), 2, &matched, {6, 6, 6}), std::vector<int32_t>());
  // The proposal may run into what is ahead.
  EXPECT_EQ(proposed(index_of({1, 2, 1}), 4, &matched, {2}), (std::vector<int32_t>{1, 2, 1, 2}));
}

// Against a search by hand: a proposal continues an earlier occurrence of the longest of the three lengths that has
// one. Tokens may be entered late.
TEST(Ngrams, EqualASearchOverRandomTexts) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const int letters = 2 + static_cast<int>(random() % 5);
    NgramIndex index, late;
    std::vector<int32_t> text;
    for (int i = 0; i < 120; ++i) {
      text.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(letters)));
      index.append(std::span(text).last(1));
      late.push(std::span(text).last(1));
      int behind = -1;
      for (const int n : {NgramIndex::kLongest, NgramIndex::kMiddle, NgramIndex::kShortest}) {
        for (int at = static_cast<int>(text.size()) - 1; at >= n && behind < 0; --at) {
          if (std::equal(text.end() - n, text.end(), text.begin() + (at - n))) behind = at;
        }
        if (behind >= 0) break;
      }
      std::vector<int32_t> expected;
      if (behind >= 0) {
        std::vector<int32_t> longer = text;
        for (int k = 0; k < 5; ++k) {
          expected.push_back(longer[static_cast<size_t>(behind + k)]);
          longer.push_back(expected.back());
        }
      }
      ASSERT_EQ(proposed(index, 5), expected) << "round " << round << ", length " << text.size();
      if (i % 7 != 0) continue;
      late.enter();
      ASSERT_EQ(proposed(late, 5), expected) << "round " << round << ", length " << text.size();
    }
  }
}

}  // namespace
}  // namespace deepinfer::engine
