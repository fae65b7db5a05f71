#include "engine/text_history.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace deepinfer::engine {
namespace {

std::vector<int32_t> said(std::vector<int32_t> text) { return text; }

TEST(TextHistory, ContinuesWhatWasSaid) {
  TextHistory h;
  EXPECT_EQ(h.guess(said({1, 2, 3})).token, -1);
  const std::vector<int32_t> text = {9, 1, 2, 3, 4, 5};
  h.append(text, 3);  // 9 1 2 is what was asked
  EXPECT_EQ(h.guess(said({1, 2})).token, 3) << "behind the end of the prompt";
  EXPECT_EQ(h.guess(said({2, 3})).token, 4);
  EXPECT_EQ(h.guess(said({7, 7, 3, 4})).token, 5);
  EXPECT_EQ(h.guess(said({9, 1})).token, -1) << "the prompt itself is not learnt";
  EXPECT_EQ(h.guess(said({3})).token, -1);
  EXPECT_EQ(h.guess({}).token, -1);
}

TEST(TextHistory, LongestContextAndLikeliestTokenCount) {
  TextHistory h;
  for (int i = 0; i < 3; ++i) h.append(said({1, 2, 5}), 2);
  h.append(said({8, 1, 2, 6}), 3);
  EXPECT_EQ(h.guess(said({1, 2})).token, 5);
  EXPECT_EQ(h.guess(said({8, 1, 2})).token, 6) << "three tokens say more than two";
  EXPECT_LT(h.guess(said({8, 1, 2})).context, h.guess(said({0, 1, 2})).context);
  EXPECT_FLOAT_EQ(h.guess(said({1, 2})).share, 3.0f / 5);
  for (int i = 0; i < 3; ++i) h.append(said({1, 2, 6}), 2);
  EXPECT_EQ(h.guess(said({1, 2})).token, 6);
}

TEST(TextHistory, FollowsWhatChanges) {
  TextHistory h;
  for (int i = 0; i < 1000; ++i) h.append(said({1, 2, 5}), 2);
  for (int i = 0; i < 80; ++i) h.append(said({1, 2, 6}), 2);
  EXPECT_EQ(h.guess(said({1, 2})).token, 6);
  for (int i = 0; i < 1000; ++i) h.append(said({1, 2, 100 + i}), 2);  // never the same
  EXPECT_LT(h.guess(said({1, 2})).share, 0.1f);
}

// Little room: what is met again and again stays.
TEST(TextHistory, ForgetsTheRareFirst) {
  TextHistory h(8);
  std::mt19937 random(3);
  int kept = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> noise = {static_cast<int32_t>(random() % 100000), static_cast<int32_t>(random() % 100000),
                                  static_cast<int32_t>(random() % 100000)};
    h.append(noise, 2);
    h.append(said({1, 2, 5}), 2);
    kept += h.guess(said({1, 2})).token == 5;
  }
  EXPECT_EQ(kept, 2000);
}

// Many tokens at once are what one after the other is.
TEST(TextHistory, TokensMayComeTogether) {
  std::mt19937 random(5);
  TextHistory one(64), together(64);
  for (int round = 0; round < 50; ++round) {
    std::vector<int32_t> text;
    for (int i = 0; i < 40; ++i) text.push_back(static_cast<int32_t>(random() % 6));
    const size_t from = random() % 12;
    together.append(text, from);
    for (size_t i = from; i < text.size(); ++i) one.append(std::span(text).first(i + 1), i);
    for (size_t n = 0; n <= text.size(); ++n) {
      const TextHistory::Guess a = one.guess(std::span(text).first(n)), b = together.guess(std::span(text).first(n));
      ASSERT_EQ(a.token, b.token);
      ASSERT_EQ(a.context, b.context);
      ASSERT_EQ(a.share, b.share);
    }
  }
}

TEST(TextHistories, OneOfATenantAndNeverTooMany) {
  TextHistories all;
  all.of(1)->append(said({1, 2, 5}), 2);
  EXPECT_EQ(all.of(1)->guess(said({1, 2})).token, 5);
  EXPECT_EQ(all.of(2)->guess(said({1, 2})).token, -1) << "of another tenant";
  std::vector<std::shared_ptr<TextHistory>> held;
  for (int32_t t = 0; t < static_cast<int32_t>(TextHistories::kMost); ++t) held.push_back(all.of(t));
  EXPECT_EQ(all.of(1000), nullptr) << "all are in use";
  EXPECT_EQ(all.of(3), held[3]);
  held[5].reset();
  EXPECT_NE(all.of(1000), nullptr);
  EXPECT_EQ(all.of(1)->guess(said({1, 2})).token, 5);
}

}  // namespace
}  // namespace deepinfer::engine
