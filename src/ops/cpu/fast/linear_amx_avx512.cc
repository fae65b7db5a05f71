// Linear layers on the tiles of a processor with AMX.
#include "ops/cpu/fast/amx.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "ops/cpu/fast/amx_lanes_avx512.h"
#include "ops/cpu/fast/linear_amx_avx512.h"

namespace deepinfer::ops::cpu::fast {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Written as assembly: the compiler's names for these instructions want a flag for the whole file.
struct HardwareTiles {
  static void configure(int columns) {
    TileConfig c;
    for (int t = 0; t < 8; ++t) {
      c.rows[t] = kBlock;
      c.column_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * columns);
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
  }
  static void configure_rows(int rows) {
    TileConfig c;
    for (int t = 0; t < 8; ++t) {
      c.rows[t] = static_cast<uint8_t>(t == 4 || t == 5 ? kBlock : rows);
      c.column_bytes[t] = 64;
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
  }
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  static void release() { asm volatile("tilerelease"); }
};

}  // namespace

bool have_amx() {
  constexpr uint32_t kXsave = 1u << 27, kBf16 = 1u << 22, kTile = 1u << 24;
  constexpr uint64_t kTileState = 3u << 17;
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return false;
  // The system gives a process the tiles' registers only if it asks: all its threads, once.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

int64_t amx_scratch_bytes(int64_t k) {
  const int64_t row = packed_columns(k) * static_cast<int64_t>(sizeof(uint16_t)),
                stage = 4 * kBlockWords * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t stream = kBlock * row + stage + kGroupRows * (k / 32 + 1) + 128,
                stored = (kBlock + 1) * row + stage +
                         kGroupRows * loss_columns(k / 32) * static_cast<int64_t>(sizeof(uint32_t));
  return std::max({stream, stored, amx_panels_bytes(k), amx_lanes_bytes(k)});
}

namespace amx {

void multiply(const LinearCall& c, std::byte* scratch) {
  if (!multiply_amx_lanes<HardwareTiles>(c, scratch)) multiply_amx<HardwareTiles>(c, scratch);
}

double run_tiles(int64_t times) {
  HardwareTiles::configure(kBlock);
  HardwareTiles::zero<4>();
  HardwareTiles::zero<6>();
  for (int64_t i = 0; i < times; ++i) {
    HardwareTiles::dot<0, 6, 4>();
    HardwareTiles::dot<1, 6, 4>();
    HardwareTiles::dot<2, 6, 4>();
    HardwareTiles::dot<3, 6, 4>();
  }
  HardwareTiles::release();
  return 4.0 * static_cast<double>(times) * 2 * kBlock * kBlock * kStep;
}

}  // namespace amx
}  // namespace deepinfer::ops::cpu::fast
