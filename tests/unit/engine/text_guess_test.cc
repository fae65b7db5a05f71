#include "engine/text_guess.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace deepinfer::engine {
namespace {

std::vector<int32_t> tokens_of(const TextGuess& g) { return {g.tokens.begin(), g.tokens.begin() + g.count}; }

NgramIndex index_of(const std::vector<int32_t>& text) {
  NgramIndex index;
  index.append(text);
  return index;
}

TEST(TextGuess, EitherSourceGoesOnBehindTheOther) {
  const TextChances chances;
  TextHistory history;
  history.append(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, 2);
  EXPECT_EQ(tokens_of(chances.guess(index_of({9, 1, 2}), &history, {})), (std::vector<int32_t>{3, 4, 5, 6}));
  EXPECT_EQ(tokens_of(chances.guess(index_of({9, 1, 2}), nullptr, {})), std::vector<int32_t>());
  EXPECT_EQ(tokens_of(chances.guess(index_of({1, 2, 3, 1, 2}), nullptr, {.most = 3})), (std::vector<int32_t>{3, 1, 2}));
  // The request's own text says 7 behind 5 6, where the history ends.
  EXPECT_EQ(tokens_of(chances.guess(index_of({5, 6, 7, 1, 2}), &history, {})), (std::vector<int32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(chances.guess(NgramIndex(), &history, {}).count, 0);
  EXPECT_EQ(chances.guess(index_of({9, 1, 2}), &history, {.most = 0}).count, 0);
}

TEST(TextGuess, SurvivalsFallAndEndWhereTheyAreLow) {
  const TextChances chances;
  const NgramIndex own = index_of(std::vector<int32_t>(64, 3));
  const TextGuess g = chances.guess(own, nullptr, {.most = TextGuess::kMost});
  ASSERT_EQ(g.count, TextGuess::kMost);
  for (size_t j = 1; j < TextGuess::kMost; ++j) EXPECT_LT(g.survivals[j], g.survivals[j - 1]);
  EXPECT_LT(g.survivals[0], 1);
  const TextGuess few = chances.guess(own, nullptr, {.most = TextGuess::kMost, .least = 0.1f});
  EXPECT_GT(few.count, 0);
  EXPECT_LT(few.count, g.count);
  EXPECT_GE(few.survivals[static_cast<size_t>(few.count) - 1], 0.1f);
}

// What is promised is what comes, of sure guesses and of others, and of an answer that is unlike the rest.
TEST(TextGuess, ChancesAreLearnt) {
  std::mt19937 random(5);
  const auto comes = [&random](double p) { return std::uniform_real_distribution<>()(random) < p; };
  TextChances chances;
  TextHistory history;
  for (int i = 0; i < 40; ++i) history.append(std::vector<int32_t>{1, 2, 3}, 2);                        // always 3
  for (int i = 0; i < 40; ++i) history.append(std::vector<int32_t>{4, 5, i % 3 == 0 ? 7 : 6}, 2);  // mostly 6
  const NgramIndex sure = index_of({1, 2}), likely = index_of({4, 5});
  TextLean usual;
  for (int i = 0; i < 600; ++i) {
    for (const auto& [index, p] : {std::pair(&sure, 0.97), {&likely, 0.6}}) {
      const TextGuess g = chances.guess(*index, &history, {.most = 1, .lean = usual.value()});
      const int accepted = comes(p);
      chances.learn(g, 1, accepted);
      usual.learn(g, 1, accepted);
    }
  }
  EXPECT_NEAR(chances.guess(sure, &history, {.most = 1}).survivals[0], 0.97, 0.06);
  EXPECT_NEAR(chances.guess(likely, &history, {.most = 1}).survivals[0], 0.6, 0.15);
  EXPECT_NEAR(usual.value(), 1, 0.35);
  TextLean other;
  for (int i = 0; i < 20; ++i) other.learn(chances.guess(sure, &history, {.most = 1}), 1, 0);
  EXPECT_LT(other.value(), 0.5f);
}

}  // namespace
}  // namespace deepinfer::engine
