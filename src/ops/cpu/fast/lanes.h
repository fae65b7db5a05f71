// Matrix::lanes: a second copy of an FP8 or FP4 matrix in which sixteen weight rows lie side by side, so that a
// register holds sixteen outputs of one lane of ORDER.md's sums and nothing is added up across a register; with AMX it
// is a row of the tile of weights as it comes. For a model that the last-level cache holds: multiply() then takes a
// half to a third of the time for up to kStreamRows rows of x, with the same sums (internal to ops/cpu).
//
//   std::byte* memory = ...;                       // lanes_bytes(w), aligned to 64
//   kernels.fill_lanes(w, memory);
//   w.lanes = memory;
//   kernels.multiply({.w = &w, ..., .next = lanes_at(v, 0)}, scratch);   // fetches the start of v meanwhile
//
// A tile is sixteen weight rows, missing ones zero. It is made of steps:
//   FP8   64 columns: lane by lane four codes of every output, where Fp8Expander leaves them as two pairs
//   FP4   128 columns: registers of exponents, of every output, for each 32 columns; then lane by lane words of four
//         codes, of both pairs of both chunks of 64
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops::cpu::fast {

inline constexpr int64_t kLaneOutputs = 16, kLaneCount = 16;

constexpr int64_t lane_step_columns(WeightFormat f) { return f == WeightFormat::kFp4 ? 2 * kChunk : kChunk; }
constexpr int64_t lane_step_bytes(WeightFormat f) {
  return f == WeightFormat::kFp4 ? (4 + kLaneCount) * 64 : kLaneCount * 64;
}
constexpr int64_t lane_steps(const Matrix& w) {
  return (w.cols + lane_step_columns(w.format) - 1) / lane_step_columns(w.format);
}
constexpr int64_t lane_tile_bytes(const Matrix& w) { return lane_steps(w) * lane_step_bytes(w.format); }
// BF16 rows need no expansion: a copy would save too little. FP4 rows have to fill their steps.
constexpr bool has_lanes(const Matrix& w) {
  return w.data != nullptr && (w.format == WeightFormat::kFp8 ||
                               (w.format == WeightFormat::kFp4 &&
                                packed_columns(w.cols) % lane_step_columns(WeightFormat::kFp4) == 0));
}
// 0 for a matrix without a copy.
constexpr size_t lanes_bytes(const Matrix& w) {
  return has_lanes(w) ? static_cast<size_t>((w.rows + kLaneOutputs - 1) / kLaneOutputs * lane_tile_bytes(w)) : 0;
}
// The tile of weight row `row`; null without a copy.
constexpr const std::byte* lanes_at(const Matrix& w, int64_t row) {
  return w.lanes == nullptr ? nullptr : w.lanes + row / kLaneOutputs * lane_tile_bytes(w);
}

}  // namespace deepinfer::ops::cpu::fast
