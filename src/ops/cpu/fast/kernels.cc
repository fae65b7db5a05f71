#include "ops/cpu/fast/kernels.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/fast/amx.h"
#include "ops/cpu/fast/avx2.h"
#include "ops/cpu/fast/avx512.h"

namespace deepinfer::ops::cpu::fast {

size_t multiply_scratch_bytes(int64_t k) {
  constexpr int64_t kAccumulators = 32 << 10, kScaleRows = 4;
  const int64_t row = packed_columns(k) * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t panel = std::max(kPanelBytes, kBlockRows / 4 * row), streams = kStreamRows * row;
  const int64_t vectors = std::max(panel, streams) + kAccumulators + kScaleRows * packed_columns(k / 32 + 1);
  return amx_kernels() != nullptr ? std::max(vectors, amx_scratch_bytes(k)) : vectors;
}

// A term is rounded to bf16 as a dot product, at each step of its chain and in two sums; the rest is for fp32 sums.
float reach_factor(int64_t heads) {
  double factor = 1 + 0x1p-12;
  for (int64_t i = 0; i < (heads + 3) / 4 + 3; ++i) factor *= 1 + 0x1p-8;
  return static_cast<float>(factor);
}

#if defined(__x86_64__)

namespace {

constexpr const char* kPairs = "fast-bf16-pairs-2";

}  // namespace

const Kernels* avx512_kernels() {
  static const Kernels table = {"avx512",
                                kPairs,
                                avx512::pack,
                                avx512::multiply,
                                avx512::fill_lanes,
                                avx512::outer,
                                avx512::swiglu,
                                avx512::window_words,
                                avx512::entry_words,
                                avx512::softmax,
                                avx512::pair_rows,
                                avx512::divide,
                                avx512::few_heads,
                                avx512::key_panel,
                                avx512::score,
                                avx512::reach,
                                avx512::list_above,
                                avx512::fq4i,
                                avx512::query_codes,
                                avx512::best,
                                avx512::rotate,
                                avx512::engram_sums,
                                avx512::add,
                                avx512::add_gated,
                                avx512::mix_products,
                                avx512::mix_finish,
                                avx512::collapse_norm,
                                avx512::norm,
                                avx512::expand,
                                avx512::mean,
                                avx512::combine};
  static const bool fits = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
  return fits ? &table : nullptr;
}

const Kernels* amx_kernels() {
  static const Kernels* const amx = []() -> const Kernels* {
    if (avx512_kernels() == nullptr || !have_amx()) return nullptr;
    static Kernels table = *avx512_kernels();
    table.isa = "amx";
    table.numeric_class = "fast-bf16-tiles-1";
    table.multiply = amx::multiply;
    return &table;
  }();
  return amx;
}

const Kernels* avx2_kernels() {
  static const Kernels table = {"avx2",
                                kPairs,
                                avx2::pack,
                                avx2::multiply,
                                nullptr,
                                avx2::outer,
                                avx2::swiglu,
                                avx2::window_words,
                                avx2::entry_words,
                                avx2::softmax,
                                avx2::pair_rows,
                                avx2::divide,
                                nullptr,
                                avx2::key_panel,
                                avx2::score,
                                avx2::reach,
                                avx2::list_above,
                                avx2::fq4i,
                                avx2::query_codes,
                                avx2::best,
                                avx2::rotate,
                                avx2::engram_sums,
                                avx2::add,
                                avx2::add_gated,
                                avx2::mix_products,
                                avx2::mix_finish,
                                avx2::collapse_norm,
                                avx2::norm,
                                avx2::expand,
                                avx2::mean,
                                avx2::combine};
  static const bool fits = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return fits ? &table : nullptr;
}

#else

const Kernels* amx_kernels() { return nullptr; }
const Kernels* avx512_kernels() { return nullptr; }
const Kernels* avx2_kernels() { return nullptr; }

#endif

const Kernels* choose_kernels(const char* isa) {
  if (std::strcmp(isa, "amx") == 0) return amx_kernels();
  if (std::strcmp(isa, "avx512") == 0) return avx512_kernels();
  if (std::strcmp(isa, "avx2") == 0) return avx2_kernels();
  if (*isa != '\0') return nullptr;
  for (const Kernels* k : {amx_kernels(), avx512_kernels()}) {
    if (k != nullptr) return k;
  }
  return avx2_kernels();
}

}  // namespace deepinfer::ops::cpu::fast
