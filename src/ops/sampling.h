// How a token is chosen from a row of logits: the parameters, the noise, and the order of the steps (docs of each step
// below; design section 5.1). Every backend's sampler implements exactly this, so that a choice depends on the row, the
// parameters and (seed, position, sample) only, never on the batch, on speculation or on the machine.
//
//   0  x = fp32 logits of the row.
//   1  bias:        x[t] += bias[t], one fp32 addition.
//   2  penalties:   repetition r, once per distinct token of prompt and output: x > 0 ? x / r : x * r; then per
//   distinct
//                   token of the output, seen n times: x = (x - frequency * n) - presence, each operation rounded to
//                   fp32.
//   3  masks:       x = -inf for forbidden tokens.
//   4  temperature below kGreedyTemperature: the largest x, the lowest id among equals. Done.
//   5  z[i] = fp32(fp32(x[i] - max x) * fp32(1 / fp32(T))).
//   6  e[i] = exp(z[i]) and S = sum of e, in double, ids ascending; mass[i] = floor(e[i] / S * 2^31).
//   7  Order: x descending, equal x by lower id. top-p keeps a token while the mass before it is <= floor(top_p *
//   2^31),
//      top-k keeps the first k, min-p keeps e[i] >= min_p. Each keeps a prefix; the shortest prefix (at least one)
//      stays.
//   8  The kept token with the largest fp32(z[i] + G[i]), the lowest id among equals.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace deepinfer::ops {

inline constexpr double kGreedyTemperature = 1e-5;

struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

// The defaults switch every step off but the draw itself. Values are checked by whoever accepts them from a user.
struct SamplingParams {
  double temperature = 1.0;         // >= 0
  double top_p = 1.0;               // (0, 1]
  int32_t top_k = -1;               // -1: off; else >= 1
  double min_p = 0.0;               // [0, 1]
  float repetition_penalty = 1.0f;  // > 0
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<LogitBias> logit_bias;  // at most one entry per token

  bool greedy() const { return temperature < kGreedyTemperature; }
  bool has_penalties() const {
    return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f;
  }
};

// Where in the noise a draw lies. position is the absolute index of the token being sampled (the prompt's length for
// the first one); sample tells the answers to one prompt apart. The drafter uses the same place as the target.
struct NoisePlace {
  uint64_t seed = 0;
  uint32_t position = 0;
  uint32_t sample = 0;
  uint32_t purpose = 0;  // 0: tokens
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

// The four noise words of tokens 4 * block .. 4 * block + 3.
constexpr std::array<uint32_t, 4> noise_words(const NoisePlace& at, uint32_t block) {
  return philox4x32({block, at.position, at.sample, at.purpose},
                    {static_cast<uint32_t>(at.seed), static_cast<uint32_t>(at.seed >> 32)});
}

constexpr double noise_uniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// G = fp32(-log(-log u)), logs in double; between -3.13 and 22.88.
float gumbel_of_word(uint32_t word);
float gumbel_noise(const NoisePlace& at, int32_t token);

}  // namespace deepinfer::ops
