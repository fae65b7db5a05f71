#include "tests/unit/ops/emulated_tiles.h"

#include <cmath>

#include "ops/cpu/fast/amx_lanes_avx512.h"
#include "ops/cpu/fast/linear_amx_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

// As a tile unit does: what is below the least normal number counts as zero.
float flushed(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }

float number(uint16_t word) {
  const uint32_t b = static_cast<uint32_t>(word) << 16;
  float v;
  std::memcpy(&v, &b, sizeof v);
  return flushed(v);
}

struct EmulatedTiles {
  static constexpr int kLine = 64;
  static thread_local uint8_t tile[8][16][kLine];
  static thread_local int columns, rows;

  static int line_bytes(int t) { return t == 4 || t == 5 ? kLine : 4 * columns; }
  static int lines(int t) { return t == 4 || t == 5 ? 16 : rows; }
  static void configure(int n) { configure(n, 16); }
  static void configure_rows(int n) { configure(16, n); }
  static void configure(int n, int m) {
    columns = n;
    rows = m;
    std::memset(tile, 0xff, sizeof tile);  // NaN
  }
  static void release() {}
  template <int T>
  static void zero() {
    std::memset(tile[T], 0, sizeof tile[T]);
  }
  template <int T>
  static void load(const void* from, int64_t stride) {
    for (int r = 0; r < lines(T); ++r)
      std::memcpy(tile[T][r], static_cast<const uint8_t*>(from) + r * stride, line_bytes(T));
  }
  template <int T>
  static void store(void* to, int64_t stride) {
    for (int r = 0; r < lines(T); ++r) std::memcpy(static_cast<uint8_t*>(to) + r * stride, tile[T][r], line_bytes(T));
  }
  template <int C, int A, int B>
  static void dot() {
    const auto word = [](int t, int row, int at) {
      uint16_t w;
      std::memcpy(&w, tile[t][row] + 2 * at, sizeof w);
      return number(w);
    };
    for (int m = 0; m < lines(C); ++m) {
      for (int n = 0; n < columns; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < 16; ++k) {
          even = flushed(std::fma(word(A, m, 2 * k), word(B, k, 2 * n), even));
          odd = flushed(std::fma(word(A, m, 2 * k + 1), word(B, k, 2 * n + 1), odd));
        }
        float sum;
        std::memcpy(&sum, tile[C][m] + 4 * n, sizeof sum);
        sum = flushed(sum + flushed(even + odd));
        std::memcpy(tile[C][m] + 4 * n, &sum, sizeof sum);
      }
    }
  }
};

thread_local uint8_t EmulatedTiles::tile[8][16][EmulatedTiles::kLine];
thread_local int EmulatedTiles::columns, EmulatedTiles::rows;

}  // namespace

void multiply_emulated(const LinearCall& call, std::byte* scratch) {
  if (!multiply_amx_lanes<EmulatedTiles>(call, scratch)) multiply_amx<EmulatedTiles>(call, scratch);
}

}  // namespace deepinfer::ops::cpu::fast
