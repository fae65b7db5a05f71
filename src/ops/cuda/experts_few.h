// The routed experts of one row in one launch: both products of FP4 weights with SwiGLU between them. The copies of the
// second product's weights are on their way while the first one's last sums are still being added, so that memory does
// not idle between the two, nor before and behind a kernel for SwiGLU.
//
//   FewExperts e{...};
//   if (fits_few_experts(w1_w3, w2, choices)) few_experts(e, stream);
//
// The second product of the shared expert may come along: alone it has too few rows of weights to fill the GPU.
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
  const uint8_t* hidden;       // the row, packed for FP8, stream form
  void* out;                   // bf16 [D]
};

struct FewExperts {
  LinearWeights w1_w3, w2;     // [2 inter][D] and [D][inter] of each expert, FP4
  const uint8_t* packed;       // the row, packed for FP4, stream form
  const float* weights;        // of each choice
  float limit;                 // of SwiGLU
  // The row's experts (-1: none), those from `mine` on are somebody else's; where an expert's weights are (null: in
  // order).
  const int32_t* ids;
  int choices, mine;
  const int32_t* slot_of;
  uint8_t* hidden;             // scratch, a packed row a choice
  void* out;                   // bf16 [choices][D]
  int32_t* progress;           // kFewChoices + 1 zeros, and zeros afterwards
  SharedExpert shared;
};

inline constexpr int kFewChoices = 8;

// Whether few_experts() takes matrices of these shapes.
bool fits_few_experts(const LinearWeights& w1_w3, const LinearWeights& w2, int choices);
bool fits_shared_expert(const LinearWeights& w2);
void few_experts(const FewExperts& e, cudaStream_t stream);

}  // namespace deepinfer::ops::cuda
