#include "engine/text_guess.h"

namespace deepinfer::engine {
namespace {

constexpr float kSurest = 0.995f;

size_t match_bin(int matched) { return matched >= 16 ? 3 : matched >= 8 ? 2 : matched >= 4 ? 1 : 0; }

}  // namespace

void TextLean::learn(const TextGuess& g, int judged, int accepted) {
  for (int j = 0; j < std::min({judged, accepted + 1, g.count}); ++j) {
    const float before = j == 0 ? 1 : g.survivals[static_cast<size_t>(j) - 1];
    expected_ = expected_ * kForget + (before > 0 ? g.survivals[static_cast<size_t>(j)] / before : 0);
    came_ = came_ * kForget + static_cast<float>(j < accepted);
  }
}

void TextChances::learn(const TextGuess& g, int judged, int accepted) {
  for (int j = 0; j < std::min({judged, accepted + 1, g.count}); ++j) {
    Bin& b = bins_[g.bins[static_cast<size_t>(j)]];
    b.tried = b.tried * kForget + 1;
    b.came = b.came * kForget + (j < accepted);
    b.chance = static_cast<float>(b.came / b.tried);
  }
}

TextGuess TextChances::guess(const NgramIndex& own, const TextHistory* history, const Options& options) const {
  TextGuess g;
  std::array<int32_t, TextHistory::kContextMax + TextGuess::kMost> end;
  const std::span<const int32_t> text = own.text();
  const size_t from_text = std::min(TextHistory::kContextMax, text.size());
  std::copy_n(text.end() - static_cast<std::ptrdiff_t>(from_text), from_text, end.begin());
  float survival = 1;
  while (g.count < std::min(options.most, TextGuess::kMost)) {
    const auto n = static_cast<size_t>(g.count);
    size_t bin = kBins;
    int32_t token = -1;
    if (const NgramIndex::Proposal p = own.propose({&token, 1}, std::span(g.tokens).first(n)); p.count > 0)
      bin = match_bin(p.matched);
    if (history != nullptr) {
      const TextHistory::Guess h = history->guess(std::span(end).first(from_text + n));
      const size_t other = kMatches + static_cast<size_t>(h.context) * kShares +
                           std::min(kShares - 1, static_cast<size_t>(h.share * kShares));
      if (h.token >= 0 && (bin == kBins || bins_[other].chance > bins_[bin].chance)) {
        bin = other;
        token = h.token;
      }
    }
    if (bin == kBins) break;
    survival *= std::min(kSurest, bins_[bin].chance * options.lean);
    if (survival < options.least) break;
    g.tokens[n] = end[from_text + n] = token;
    g.bins[n] = static_cast<uint8_t>(bin);
    g.survivals[n] = survival;
    ++g.count;
  }
  return g;
}

}  // namespace deepinfer::engine
