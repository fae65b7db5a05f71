#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/sampler.h"

namespace deepinfer::engine {

LogSoftmax::LogSoftmax(std::span<const float> logits) : logits_(logits) {
  const ops::SamplerKernels& k = ops::sampler_kernels();
  const auto max = static_cast<double>(k.largest(logits.data(), logits.size()));
  log_sum_ = max + std::log(k.exp_sum(logits.data(), max, logits.size()));
}

double LogSoftmax::of(int32_t token) const {
  const double p = static_cast<double>(logits_[static_cast<size_t>(token)]) - log_sum_;
  return p >= kLogprobFloor ? p : kLogprobFloor;
}

void LogSoftmax::top(int count, std::vector<TokenLogprob>* out) const {
  out->clear();
  const auto wanted = std::min<size_t>(static_cast<size_t>(std::max(count, 0)), logits_.size());
  if (wanted == 0) return;
  const auto better = [this](int32_t a, int32_t b) {
    const float x = logits_[static_cast<size_t>(a)], y = logits_[static_cast<size_t>(b)];
    if (x == y) return a < b;
    return x > y || (y != y && (x == x || a < b));  // NaN last
  };
  // A heap of the best so far, the worst of them in front.
  std::vector<int32_t> best;
  best.reserve(wanted);
  for (int32_t t = 0; t < static_cast<int32_t>(logits_.size()); ++t) {
    if (best.size() == wanted && !better(t, best.front())) continue;
    if (best.size() == wanted) {
      std::pop_heap(best.begin(), best.end(), better);
      best.back() = t;
    } else {
      best.push_back(t);
    }
    std::push_heap(best.begin(), best.end(), better);
  }
  std::sort_heap(best.begin(), best.end(), better);
  for (int32_t t : best) out->push_back({t, of(t), {}});
}

void processed_logprobs(const ops::Sampler& sampler, bool greedy, int32_t token, int count, TokenLogprob* of,
                        std::vector<TokenLogprob>* top) {
  *of = {token, kLogprobFloor, {}};
  top->clear();
  const std::vector<int32_t> kept = sampler.kept_best_first();
  const std::span<const float> z = sampler.scaled();
  double sum = 0;
  for (int32_t t : kept) sum += greedy ? 1.0 : std::exp(static_cast<double>(z[static_cast<size_t>(t)]));
  const double log_sum = std::log(sum);
  for (size_t i = 0; i < kept.size(); ++i) {
    const double p = greedy ? 0.0 : static_cast<double>(z[static_cast<size_t>(kept[i])]) - log_sum;
    const TokenLogprob one{kept[i], std::max(p, kLogprobFloor), {}};
    if (kept[i] == token) *of = one;
    if (static_cast<int>(i) < count) top->push_back(one);
  }
}

}  // namespace deepinfer::engine
