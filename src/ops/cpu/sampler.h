// The sampler of ops/sampling.h on a CPU: one row of logits in, one token out.
//
//   Sampler sampler(vocab);                      // workspace; nothing is allocated afterwards
//   SampleRow row{.logits = logits, .params = &params, .place = {seed, position, sample}};
//   int32_t token = sampler.sample(row);         // -1: no token is left (all masked, or logits are not finite)
//
// The cost is one pass over the vocabulary, plus exp of every logit when top-p is on; noise is formed only for tokens
// that can still win, and only the tokens at the border of the kept set are sorted. One Sampler per thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace deepinfer::ops {

// The tokens of one sequence as penalties see them. add_output and pop_output bracket the drafts of a verify row.
class TokenHistory {
 public:
  explicit TokenHistory(int vocab);
  void clear();
  void add_prompt(std::span<const int32_t> tokens);
  void add_output(int32_t token);
  void pop_output(int32_t token);

  // Distinct tokens in order of first use; one that was popped may stay with a count of zero.
  std::span<const int32_t> tokens() const { return tokens_; }
  bool in_prompt(int32_t token) const { return entries_[token].in_prompt; }
  uint32_t output_count(int32_t token) const { return entries_[token].count; }

 private:
  struct Entry {
    uint32_t count : 30 = 0;
    uint32_t in_prompt : 1 = 0;
    uint32_t listed : 1 = 0;
  };
  Entry* entry(int32_t token);

  std::vector<Entry> entries_;
  std::vector<int32_t> tokens_;
};

struct SampleRow {
  std::span<const float> logits;  // [vocab]
  const SamplingParams* params = nullptr;
  NoisePlace place;
  const TokenHistory* history = nullptr;  // needed when params->has_penalties()
  std::span<const uint32_t> allowed;      // bit t % 32 of word t / 32; empty: every token is allowed
  std::span<const int32_t> forbidden;     // ids; those outside the vocabulary are ignored
};

class Sampler {
 public:
  explicit Sampler(int vocab);
  int32_t sample(const SampleRow& row);
  // What sample() gives for a greedy row without bias, penalties and masks, with a third of the work.
  static int32_t likeliest(std::span<const float> logits);

  // What the last call to sample() worked with, for tests and traces.
  std::span<const float> processed() const { return x_; }  // after step 3
  std::span<const float> scaled() const { return z_; }     // z of step 5; stale after a greedy choice
  std::vector<int32_t> kept_best_first() const;            // step 7
  std::vector<uint32_t> masses() const;                    // step 6, [vocab]

 private:
  void process(const SampleRow& row);
  int32_t argmax() const;
  int32_t draw_from_all(const NoisePlace& place) const;
  int32_t draw_from_kept(const NoisePlace& place) const;
  void keep(const SamplingParams& params);
  bool better(int32_t a, int32_t b) const { return x_[a] != x_[b] ? x_[a] > x_[b] : a < b; }

  std::vector<float> x_, z_;
  std::vector<double> e_;
  std::vector<int32_t> kept_;  // unordered but for the border's tokens
  size_t kept_count_ = 0;
  std::vector<uint64_t> bucket_mass_;
  std::vector<uint32_t> bucket_count_;
  double sum_ = 0;
};

}  // namespace deepinfer::ops
