#include <immintrin.h>

#include "kv/checksum.h"
#include "kv/checksum_copy.h"

namespace deepinfer::kv {
namespace {

struct Lanes {
  __m512i sum;

  static Lanes start(const uint64_t* sums) { return {_mm512_loadu_si512(sums)}; }
  void store(uint64_t* sums) const { _mm512_storeu_si512(sums, sum); }
  void step(const unsigned char* from, unsigned char* to, const unsigned char* secret) {
    const __m512i data = _mm512_loadu_si512(from);
    _mm512_storeu_si512(to, data);
    const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(secret));
    const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
    const __m512i swapped = _mm512_shuffle_epi32(data, _MM_PERM_BADC);
    sum = _mm512_add_epi64(product, _mm512_add_epi64(sum, swapped));
  }
  void scramble(const unsigned char* secret) {
    const __m512i prime = _mm512_set1_epi32(static_cast<int>(XXH_PRIME32_1));
    const __m512i mixed =
        _mm512_xor_si512(_mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47)), _mm512_loadu_si512(secret));
    const __m512i upper = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    sum = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(upper, 32));
  }
};

}  // namespace

uint64_t checksum_avx512(const void* bytes, size_t count) { return XXH3_64bits(bytes, count); }

uint64_t copy_checksum_avx512(const void* from, void* to, size_t count) {
  return copy_checksum<Lanes>(from, to, count);
}

}  // namespace deepinfer::kv
