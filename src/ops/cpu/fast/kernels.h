// The inner loops of the fast CPU backend, one table for each instruction set (internal to ops/cpu).
//
//   const Kernels* k = choose_kernels("");                       // the best of this processor; null: none fits
//   const PackedRows packed{words, packed_columns(cols), n};
//   for (int64_t i = 0; i < n; ++i)                              // FQ8, bf16, columns in the order of the weights
//     k->pack(x + i * ldx, cols, order_of(w.format), true, packed.row(i), packed.step(i));
//   k->multiply({.w = &w, .row0 = 0, .rows = 64, .x = packed, .out = y, .ldo = 64, .round = true}, scratch);
//
// The tables of AVX-512 and AVX2 compute the same bits (ORDER.md, "fast"): sums of bf16 pairs as VDPBF16PS defines
// them, that is, two fused multiply-adds, the odd element first. Only numbers below 2^-126 differ: AVX-512 flushes
// them, AVX2 keeps them. AMX sums linear layers in another order and is a numeric class of its own.
//
// Limits: |x| and |w| x scale below 2^60; block scales are held within 2^-60 .. 2^60 so that no exponent wraps.
// The files of a table are compiled for its instruction set. They include nothing with inline functions that other
// files use as well, since the linker keeps one copy of such a function and may keep theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/weights.h"

namespace deepinfer::ops::cpu::fast {

// In which order the columns of 64 lie in a packed row: as the expansion of a format leaves them.
enum class Order : uint8_t {
  kNatural,  // BF16
  kFp8,      // eights: 0 2 4 6 1 3 5 7
  kFp4,      // even columns, then odd ones
};

constexpr Order order_of(WeightFormat f) {
  return f == WeightFormat::kFp4 ? Order::kFp4 : f == WeightFormat::kFp8 ? Order::kFp8 : Order::kNatural;
}

inline constexpr int64_t kChunk = 64;  // columns; packed rows are padded with zeros to a multiple

constexpr int64_t packed_columns(int64_t k) { return (k + kChunk - 1) / kChunk * kChunk; }

inline constexpr int64_t kStreamRows = 8;  // up to so many x rows weights are expanded in registers only
inline constexpr int64_t kTileRows = 6;    // x rows that meet a weight in one go otherwise
inline constexpr int64_t kStep = 32;       // words of a row that lie together

// The input of a linear layer: n rows of bf16 words. Up to kStreamRows they lie one behind the other, ld words apart.
// More are cut into tiles of kTileRows: kStep words of every row of the tile, then the next kStep.
struct PackedRows {
  uint16_t* words = nullptr;
  int64_t ld = 0, n = 0;  // ld: a multiple of kChunk

