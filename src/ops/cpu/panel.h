// The inner product of the CPU backends: rows of fp32 activations times a panel of 16 output channels, k-major.
//
//   float panel[512 * kLanes];                                      // panel[k * kLanes + lane]
//   expand_panel(matrix, row0, count, k0, k1, panel);               // 16 weight rows, columns k0..k1, as numbers
//   panel_dot(x + k0, ldx, n, panel, kLanes, k1 - k0, acc);         // acc[i][lane] += sum of x[i][k] * panel[k][lane]
//
// acc is [n][kLanes]. Each acc element has one summation tree, whatever n and the instruction set are:
//   double  acc is added to for k ascending
//   float   strips of kStrip columns from the call's first k; each is summed from 0 for k ascending, then added to acc
// No fused multiply-add. Instruction set (SSE2, AVX2, AVX-512) is chosen once a process.
#pragma once

#include <cstdint>

#include "ops/weights.h"

namespace deepinfer::ops::cpu {

inline constexpr int kLanes = 16;
inline constexpr int kStrip = 32;
inline constexpr int kPanelColumns = 512;  // columns expanded at a time: a multiple of kStrip

void panel_dot(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp, int64_t k, float* acc);
void panel_dot(const float* x, int64_t ldx, int64_t n, const float* panel, int64_t ldp, int64_t k, double* acc);

// Rows row0 .. row0 + count - 1 (count <= kLanes; the other lanes are 0), columns k0 .. k1 - 1; k0 is a multiple of 32.
void expand_panel(const Matrix& w, int64_t row0, int64_t count, int64_t k0, int64_t k1, float* panel);

// One row of a matrix as numbers.
void expand_row(const Matrix& w, int64_t row, float* out);

// out[i][j] = sum over k of x[i][k] * w[row0 + j][k], j < count, with the trees above; on the calling thread.
template <class T>
void multiply_rows(const Matrix& w, int64_t row0, int64_t count, const float* x, int64_t ldx, int64_t n, T* out,
                   int64_t ldo);

}  // namespace deepinfer::ops::cpu
