// Constants of the Engram hash (spec/model.md 10.3).
//
//   auto primes = engram_primes(2, 3, 8, 16000000);                       // [layer][column]
//   auto multipliers = engram_multipliers(1, 99092, 4);                   // {76632096046245, 4839876093313, ..}
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::checkpoint {

// Primes in order layer, n-gram row, head: each row walks up from `start` - 1 over the primes that no row has used
// before.
std::vector<std::vector<int64_t>> engram_primes(int64_t layers, int64_t ngrams, int64_t heads, int64_t start);

// `count` odd multipliers of a layer. classes must be 1 .. 2^24, so that all products with a class stay below 2^63.
std::vector<int64_t> engram_multipliers(int64_t layer, int64_t classes, int64_t count);

// NumPy's default_rng(seed) for a 32-bit seed: SeedSequence and PCG64 (XSL-RR 128/64).
class NumpyRng {
 public:
  explicit NumpyRng(uint32_t seed);
  uint64_t next();
  uint64_t below(uint64_t bound);  // integers(0, bound), 2^32 < bound

 private:
  unsigned __int128 state_ = 0;
  unsigned __int128 increment_ = 0;
};

}  // namespace deepinfer::checkpoint
