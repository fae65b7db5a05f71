// Routed experts of few rows in one launch: both products of FP4 weights with SwiGLU between them. The copies of the
// second product's weights are on their way while the first one's last sums are still being added, so that memory does
// not idle between the two, nor before and behind a kernel for SwiGLU.
//
//   FewExperts e{...};
//   if (fits_few_experts(w1_w3, w2, pairs)) few_experts(e, stream);
//
// The second product of the shared expert may come along: alone it has too few rows of weights to fill the GPU.
//
// The backend calls it for one row. Tiles of several rows work too, but with 8 rows separate kernels are faster
// (docs/cuda.md), so nothing uses them.
//
// The same bits as linear_grouped(), swiglu and linear_grouped() (ORDER.md, "linear").
//
// CTAs wait for each other's sums, so all of them must come to run: not beside another kernel on the GPU that waits in
// the same way.
#pragma once

#include <cstdint>

#include "ops/cuda/linear.h"

namespace deepinfer::ops::cuda {

// FP8; w2.codes null: none.
struct SharedExpert {
  LinearWeights w2;            // [D][inter]
  const uint8_t* hidden;       // rows packed for FP8, stream form
  int rows;                    // at most 8
  void* out;                   // bf16 [rows][D]
};

struct FewExperts {
  LinearWeights w1_w3, w2;     // [2 inter][D] and [D][inter] of each expert, FP4
  const uint8_t* packed;       // rows packed for FP4, stream form
  const float* weights;        // of each pair (row * columns + choice)
  float limit;                 // of SwiGLU
  // One row: its experts (-1: none), those from `mine` on are somebody else's; where an expert's weights are (null: in
  // order). Else null, and tiles of at most 8 rows, with input row and pair of each of their rows (-1: none).
  const int32_t* ids;
  int choices, mine;
  const int32_t* slot_of;
  const GroupTile* tiles;
  const int32_t *tile_count, *x_rows, *pairs;
  int max_tiles;               // at most kFewTiles
  uint8_t* hidden;             // scratch, packed rows: as many as tiles have, one row: 8 a choice
  void* out;                   // bf16 [pairs][D]
  int32_t* progress;           // kFewTiles + 1 zeros, and zeros afterwards
  SharedExpert shared;
};

inline constexpr int kFewTiles = 64;

// Whether few_experts() takes matrices of these shapes.
bool fits_few_experts(const LinearWeights& w1_w3, const LinearWeights& w2, int max_tiles);
bool fits_shared_expert(const LinearWeights& w2, int rows);
void few_experts(const FewExperts& e, cudaStream_t stream);

}  // namespace deepinfer::ops::cuda
