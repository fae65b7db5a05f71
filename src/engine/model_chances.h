// How likely the model's drafter is right, by how sure the model itself has been lately (internal to engine/).
//
//   float sure = ModelChances::kUnknown;                          // of an answer
//   sure = ModelChances::follow(sure, certainty);                 // of each of its tokens: Sampler::certainty()
//   const int bin = ModelChances::bin_of(sure);
//   chances.usual(bin, chance);                                   // of each draft, if those before it are right
//   chances.learn(bin, judged, accepted);                         // what came of a round that began there
//
// Where the model hardly doubts its next token, the drafter finds it as well; where it does, the drafter is seldom
// right twice. So a round can be left out before it has cost anything. Until rounds have shown more, a draft is taken
// to be as likely as the model has been sure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace deepinfer::engine {

class ModelChances {
 public:
  static constexpr int kDraftsMax = 16;
  static constexpr float kUnknown = 0.5f;

  ModelChances() {
    for (size_t b = 0; b < kBins; ++b) bins_[b].fill({kFirstWeight, kFirstWeight * (1 - 0.8f * kDoubts[b])});
  }

  static float follow(float sure, float certainty) { return kShare * certainty + (1 - kShare) * sure; }
  static int bin_of(float sure) {
    int b = 0;
    while (b + 1 < static_cast<int>(kBins) && 1 - sure < kDoubts[static_cast<size_t>(b) + 1]) ++b;
    return b;
  }
  void usual(int bin, std::span<float> chance) const {
    for (size_t j = 0; j < chance.size(); ++j) {
      const Draft& d = bins_[static_cast<size_t>(bin)][std::min<size_t>(j, kDraftsMax - 1)];
      chance[j] = d.came / d.tried;
    }
  }
  // `judged` drafts were compared with what came, and the first `accepted` of them were right.
  void learn(int bin, int judged, int accepted) {
    for (int j = 0; j < std::min({judged, accepted + 1, kDraftsMax}); ++j) {
      Draft& d = bins_[static_cast<size_t>(bin)][static_cast<size_t>(j)];
      d.tried = d.tried * kForget + 1;
      d.came = d.came * kForget + static_cast<float>(j < accepted);
    }
  }

 private:
  struct Draft {
    float tried = 0, came = 0;
  };
  static constexpr float kShare = 0.5f;  // of the newest token
  static constexpr float kForget = 0.98f, kFirstWeight = 4;
  // What a bin's answers miss to be sure, at most.
  static constexpr std::array<float, 10> kDoubts = {1, 0.6f, 0.45f, 0.3f, 0.2f, 0.12f, 0.06f, 0.03f, 0.015f, 0.007f};
  static constexpr size_t kBins = kDoubts.size();
  std::array<std::array<Draft, kDraftsMax>, kBins> bins_;
};

}  // namespace deepinfer::engine
