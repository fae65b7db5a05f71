#include "ops/cpu/sampler.h"

#include <algorithm>
#include <cmath>

namespace deepinfer::ops {
namespace {

// z falls into buckets of width 1/64; a power of two keeps the bucket number monotone in z. The last bucket holds the
// rest, whose masses are all zero (exp(-32) * 2^31 < 1).
constexpr int kBucketsPerUnit = 64;
constexpr int kBuckets = 32 * kBucketsPerUnit + 1;
// Tokens are first looked for above these z; they lie between buckets.
constexpr float kCuts[] = {-5.0f, -6.5f, -8.0f, -12.0f, kMinusInfinity};

int bucket_of(float z) {
  const float b = -z * kBucketsPerUnit;
  return b < kBuckets - 1 ? static_cast<int>(b) : kBuckets - 1;
}

struct Best {
  int32_t token = -1;
  float score = kMinusInfinity;

  void offer(int32_t t, float z, uint32_t word) {
    const float s = z + gumbel_of_word(word);
    if (token < 0 || s > score || (s == score && t < token)) {
      token = t;
      score = s;
    }
  }
};

}  // namespace

float gumbel_of_word(uint32_t word) { return static_cast<float>(-std::log(-std::log(noise_uniform(word)))); }

float gumbel_noise(const NoisePlace& at, int32_t token) {
  const uint32_t t = static_cast<uint32_t>(token);
  return gumbel_of_word(noise_words(at, t / 4)[t % 4]);
}

TokenHistory::TokenHistory(int vocab) : entries_(static_cast<size_t>(std::max(vocab, 0))) {}

void TokenHistory::clear() {
  for (int32_t t : tokens_) entries_[t] = Entry();
  tokens_.clear();
}

void TokenHistory::reserve(size_t tokens) { tokens_.reserve(std::min(tokens, entries_.size())); }

TokenHistory::Entry* TokenHistory::entry(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= entries_.size()) return nullptr;
  Entry& e = entries_[token];
  if (!e.listed) {
    e.listed = 1;
    tokens_.push_back(token);
  }
  return &e;
}

void TokenHistory::add_prompt(std::span<const int32_t> tokens) {
  for (int32_t t : tokens) {
    if (Entry* e = entry(t)) e->in_prompt = 1;
  }
}

void TokenHistory::add_output(int32_t token) {
  if (Entry* e = entry(token)) ++e->count;
}

void TokenHistory::pop_output(int32_t token) {
  Entry* e = entry(token);
  if (e != nullptr && e->count > 0) --e->count;
}

Sampler::Sampler(int vocab, const SamplerKernels& kernels)
    : kernels_(kernels),
      x_(vocab),
      z_(vocab),
      rough_e_(vocab),
      e_(vocab),
      kept_(vocab),
      found_(vocab),
      buckets_(vocab),
      words_(kBlock),
      bucket_mass_(kBuckets),
      bucket_count_(kBuckets) {}

int32_t Sampler::likeliest(std::span<const float> logits) {
  constexpr size_t kPart = 1024;  // only the part with the largest is looked at twice
  const SamplerKernels& k = sampler_kernels();
  float best = kMinusInfinity;
  size_t first = 0;
  for (size_t at = 0; at < logits.size(); at += kPart) {
    const float x = k.largest(logits.data() + at, std::min(kPart, logits.size() - at));
    if (x > best) {
      best = x;
      first = at;
    }
  }
  if (!std::isfinite(best)) return -1;
  return static_cast<int32_t>(first + k.find(logits.data() + first, logits.size() - first, best));
}

float Sampler::certainty(std::span<const float> logits) {
  constexpr float kFar = 6;        // of others' logits below the largest: they hardly count
  constexpr size_t kEnough = 64;  // of so many the rest is like them
  if (logits.size() != found_.size()) return 0;
  const float max = kernels_.largest(logits.data(), logits.size());
  if (!std::isfinite(max)) return 0;
  const size_t near = kernels_.above(logits.data(), logits.size(), max - kFar, found_.data()),
               some = std::min(near, kEnough);
  float sum = 0;
  for (size_t i = 0; i < some; ++i) sum += std::exp(logits[static_cast<size_t>(found_[i])] - max);
  return std::min(1.0f, static_cast<float>(some) / (static_cast<float>(near) * sum));
}

