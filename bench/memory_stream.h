// Reading memory as fast as one thread can: the ceiling of whatever streams weights. x86-64 with AVX2.
//
//   for (int turn = 0; turn < 20; ++turn) bench::stream_read(data, bytes, turn);   // time each; take the faster turns
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bench {

// Reads the bytes once, fetching kAhead bytes before them.
template <int kAhead>
[[gnu::target("avx512f")]] void read_512(const std::byte* p, size_t bytes) {
  __m512i sum[4] = {};
  for (size_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (kAhead > 0) __builtin_prefetch(p + i + j * 64 + kAhead);
      sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(p + i + j * 64));
    }
  }
  asm volatile("" ::"m"(sum));
}
template <int kAhead>
[[gnu::target("avx2")]] void read_256(const std::byte* p, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (kAhead > 0 && j % 2 == 0) __builtin_prefetch(p + i + j * 32 + kAhead);
      sum[j] = _mm256_xor_si256(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + j * 32)));
    }
  }
  asm volatile("" ::"m"(sum));
}
template <int kAhead>
void stream_read(const std::byte* p, size_t bytes) {
  __builtin_cpu_supports("avx512f") ? read_512<kAhead>(p, bytes) : read_256<kAhead>(p, bytes);
}

// The ceiling of every decode case: plain reads and reads with prefetches in turns, of which the faster quartile
// counts.
inline void stream_read(const std::byte* p, size_t bytes, int turn) {
  turn % 2 == 0 ? stream_read<0>(p, bytes) : stream_read<4096>(p, bytes);
}

}  // namespace bench
