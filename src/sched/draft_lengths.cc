#include "sched/draft_lengths.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace deepinfer::sched {

void DraftLengths::begin() {
  drafts_.clear();
  tokens_.clear();
  survival_.clear();
}

void DraftLengths::add(const DraftCandidate& c) {
  drafts_.push_back(std::clamp(c.drafts, 0, kDraftsMax));
  tokens_.push_back(c.tokens);
  for (const std::span<const float> list : {c.newest, c.older}) {
    // Rounding must not make a later draft likelier than an earlier one: prefixes would break.
    float floor = 1;
    for (int j = 0; j < kDraftsMax; ++j) {
      float a = list.empty() ? (c.drafts > 0 ? 1.0f : 0.0f) : (j < std::ssize(list) ? list[j] : 0.0f);
      floor = std::min(floor, a > 0 ? a : 0.0f);
      survival_.push_back(floor);
    }
  }
}

// All drafts by falling survival. Survivals lie in [0, 1], so their bits order as integers; the sort is stable and the
// candidates start in the order of ties.
void DraftLengths::rank(bool newest) {
  ranked_.clear();
  for (size_t place = 0; place < order_.size(); ++place) {
    const int r = order_[place];
    const float* a = &survival_[(2 * r + (newest ? 0 : 1)) * kDraftsMax];
    for (int j = 0; j < drafts_[r]; ++j) ranked_.push_back({a[j], static_cast<int32_t>(place)});
  }
  scratch_.resize(ranked_.size());
  constexpr int kBits = 11;
  constexpr uint32_t kTop = std::bit_cast<uint32_t>(1.0f);
  for (int shift = 0; shift < 3 * kBits; shift += kBits) {
    const auto digit = [shift](const Ranked& x) {
      return ((kTop - std::bit_cast<uint32_t>(x.survival)) >> shift) & ((1u << kBits) - 1);
    };
    std::array<uint32_t, (1u << kBits) + 1> begin = {};
    for (const Ranked& x : ranked_) ++begin[digit(x) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const Ranked& x : ranked_) scratch_[begin[digit(x)]++] = x;
    ranked_.swap(scratch_);
  }
}

// The number of drafts, out of the ranked ones, with the largest value; the fewest among equals.
int DraftLengths::budget(const StepTime& time, int extra_max) const {
  const int requests = static_cast<int>(drafts_.size());
  const int m_max = std::min(extra_max, static_cast<int>(ranked_.size()));
  if (time.empty()) return m_max;
  float expected = static_cast<float>(requests);
  double best = expected / time.seconds(requests, requests);
  int best_m = 0;
  int bucket = -1;
  double seconds = 0;
  for (int m = 1; m <= m_max && requests + m <= time.rows_max(); ++m) {
    expected += ranked_[m - 1].survival;
    if (const int b = time.bucket(requests + m); b != bucket) {
      bucket = b;
      seconds = time.seconds(requests + m, requests);
    }
    if (const double value = expected / seconds; value > best) {
      best = value;
      best_m = m;
    }
  }
  return best_m;
}

std::span<const int> DraftLengths::choose(const StepTime& time, const DraftLimits& limits) {
  const int requests = static_cast<int>(drafts_.size());
  order();
  rank(false);
  return split(budget(time, std::clamp(limits.rows_max - requests, 0, limits.drafts_max)));
}

void DraftLengths::order() {
  order_.resize(drafts_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(),
            [this](int a, int b) { return tokens_[a] != tokens_[b] ? tokens_[a] > tokens_[b] : a < b; });
}

std::span<const int> DraftLengths::split(int extra) {
  verify_.assign(drafts_.size(), 0);
  order();
  rank(true);
  expected_ = static_cast<double>(drafts_.size());
  for (int i = 0; i < std::min(extra, static_cast<int>(ranked_.size())); ++i) {
    ++verify_[order_[ranked_[i].request]];
    expected_ += ranked_[i].survival;
  }
  return verify_;
}

}  // namespace deepinfer::sched
