// The best keys of one row, of scores that come in ascending order of keys (spec/model.md 8.3; internal to ops/cpu).
//
//   BestKeys best{scores, keys, keep};                  // memory for 2 x keep of each
//   for (int32_t k = 0; k < n; ++k)                     // keys that cannot score above best.above may be left out
//     best.add(kernels, score_of(k), k);
//   // The `keep` best by score, lower key first among equals, are among the best.count first.
#pragma once

#include <cstdint>
#include <limits>

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {

struct BestKeys {
  float* scores = nullptr;  // bf16 values, never NaN
  int32_t* keys = nullptr;
  int64_t keep = 0;
  int32_t count = 0;
  // A later key that scores no more is none of the best. NaN until enough have come.
  float above = std::numeric_limits<float>::quiet_NaN();

  void add(const Kernels& kernels, float score, int32_t key) {
    scores[count] = score;  // without a branch, that would be foretold badly
    keys[count] = key;
    count += !(score <= above);
    if (count == 2 * keep) shrink(kernels);
  }

  // Before the first add(): scores of n of the keys, in any order. What is below `keep` of them cannot be among the
  // best.
  void begin_above(const Kernels& kernels, const float* some, int64_t n);

 private:
  void shrink(const Kernels& kernels);
};

}  // namespace deepinfer::ops::cpu::fast