int32_t Sampler::sample(const SampleRow& row) {
  kept_count_ = 0;
  if (row.logits.size() != x_.size()) return -1;
  const SamplingParams& params = *row.params;
  const float max = process(row);
  if (!std::isfinite(max)) return -1;
  const auto top = [&] { return static_cast<int32_t>(kernels_.find(x_.data(), x_.size(), max)); };
  if (params.greedy()) {
    kept_[0] = top();
    kept_count_ = 1;
    return kept_[0];
  }
  kernels_.scale(x_.data(), max, 1.0f / static_cast<float>(params.temperature), z_.data(), x_.size());
  if (params.top_p >= 1.0 && params.top_k <= 0 && params.min_p <= 0.0) return draw_from_all(row.place, top());
  keep(params);
  return draw_from_kept(row.place);
}

float Sampler::process(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  max_ = kernels_.clean(row.logits.data(), x_.data(), x_.size());
  max_gone_ = false;
  for (const LogitBias& b : params.logit_bias) {
    if (b.token >= 0 && static_cast<size_t>(b.token) < x_.size()) set(b.token, x_[b.token] + b.bias);
  }
  if (params.has_penalties() && row.history != nullptr) penalise(params, *row.history);
  if (!row.allowed.empty()) {
    kernels_.mask(x_.data(), row.allowed.data(), row.allowed.size(), x_.size());
    max_gone_ = true;
  }
  for (int32_t t : row.forbidden) {
    if (t >= 0 && static_cast<size_t>(t) < x_.size()) set(t, kMinusInfinity);
  }
  return max_gone_ ? kernels_.largest(x_.data(), x_.size()) : max_;
}

void Sampler::set(int32_t token, float x) {
  max_gone_ |= x_[token] == max_;
  max_ = std::max(max_, x);  // not by NaN
  x_[token] = x;
}

void Sampler::penalise(const SamplingParams& params, const TokenHistory& history) {
  const bool repetition = params.repetition_penalty != 1.0f;  // a division by 1 changes nothing
  for (int32_t t : history.tokens()) {
    const uint32_t count = history.output_count(t);
    if (count == 0 && !history.in_prompt(t)) continue;
    float x = x_[t];
    if (repetition) x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (count > 0) {
      const float frequency = params.frequency_penalty * static_cast<float>(count);
      x = (x - frequency) - params.presence_penalty;
    }
    set(t, x);
  }
}

// A good first score lets nearly all other tokens be passed over without their logarithms.
int32_t Sampler::draw_from_all(const NoisePlace& place, int32_t top) {
  Best best;
  kernels_.noise(place, &top, 1, words_.data());
  best.offer(top, z_[top], words_[0]);
  uint16_t at[kBlock];
  for (size_t begin = 0; begin < z_.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, z_.size() - begin);
    kernels_.noise_run(place, static_cast<uint32_t>(begin), kBlock / 4, words_.data());
    const size_t count = kernels_.contenders(z_.data() + begin, words_.data(), n, best.score, at);
    for (size_t i = 0; i < count; ++i) {
      const size_t t = begin + at[i];
      if (x_[t] > kMinusInfinity) best.offer(static_cast<int32_t>(t), z_[t], words_[at[i]]);
    }
  }
  return best.token;
}

int32_t Sampler::draw_from_kept(const NoisePlace& place) {
  Best best;
  const int32_t top = *std::max_element(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(kept_count_),
                                        [this](int32_t a, int32_t b) { return z_[a] < z_[b]; });
  kernels_.noise(place, &top, 1, words_.data());
  best.offer(top, z_[top], words_[0]);
  uint16_t at[kBlock];
  float z[kBlock];
  for (size_t begin = 0; begin < kept_count_; begin += kBlock) {
    const size_t n = std::min(kBlock, kept_count_ - begin);
    const int32_t* ids = kept_.data() + begin;
    for (size_t i = 0; i < n; ++i) z[i] = z_[ids[i]];
    kernels_.noise(place, ids, n, words_.data());
    const size_t count = kernels_.contenders(z, words_.data(), n, best.score, at);
    for (size_t i = 0; i < count; ++i) best.offer(ids[at[i]], z[at[i]], words_[at[i]]);
  }
  return best.token;
}

