// Log-probabilities of tokens: the natural log softmax of a row of logits at temperature 1, before bias, penalties
// and masks.
//
//   LogSoftmax row(logits);                    // one pass over the vocabulary
//   double p = row.of(token);
//   row.top(5, &best);                         // likeliest first, equal ones by lower id
//
// The sum of exponentials is taken in double, ids ascending. A token whose logit is -inf or NaN has kLogprobFloor.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace deepinfer::ops {
class Sampler;
}

namespace deepinfer::engine {

inline constexpr double kLogprobFloor = -9999;

struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;
  std::string_view bytes;  // the token's true bytes, perhaps a part of a character; empty without a tokenizer
};

class LogSoftmax {
 public:
  explicit LogSoftmax(std::span<const float> logits);
  double of(int32_t token) const;
  void top(int count, std::vector<TokenLogprob>* out) const;

 private:
  std::span<const float> logits_;
  double log_sum_ = 0;
};

// Of the distribution that the last sample() of `sampler` drew from: of `token`, and of the `count` likeliest. A greedy
// choice has all of the mass.
void processed_logprobs(const ops::Sampler& sampler, bool greedy, int32_t token, int count, TokenLogprob* of,
                        std::vector<TokenLogprob>* top);

}  // namespace deepinfer::engine