  bool tiled() const { return n > kStreamRows; }
  int64_t tile_rows(int64_t tile) const { return n - tile * kTileRows < kTileRows ? n - tile * kTileRows : kTileRows; }
  // Where row i begins, and how far its next kStep words are from there.
  uint16_t* row(int64_t i) const {
    return tiled() ? words + i / kTileRows * kTileRows * ld + i % kTileRows * kStep : words + i * ld;
  }
  int64_t step(int64_t i) const { return tiled() ? tile_rows(i / kTileRows) * kStep : kStep; }
};

struct LinearCall {
  const Matrix* w = nullptr;  // BF16, FP8 or FP4
  int64_t row0 = 0, rows = 0;
  PackedRows x;
  float* out = nullptr;  // out[i * ldo + j] = sum of row row0 + j, i < x.n, j < rows
  int64_t ldo = 0;
  bool round = false;               // to bf16
  const std::byte* next = nullptr;  // Matrix::lanes of what this thread multiplies next, if known: fetched meanwhile
};

inline constexpr int64_t kBlockRows = 32;          // weight rows of one unit of work: a row of FP8 scale blocks
inline constexpr int64_t kPanelBytes = 640 << 10;  // expanded weights that stay in a core's second-level cache

// Bytes of scratch memory a call to multiply may use, aligned to 64.
size_t multiply_scratch_bytes(int64_t k);

// Sums over pairs for attention: c[m][lane] = sum over p of a(m, p) . b(p, lane), pairs ascending, from 0.
struct OuterCall {
  const uint32_t* a = nullptr;  // bf16 pairs; a(m, p) = a[m * a_row + p * a_step]
  int64_t a_row = 0, a_step = 0;
  const uint32_t* b = nullptr;  // bf16 pairs; b(p, lane) = b[p * b_step + lane]
  int64_t b_step = 0;
  int64_t m = 0, pairs = 0, lanes = 0;  // lanes: a multiple of 16
  float* c = nullptr;
  int64_t ldc = 0;
};

// Softmax of scores [keys, lanes] over the keys, for each lane.
struct SoftmaxCall {
  const float* scores = nullptr;
  int64_t keys = 0, lanes = 0;  // lanes: a multiple of 16
  float scale = 1;
  const float* sink = nullptr;        // [lanes]
  uint32_t* probabilities = nullptr;  // [ceil(keys / 2), lanes] bf16 pairs; a missing last key is 0
  float* denominators = nullptr;      // [lanes]
};

// Attention of up to kFewHeads heads of one row over keys that are their own values (spec/model.md 6.4): scores,
// softmax and values with the sums of OuterCall and SoftmaxCall.
inline constexpr int64_t kFewHeads = 8;

struct FewHeadsCall {
  const float* q = nullptr;  // [heads, channels]
  int64_t heads = 0, channels = 0;  // channels: a multiple of 32
  const uint16_t* words = nullptr;  // bf16 [keys, channels]
  int64_t keys = 0;                 // at least one
  const float* sink = nullptr;      // [heads]
  float* out = nullptr;             // [heads, channels]
};

// Of the memory of a call, aligned to 64.
constexpr size_t few_heads_bytes(int64_t keys, int64_t channels) {
  const int64_t pairs = (keys + 1) / 2;
  return static_cast<size_t>(channels / 2 * 64 + pairs * (channels * 4 + 64 + kFewHeads * 4));
}

// mHC's fn: column k of row r is data[r * row_ld + k / 8 * step_ld + k % 8]. width: a multiple of 8.
struct MixFn {
  const float* data = nullptr;
  int64_t rows = 0, width = 0, row_ld = 0, step_ld = 0;
};

// The coefficients of mHC from m = fn x (5.3), for four streams.
struct MixCall {
  double* m = nullptr;  // [24], overwritten
  const float *scale = nullptr, *base = nullptr;
  int iterations = 0;
  double eps = 0;
  float *pre = nullptr, *post = nullptr, *comb = nullptr;
};

// Sixteen index keys of one page, as sums of integers want them: codes of e2m1 twice their value.
inline constexpr int64_t kKeyLanes = 16;
inline constexpr int64_t kIndexGroup =
    32;  // channels with one scale; a group holds its even channels, then the odd ones

struct KeyPanel {
  const uint8_t *data = nullptr, *scales = nullptr;  // of the first key
  int64_t data_ld = 0, scale_ld = 0;                 // bytes from key to key
  int64_t keys = 0, channels = 0;                    // keys <= kKeyLanes; missing lanes repeat the last key
  uint8_t* codes = nullptr;                          // [channels / 4, kKeyLanes, 4], 12 + twice the value
  float* factors = nullptr;                          // [channels / 32, kKeyLanes] scale / 4
};

// One row's index queries against a panel: score of 8.2, bf16 at each step.
struct ScoreCall {
  const uint8_t* codes = nullptr;
  const float* key_factors = nullptr;
  int64_t heads = 0, channels = 0;
  const int8_t* query = nullptr;    // [heads, channels] twice the value, in the order of a group
  const float* factors = nullptr;   // [heads, channels / 32] scales
  const int32_t* twelve = nullptr;  // [heads, channels / 32] twelve times the sum of a group's query codes
  const float* weights = nullptr;   // [heads]
  float* scores = nullptr;          // [kKeyLanes]; -inf where it would be NaN
};

// What the keys of some panels score at most. Heads of negative weight only lower a score, and every step of score() is
// monotone, so that the sum of the others is a bound once their weights allow for the rounding to bf16. Below
// kReachLeast a bound says nothing.
inline constexpr int64_t kReachPanels = 4;  // a call's
inline constexpr int64_t kReachKeys = kReachPanels * kKeyLanes;

struct ReachCall {
  const uint8_t* codes = nullptr;      // kReachPanels panels, one behind the other
  const float* key_factors = nullptr;  // the same
  int64_t channels = 0;
  const int8_t* query = nullptr;  // as in ScoreCall
  const float* factors = nullptr;
  const int32_t* twelve = nullptr;
  const int32_t* heads = nullptr;  // those of positive weight
  const float* weights = nullptr;  // theirs, times reach_factor()
  int64_t count = 0;
  float* bounds = nullptr;  // [kReachKeys]
};

inline constexpr float kReachLeast = 0x1p-100f;  // below, scores may lose more than reach_factor() allows for
float reach_factor(int64_t heads);

struct Kernels {
  const char* isa;
  const char* numeric_class;  // Capabilities::numeric_class of the backend that uses the table
  // k columns of one row to bf16 (cut, as x holds bf16 values), quantised by FQ8 first if asked; zeros up to
  // packed_columns(k). Every kStep words lie `step` words behind the ones before.
  void (*pack)(const float* x, int64_t k, Order order, bool quantise, uint16_t* out, int64_t step);
  void (*multiply)(const LinearCall& call, std::byte* scratch);
  // Makes Matrix::lanes of lanes.h at `out`, aligned to 64. Null where the table makes no use of it.
  void (*fill_lanes)(const Matrix& w, std::byte* out);
  void (*outer)(const OuterCall& call);
  // out = bf16(silu(min(gate, limit)) * clamp(up, -limit, limit) * weight), n channels.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float limit, float weight, float* out);

