// Drafts from texts that are there already, each with the chance that it comes true (internal to engine/).
//
//   TextChances chances;                                      // of an engine
//   TextGuess g = chances.guess(index, history, {.most = 5, .lean = lean.value()});
//   g.tokens[0 .. g.count), g.survival(j): chance that the first j + 1 all come true
//   chances.learn(g, judged, accepted);                       // whenever some of them are known
//   lean.learn(g, judged, accepted);
//
// Two sources are asked for every draft, behind those before it: the request's own text (engine/ngram_index.h) and what
// the tenant's answers said (engine/text_history.h); the likelier one counts. Chances are measured: how often guesses
// of as long a match, or of as large a share, came true lately, in all answers; and a lean of the answer, whose guesses
// come true more or less often than that.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/ngram_index.h"
#include "engine/text_history.h"

namespace deepinfer::engine {

struct TextGuess {
  static constexpr int kMost = 16;
  std::array<int32_t, kMost> tokens = {};
  std::array<uint8_t, kMost> bins = {};
  std::array<float, kMost> survivals = {};  // chance that this draft and all before it come true
  int count = 0;

  std::span<const float> known() const { return {survivals.data(), static_cast<size_t>(count)}; }
};

class TextLean {
 public:
  float value() const { return (came_ + kWeight) / (expected_ + kWeight); }
  void learn(const TextGuess& g, int judged, int accepted);

 private:
  static constexpr float kWeight = 3, kForget = 0.9f;
  float expected_ = 0, came_ = 0;
};

class TextChances {
 public:
  struct Options {
    int most = 5;
    float lean = 1;
    float least = 0;  // a draft that fewer than this come to is left out
  };

  // `history` may be null.
  TextGuess guess(const NgramIndex& own, const TextHistory* history, const Options& options) const;
  // `judged` drafts were compared with what came, and the first `accepted` of them were right.
  void learn(const TextGuess& g, int judged, int accepted);

 private:
  static constexpr size_t kMatches = 4, kShares = 8, kBins = kMatches + TextHistory::kContexts.size() * kShares;
  static constexpr double kForget = 0.99;
  struct Bin {
    double tried = 2, came = 0.8;
    float chance = 0.4f;  // until it has shown more
  };
  std::array<Bin, kBins> bins_;
};

}  // namespace deepinfer::engine