// Step 7 without sorting all. The kept tokens are a prefix of the order, so that those above a cut are enough once a
// limit falls among them. Where the prefix ends is mostly clear from rough exponentials; where it is not, the exact
// ones decide.
void Sampler::keep(const SamplingParams& params) {
  rough_ = params.top_p < 1.0 || params.min_p > 0.0;
  exact_ = false;
  if (rough_) {
    sum_ = kernels_.rough_exps(z_.data(), rough_e_.data(), z_.size());
    rough_factor_ = 0x1p31 / sum_;
    if (try_cuts(params)) return;
    rough_ = false;
    sum_ = kernels_.exps(z_.data(), e_.data(), z_.size());
  }
  try_cuts(params);
}

// False: rough values cannot tell.
bool Sampler::try_cuts(const SamplingParams& params) {
  for (size_t i = first_cut_; i < std::size(kCuts); ++i) {
    const float cut = kCuts[i];
    const bool all = cut == kMinusInfinity;  // by x: a very small temperature makes a z of -inf of it
    const size_t found = kernels_.above(all ? x_.data() : z_.data(), x_.size(), cut, found_.data());
    if (!all && !may_hold_border(params, found, cut)) continue;
    const Border border = keep_of(params, std::span<const int32_t>(found_).first(found), all);
    if (border == Border::kElsewhere) continue;
    // Few of the candidates were needed: a higher cut may do next time.
    first_cut_ = i > 0 && kept_count_ < found / 4 ? i - 1 : i;
    return border == Border::kHere;
  }
  return true;
}

// Whether a limit probably falls among the `found` tokens above the cut; keep_of() decides.
bool Sampler::may_hold_border(const SamplingParams& params, size_t found, float cut) const {
  if (params.top_k > 0 && found >= static_cast<size_t>(params.top_k)) return true;
  if (params.min_p > 0 && cut < std::log(params.min_p) - 0.01) return true;
  if (params.top_p >= 1.0) return false;
  double mass[4] = {};
  for (size_t i = 0; i < found; ++i) mass[i % 4] += e_of(found_[i]);
  return (mass[0] + mass[1]) + (mass[2] + mass[3]) > params.top_p * sum_;
}

// Step 6 asks for the sum of e in the order of ids, a long chain of additions. A sum in another order is so near that
// it nearly always gives the same mass; where a border between two masses is nearer, the chain is run.
uint64_t Sampler::mass_of(int32_t t) {
  if (rough_) return static_cast<uint64_t>(static_cast<int64_t>(static_cast<double>(rough_e_[t]) * rough_factor_));
  const double v = e_[t] / sum_ * 0x1p31;
  const auto mass = static_cast<int64_t>(v);
  if (exact_) return static_cast<uint64_t>(mass);
  const double below = v - static_cast<double>(mass), error = v * (kSumError * static_cast<double>(e_.size() + 8));
  if (v > 0 && (below <= error || 1 - below <= error)) {
    exact_ = true;
    sum_ = 0;
    for (const double e : e_) sum_ += e;
    return mass_of(t);
  }
  return static_cast<uint64_t>(mass);
}