  // Cache records of d channels (16.1) as bf16 words in their natural order; d is a multiple of 32.
  void (*window_words)(const uint8_t* record, int64_t d, uint16_t* out);
  void (*entry_words)(const uint8_t* record, int64_t d, uint16_t* out);
  void (*softmax)(const SoftmaxCall& call);
  // out[t][c] = pair (v[2t][c], v[2t + 1][c]) of `keys` rows of 32 or 64 channels, ldv words apart; a missing row is 0.
  void (*pair_rows)(const uint16_t* v, int64_t ldv, int64_t keys, int64_t channels, uint32_t* out);
  // x[i] = bf16(x[i] / by).
  void (*divide)(float* x, int64_t n, float by);
  void (*few_heads)(const FewHeadsCall& call, std::byte* memory);  // null where the table has none

  void (*key_panel)(const KeyPanel& call);
  void (*score)(const ScoreCall& call);
  void (*reach)(const ReachCall& call);
  // Ascending those of 0 .. n - 1 whose x is not <= least (a NaN is not), and how many; out: kKeyLanes more than them.
  int64_t (*list_above)(const float* x, int64_t n, float least, int32_t* out);
  // Index queries of whole groups: held to FQ4I (8.2), and those as the codes, scales and sums of a ScoreCall.
  void (*fq4i)(float* query, int64_t groups);
  void (*query_codes)(const float* query, int64_t groups, int8_t* codes, float* factors, int32_t* twelve);
  // The `keep` best of n scores, as Backend::best_entries; of others than bf16 values their upper halves are compared.
  void (*best)(const float* scores, int64_t n, int64_t keep, int32_t* out);

  // RoPE (spec/model.md 4.5) on the last 2 x half channels of n heads of d channels; half: a multiple of 8.
  void (*rotate)(float* x, int64_t n, int64_t d, const float* cos, const float* sin, int64_t half, bool inverse);
  // out = sum of x * qk * k, of x * x and of k * k over n channels, in double as Engram's dot (ORDER.md).
  void (*engram_sums)(const float* x, const float* k, const double* qk, int64_t n, double* out);
  // x = v + x.
  void (*add)(float* x, const float* v, int64_t n);
  // x = bf16(x + gate * v).
  void (*add_gated)(float* x, const float* v, float gate, int64_t n);

  // n rows of x, one behind the other: out[i][j] = fn row j . x row i for j < rows, out[i][rows] = x . x; in double.
  void (*mix_products)(const MixFn& fn, const float* x, int64_t n, double* out);
  // n calls of the same iterations and eps.
  void (*mix_finish)(const MixCall* calls, int64_t n);
  // y = bf16(sum over s of pre[s] x[s * n + i]), then out = norm(y) with weights w; y and out may be the same.
  void (*collapse_norm)(const float* x, const float* pre, int64_t streams, int64_t n, const float* w, float eps,
                        float* y, float* out);
  // out = bf16(w * x / rms(x)); x and out may be the same.
  void (*norm)(const float* x, const float* w, int64_t n, float eps, float* out);
  // x[k] = bf16(post[k] y + sum over j of comb[j * streams + k] x[j]), streams of n channels, at most 8.
  void (*expand)(float* x, const float* y, const float* post, const float* comb, int64_t streams, int64_t n);
  // out = bf16(the streams of n channels, summed in order from 0, by their number).
  void (*mean)(const float* x, int64_t streams, int64_t n, float* out);
  // out = bf16(shared + the k rows of routed, in order).
  void (*combine)(const float* shared, const float* routed, int64_t k, int64_t n, float* out);
};

const Kernels* amx_kernels();     // null where avx512_kernels() is, and without AMX or the system's leave to use it
const Kernels* avx512_kernels();  // null where the build or the processor lacks F, BW, VL, DQ, VBMI or BF16
const Kernels* avx2_kernels();    // null without AVX2 and FMA

// "amx", "avx512", "avx2", or "" for the best; null if this processor lacks it.
const Kernels* choose_kernels(const char* isa);

}  // namespace deepinfer::ops::cpu::fast
