#include <immintrin.h>

#include "kv/checksum.h"
#include "kv/checksum_copy.h"

namespace deepinfer::kv {
namespace {

__m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

struct Lanes {
  __m256i low, high;

  static Lanes start(const uint64_t* sums) { return {load(sums), load(sums + 4)}; }
  void store(uint64_t* sums) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 4), high);
  }
  static __m256i added(__m256i sum, __m256i data, __m256i secret) {
    const __m256i keyed = _mm256_xor_si256(data, secret);
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(product, _mm256_add_epi64(sum, swapped));
  }
  void step(const unsigned char* from, unsigned char* to, const unsigned char* secret) {
    const __m256i a = load(from), b = load(from + 32);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), b);
    low = added(low, a, load(secret));
    high = added(high, b, load(secret + 32));
  }
  static __m256i scrambled(__m256i sum, __m256i secret) {
    const __m256i prime = _mm256_set1_epi32(static_cast<int>(XXH_PRIME32_1));
    const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), secret);
    const __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(upper, 32));
  }
  void scramble(const unsigned char* secret) {
    low = scrambled(low, load(secret));
    high = scrambled(high, load(secret + 32));
  }
};

}  // namespace

uint64_t checksum_avx2(const void* bytes, size_t count) { return XXH3_64bits(bytes, count); }

uint64_t copy_checksum_avx2(const void* from, void* to, size_t count) { return copy_checksum<Lanes>(from, to, count); }

}  // namespace deepinfer::kv
