// The sampler of ops/sampling.h on a CPU: one row of logits in, one token out.
//
//   Sampler sampler(vocab);                      // workspace; nothing is allocated afterwards
//   SampleRow row{.logits = logits, .params = &params, .place = {seed, position, sample}};
//   int32_t token = sampler.sample(row);         // -1: no token is left (all masked, or logits are not finite)
//
// The cost is some passes over the vocabulary on wide vectors (ops/cpu/sampler_kernels.h), with exp of every logit when
// top-p or min-p is on. Logarithms of noise are taken only for tokens that can still win, and only the tokens at the
// border of the kept set are sorted. Every machine gives the same bits. One Sampler per thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/cpu/sampler_kernels.h"
#include "ops/sampling.h"

namespace deepinfer::ops {

// The tokens of one sequence as penalties see them. add_output and pop_output bracket the drafts of a verify row.
class TokenHistory {
 public:
  explicit TokenHistory(int vocab);
  void clear();
  // Room for so many distinct tokens, so that adding them allocates nothing.
  void reserve(size_t tokens);
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
  explicit Sampler(int vocab, const SamplerKernels& kernels = sampler_kernels());
  int32_t sample(const SampleRow& row);
  // What sample() gives for a greedy row without bias, penalties and masks, with a fifth of the work.
  static int32_t likeliest(std::span<const float> logits);
  // About the probability of the likeliest token, without bias, penalties and masks; 0 if logits are not finite.
  float certainty(std::span<const float> logits);

  // What the last call to sample() worked with, for tests and traces.
  std::span<const float> processed() const { return x_; }  // after step 3
  std::span<const float> scaled() const { return z_; }     // z of step 5; stale after a greedy choice
  std::vector<int32_t> kept_best_first() const;            // step 7
  std::vector<uint32_t> masses() const;                    // step 6, [vocab]

 private:
  float process(const SampleRow& row);  // the largest x
  void penalise(const SamplingParams& params, const TokenHistory& history);
  void set(int32_t token, float x);
  int32_t draw_from_all(const NoisePlace& place, int32_t top);
  int32_t draw_from_kept(const NoisePlace& place);
  void keep(const SamplingParams& params);
  bool may_hold_border(const SamplingParams& params, size_t found, float cut) const;
  uint64_t mass_of(int32_t token);
  enum class Border : uint8_t { kHere, kElsewhere, kUnsure };  // kElsewhere: no limit falls among the candidates
  Border keep_of(const SamplingParams& params, std::span<const int32_t> candidates, bool all);
  bool try_cuts(const SamplingParams& params);
  double e_of(int32_t t) const { return rough_ ? static_cast<double>(rough_e_[t]) : e_[t]; }
  bool better(int32_t a, int32_t b) const { return x_[a] != x_[b] ? x_[a] > x_[b] : a < b; }

  static constexpr size_t kBlock = kContendersMax;

  const SamplerKernels& kernels_;
  std::vector<float> x_, z_, rough_e_;
  std::vector<double> e_;
  std::vector<int32_t> kept_;   // unordered but for the border's tokens
  std::vector<int32_t> found_;  // above a cut
  std::vector<uint16_t> buckets_;  // of found_
  std::vector<uint32_t> words_;
  size_t kept_count_ = 0;
  size_t first_cut_ = 0;   // where the last rows' limits were found; changes the work, never the outcome
  float max_ = 0;          // largest x so far,
  bool max_gone_ = false;  // but for a token that had it and has been changed
  std::vector<uint64_t> bucket_mass_;
  std::vector<uint32_t> bucket_count_;
  double sum_ = 0;       // of e_ or rough_e_
  double rough_factor_ = 0;
  bool rough_ = false;   // rough_e_ is what counts
  bool exact_ = false;   // the sum is in the order of ids
};

}  // namespace deepinfer::ops