// Keeps among the candidates, which are all tokens above a cut that lies between buckets: whole buckets of z up to the
// border bucket, in which a limit falls, and a part of that one.
Sampler::Border Sampler::keep_of(const SamplingParams& params, std::span<const int32_t> candidates, bool all) {
  const bool by_mass = params.top_p < 1.0, by_exp = by_mass || params.min_p > 0.0;
  const uint64_t limit = by_mass ? static_cast<uint64_t>(std::floor(params.top_p * 0x1p31)) : ~uint64_t{0};
  const uint64_t k = params.top_k > 0 ? static_cast<uint64_t>(params.top_k) : ~uint64_t{0};
  int used = 0;  // buckets
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int b = bucket_of(z_[candidates[i]]);
    buckets_[i] = static_cast<uint16_t>(b);
    used = std::max(used, b + 1);
  }
  std::fill_n(bucket_mass_.begin(), used, 0);
  std::fill_n(bucket_count_.begin(), used, 0);
  bool ends = all;  // min-p ends the prefix among the candidates
  bool unsure = false;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t t = candidates[i];
    const int b = buckets_[i];
    ++bucket_count_[b];
    if (by_mass) bucket_mass_[b] += mass_of(t);
    if (!by_exp) continue;
    ends |= e_of(t) < params.min_p;
    unsure |= rough_ && std::abs(e_of(t) - params.min_p) <= 2 * kRoughError * params.min_p;
  }
  // Rough masses: how far a sum of them may be from the exact sum.
  const auto error = static_cast<uint64_t>(2 * kRoughError * static_cast<double>(limit)) + 2 * candidates.size() + 2;
  const auto near_limit = [&](uint64_t mass) {
    return rough_ && by_mass && mass + error >= limit && mass <= limit + error;
  };
  uint64_t mass = 0, count = 0;  // of the buckets before the border
  int border = 0;
  while (border < used && mass + bucket_mass_[border] <= limit && count + bucket_count_[border] < k) {
    mass += bucket_mass_[border];
    count += bucket_count_[border];
    ++border;
  }
  if (unsure || near_limit(mass)) return Border::kUnsure;
  if (border == used && !ends) return Border::kElsewhere;
  size_t at_border = 0;
  kept_count_ = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t t = candidates[i];
    if (buckets_[i] > border || (by_exp && e_of(t) < params.min_p)) continue;
    if (buckets_[i] < border) kept_[kept_count_++] = t;
    else found_[at_border++] = t;  // at or before candidates[i]
  }
  if (border == used) return Border::kHere;
  const size_t first = kept_count_;
  std::copy_n(found_.begin(), at_border, kept_.begin() + static_cast<ptrdiff_t>(first));
  kept_count_ += at_border;
  const auto order = [this](int32_t a, int32_t b) { return better(a, b); };
  const auto begin = kept_.begin() + static_cast<ptrdiff_t>(first),
             end = kept_.begin() + static_cast<ptrdiff_t>(kept_count_);
  // The masses of tokens that min-p dropped lie behind every kept one, so that they cannot move the top-p limit.
  size_t left = static_cast<size_t>(std::min<uint64_t>(k - count, kept_count_ - first));
  if (left < kept_count_ - first) std::nth_element(begin, begin + static_cast<ptrdiff_t>(left), end, order);
  if (by_mass) {
    std::sort(begin, begin + static_cast<ptrdiff_t>(left), order);
    size_t taken = 0;
    for (; taken < left && mass <= limit; ++taken) {
      mass += mass_of(begin[static_cast<ptrdiff_t>(taken)]);
      if (near_limit(mass)) return Border::kUnsure;
    }
    left = taken;
  }
  kept_count_ = first + left;
  return Border::kHere;
}

std::vector<int32_t> Sampler::kept_best_first() const {
  std::vector<int32_t> kept(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(kept_count_));
  if (kept.empty()) {  // no truncation: every token that is not masked
    for (size_t i = 0; i < x_.size(); ++i) {
      if (x_[i] > kMinusInfinity) kept.push_back(static_cast<int32_t>(i));
    }
  }
  std::sort(kept.begin(), kept.end(), [this](int32_t a, int32_t b) { return better(a, b); });
  return kept;
}

std::vector<uint32_t> Sampler::masses() const {
  std::vector<double> e(z_.size());
  kernels_.exps(z_.data(), e.data(), e.size());
  double sum = 0;
  for (const double v : e) sum += v;
  std::vector<uint32_t> mass(e.size());
  for (size_t i = 0; i < e.size(); ++i) mass[i] = static_cast<uint32_t>(e[i] / sum * 0x1p31);
  return mass;
}

}  // namespace deepinfer::ops
