#include "ops/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace deepinfer::ops {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// z falls into buckets of width 1/64; a power of two keeps the bucket number monotone in z. The last bucket holds the
// rest, whose masses are all zero (exp(-32) * 2^31 < 1).
constexpr int kBucketsPerUnit = 64;
constexpr int kBuckets = 32 * kBucketsPerUnit + 1;
constexpr float kNoiseMax = 22.9f;  // above G of every word

int bucket_of(float z) {
  const float b = -z * kBucketsPerUnit;
  return b < kBuckets - 1 ? static_cast<int>(b) : kBuckets - 1;
}

// exp for arguments <= 0, zero below -700. Own code because it vectorises and gives the same bits with every C library:
// x = n ln2 + r, |r| <= ln2 / 2, Taylor polynomial of degree 13 (remainder < 1e-17), then 2^n put into the exponent.
[[gnu::always_inline]] inline double exp_nonpositive(double x) {
  constexpr double kShift = 0x1.8p52;
  const double clamped = x < -700.0 ? -700.0 : x;
  const double shifted = clamped * 0x1.71547652b82fep0 + kShift;
  const double n = shifted - kShift;
  const double r = (clamped - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r;
  const uint64_t exponent = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  const double e = (1.0 + p) * std::bit_cast<double>(exponent);
  return x < -700.0 ? 0.0 : e;
}

// e = exp(z), on the widest vectors there are: without contraction the bits are the same on all.
[[gnu::always_inline]] inline void exps_of(const float* z, double* e, size_t n) {
  for (size_t i = 0; i < n; ++i) e[i] = exp_nonpositive(z[i]);
}
void exps_plain(const float* z, double* e, size_t n) { exps_of(z, e, n); }
[[gnu::target("avx2"), gnu::optimize("O3")]] void exps_avx2(const float* z, double* e, size_t n) { exps_of(z, e, n); }

void (*const kExps)(const float*, double*, size_t) = __builtin_cpu_supports("avx2") ? exps_avx2 : exps_plain;

float largest(std::span<const float> x) {
  float lane[8];
  std::fill(lane, lane + 8, kMinusInfinity);
  size_t i = 0;
  for (; i + 8 <= x.size(); i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  }
  for (; i < x.size(); ++i) lane[0] = std::max(lane[0], x[i]);
  return *std::max_element(lane, lane + 8);
}

// At least G of the word, without a logarithm: -log u >= 1 - u, and 1 - u > (~word) * 2^-32.
float noise_bound(uint32_t word) {
  const int bits = std::bit_width(~word);
  return bits == 0 ? kNoiseMax : static_cast<float>(33 - bits) * 0.69315f;
}

struct Best {
  int32_t token = -1;
  float score = kMinusInfinity;

  void offer(int32_t t, float z, uint32_t word) {
    if (z + noise_bound(word) < score) return;
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

Sampler::Sampler(int vocab)
    : x_(vocab), z_(vocab), e_(vocab), kept_(vocab), bucket_mass_(kBuckets), bucket_count_(kBuckets) {}

int32_t Sampler::likeliest(std::span<const float> logits) {
  const float best = largest(logits);  // NaN is never larger
  if (!std::isfinite(best)) return -1;
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
}

int32_t Sampler::sample(const SampleRow& row) {
  kept_count_ = 0;
  if (row.logits.size() != x_.size()) return -1;
  const SamplingParams& params = *row.params;
  process(row);
  const float max = largest(x_);
  if (!std::isfinite(max)) return -1;
  if (params.greedy()) {
    kept_[0] = argmax();
    kept_count_ = 1;
    return kept_[0];
  }
  const float scale = 1.0f / static_cast<float>(params.temperature);
  for (size_t i = 0; i < x_.size(); ++i) z_[i] = (x_[i] - max) * scale;
  if (params.top_p >= 1.0 && params.top_k <= 0 && params.min_p <= 0.0) return draw_from_all(row.place);
  keep(params);
  return draw_from_kept(row.place);
}

void Sampler::process(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  for (size_t i = 0; i < x_.size(); ++i) x_[i] = row.logits[i] == row.logits[i] ? row.logits[i] : kMinusInfinity;
  for (const LogitBias& b : params.logit_bias) {
    if (b.token >= 0 && static_cast<size_t>(b.token) < x_.size()) x_[b.token] += b.bias;
  }
  if (params.has_penalties() && row.history != nullptr) {
    for (int32_t t : row.history->tokens()) {
      const uint32_t count = row.history->output_count(t);
      if (count == 0 && !row.history->in_prompt(t)) continue;
      float x = x_[t];
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
      if (count > 0) {
        const float frequency = params.frequency_penalty * static_cast<float>(count);
        x = (x - frequency) - params.presence_penalty;
      }
      x_[t] = x;
    }
  }
  if (!row.allowed.empty()) {
    for (size_t i = 0; i < x_.size(); ++i) {
      const bool in = i / 32 < row.allowed.size() && (row.allowed[i / 32] >> (i % 32) & 1);
      x_[i] = in ? x_[i] : kMinusInfinity;
    }
  }
  for (int32_t t : row.forbidden) {
    if (t >= 0 && static_cast<size_t>(t) < x_.size()) x_[t] = kMinusInfinity;
  }
}

int32_t Sampler::argmax() const {
  const float max = largest(x_);
  return static_cast<int32_t>(std::find(x_.begin(), x_.end(), max) - x_.begin());
}

int32_t Sampler::draw_from_all(const NoisePlace& place) const {
  Best best;
  const int32_t top = argmax();  // a good first score lets nearly all other tokens be passed over
  best.offer(top, z_[top], noise_words(place, static_cast<uint32_t>(top) / 4)[top % 4]);
  for (size_t begin = 0; begin < z_.size(); begin += 4) {
    const size_t end = std::min(begin + 4, z_.size());
    float z = kMinusInfinity;
    for (size_t i = begin; i < end; ++i) z = std::max(z, z_[i]);
    if (z + kNoiseMax < best.score) continue;
    const auto words = noise_words(place, static_cast<uint32_t>(begin / 4));
    for (size_t i = begin; i < end; ++i) {
      if (z_[i] > kMinusInfinity) best.offer(static_cast<int32_t>(i), z_[i], words[i - begin]);
    }
  }
  return best.token;
}

// Step 7 without sorting: whole buckets of z are kept up to the border bucket, in which the limit falls.
void Sampler::keep(const SamplingParams& params) {
  const bool by_mass = params.top_p < 1.0, by_exp = by_mass || params.min_p > 0.0;
  const uint64_t limit = by_mass ? static_cast<uint64_t>(std::floor(params.top_p * 0x1p31)) : ~uint64_t{0};
  const uint64_t k = params.top_k > 0 ? static_cast<uint64_t>(params.top_k) : ~uint64_t{0};
  const size_t n = x_.size();
  sum_ = 0;
  if (by_exp) {
    kExps(z_.data(), e_.data(), n);
    for (size_t i = 0; i < n; ++i) sum_ += e_[i];
  }
  std::fill(bucket_mass_.begin(), bucket_mass_.end(), 0);
  std::fill(bucket_count_.begin(), bucket_count_.end(), 0);
  for (size_t i = 0; i < n; ++i) {
    if (x_[i] == kMinusInfinity) continue;
    const int b = bucket_of(z_[i]);
    ++bucket_count_[b];
    if (by_mass) bucket_mass_[b] += static_cast<uint64_t>(e_[i] / sum_ * 0x1p31);
  }
  uint64_t mass = 0, count = 0;  // of the buckets before the border
  int border = 0;
  while (border < kBuckets && mass + bucket_mass_[border] <= limit && count + bucket_count_[border] < k) {
    mass += bucket_mass_[border];
    count += bucket_count_[border];
    ++border;
  }
  const auto gather = [&](auto&& want) {
    for (size_t i = 0; i < n; ++i) {
      if (x_[i] > kMinusInfinity && want(bucket_of(z_[i])) && !(by_exp && e_[i] < params.min_p)) {
        kept_[kept_count_++] = static_cast<int32_t>(i);
      }
    }
  };
  gather([&](int b) { return b < border; });
  if (border == kBuckets) return;
  const size_t first = kept_count_;
  gather([&](int b) { return b == border; });
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
      mass += static_cast<uint64_t>(e_[begin[static_cast<ptrdiff_t>(taken)]] / sum_ * 0x1p31);
    }
    left = taken;
  }
  kept_count_ = first + left;
}

int32_t Sampler::draw_from_kept(const NoisePlace& place) const {
  Best best;
  for (size_t i = 0; i < kept_count_; ++i) {
    const int32_t t = kept_[i];
    if (z_[t] + kNoiseMax < best.score) continue;
    best.offer(t, z_[t], noise_words(place, static_cast<uint32_t>(t) / 4)[t % 4]);
  }
  return best.token;
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
  double sum = 0;
  for (size_t i = 0; i < e.size(); ++i) sum += e[i] = exp_nonpositive(z_[i]);
  std::vector<uint32_t> mass(e.size());
  for (size_t i = 0; i < e.size(); ++i) mass[i] = static_cast<uint32_t>(e[i] / sum * 0x1p31);
  return mass;
}

}  // namespace deepinfer::ops
