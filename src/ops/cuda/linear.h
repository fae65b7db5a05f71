// Linear layers on Hopper: y = x W^T for weights in their published formats, one summation tree from 1 row to
// thousands.
//
//   const Packing packing = packing_of(WeightFormat::kFp8, rows);
//   // once per input, shared by all consumers of the format
//   pack_activations(x, rows, k, packing, nullptr, packed, stream);
//   linear({wq_a.data, wq_a.scale, n, k, WeightFormat::kFp8}, packed, rows, {y, Output::kBf16}, stream);
//
// Activations are bf16 values, after FQ8 where the weight is FP8 or FP4 (exact in bf16, spec 4.4). Weights are expanded
// to bf16 with their scale folded in, which is exact too: every product is exact and only the sums round (tensor cores,
// fp32). The tree is in ORDER.md.
//
// Limits: k a multiple of 128 (smaller models are padded with zero columns when loaded); scales at most 2^7 (FP8) or
// 2^1 (FP4), no NaN codes: checked when weights are loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "ops/weights.h"

namespace deepinfer::ops::cuda {

inline constexpr int kChunk = 128;  // columns of K that are handled together

enum class Output : int { kBf16, kFp32 };

// Up to kStreamRows rows weights are the traffic: they stream through registers. Beyond, tiles share what they load.
inline constexpr int kStreamRows = 16;

inline constexpr int kPackedRows = 128;  // rows that lie together in packed activations

// How activations lie in memory: K in chunks of 128, columns in the order of the weight format (weights.cuh).
struct Packing {
  WeightFormat format;
  // rows of 2 x (k up to a multiple of 128) bytes; else [128 rows][half chunk][16 groups][8 cores][8 rows][16 bytes]
  bool stream;
  bool quantise = true;  // FQ8 for FP8 and FP4 weights; false: the values as they are (wo_a, spec 4.5)
};
constexpr Packing packing_of(WeightFormat format, int rows) { return {format, rows <= kStreamRows}; }

// FP8 and bf16: row-major [n][k], FP8 after arrange_fp8() and with ue8m0 scales [n/32][k/32]. FP4: codes and scales
// together as arrange_fp4() lays them, no `scales`. Codes take less than 4 GiB. For groups: `codes_stride` and
// `scales_stride` are bytes between experts.
struct LinearWeights {
  const void* codes;
  const uint8_t* scales;
  int n, k;
  WeightFormat format;
  int64_t codes_stride = 0;
  int64_t scales_stride = 0;
};

// Row-major [rows][n] with `stride` elements between rows (0: n).
struct LinearOutput {
  void* data;
  Output type;
  int64_t stride = 0;
};

// One tile of a grouped layer: packed rows first_row .. first_row + rows - 1 (first_row a multiple of 8) belong to
// `expert`.
struct GroupTile {
  int expert, first_row, rows;
};

// FP8 weights as the kernels read them, in place: `bytes` of codes, a multiple of 4 and 4-byte aligned. Once.
void arrange_fp8(void* codes, size_t bytes, cudaStream_t stream);

// FP4 weights in the order in which the kernels read them, from row-major codes (two a byte, low nibble first) and
// scales [n][k/32]. All in device memory; out: arranged_fp4_bytes(n, k), 16-byte aligned.
size_t arranged_fp4_bytes(int n, int k);
void arrange_fp4(const void* codes, const uint8_t* scales, int n, int k, void* out, cudaStream_t stream);

// Bytes of the packed form.
size_t packed_bytes(int64_t rows, int k);

// x: bf16 [rows][k] -> packed, zeros up to a multiple of 128 columns; FQ8 unless the format is bf16. source_row
// (optional, device): packed row i is x row source_row[i]; -1 gives zeros. x_stride: elements between rows of x (0: k).
// k is a multiple of 4. groups: that many inputs, x_between elements apart, each from a packed row that is a multiple
// of 8 on: group_rows(rows) apart.
void pack_activations(const void* x, int64_t rows, int k, Packing packing, const int32_t* source_row, void* packed,
                      cudaStream_t stream, int64_t x_stride = 0, int groups = 1, int64_t x_between = 0);
constexpr int group_rows(int64_t rows) { return static_cast<int>((rows + 7) / 8 * 8); }

// packed: by packing_of(w.format, rows).
void linear(const LinearWeights& w, const void* packed, int rows, const LinearOutput& y, cudaStream_t stream);

// `count` matrices of one shape in one launch (strides in w): matrix i multiplies the packed rows from i * packed_rows
// on (a multiple of 8, or 0: all take the same rows) and writes from element i * y_between of y on.
void linear_batched(const LinearWeights& w, int count, const void* packed, int rows, int packed_rows,
                    const LinearOutput& y, int64_t y_between, cudaStream_t stream);

// Grouped: tiles (device memory, at most max_tiles, *tile_count used) of at most rows_per_tile rows: 8, 16, 32, 64 or
// 128. packed: by packing_of(w.format, rows_per_tile). x_rows (device; FP4 and at most kStreamRows a tile): packed row
// i is row x_rows[i] of `packed`. Packed row i goes to output row y_rows[i] (device; -1: nowhere), or to row i.
void linear_grouped(const LinearWeights& w, const void* packed, const GroupTile* tiles, const int32_t* tile_count,
                    int max_tiles, int rows_per_tile, const LinearOutput& y, cudaStream_t stream,
                    const int32_t* y_rows = nullptr, const int32_t* x_rows = nullptr);

}  // namespace deepinfer::ops::cuda
