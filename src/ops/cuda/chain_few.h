// Two FP8 matrices of one row in one launch, with what lies between them: the query projections (wq_a and wkv, norms
// and window record, wq_b, RoPE) and the output projection (un-rotation, wo_a, wo_b). Weights are on their way to
// shared memory before the kernel in front has ended and across the border between the two, so that memory does not
// idle.
//
//   QueryChain q{...};
//   if (fits(q)) project_queries(q, stream);
//
// The same bits as the separate kernels (ORDER.md, "linear" and "norms").
//
// CTAs wait for each other's sums, so all of them must come to run: not beside another kernel on the GPU that waits in
// the same way.
#pragma once

#include <cstdint>

#include "ops/cuda/linear.h"

namespace deepinfer::ops::cuda {

// How the copy engine sees an FP8 matrix: CUtensorMap.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};
// False where the driver has no such maps or does not take this one.
bool make_tensor_map(const LinearWeights& w, TensorMap* map);

struct ChainMatrix {
  LinearWeights w;
  const TensorMap* map;  // of the host; null: there is none
};

struct QueryChain {
  ChainMatrix wq_a_wkv, wq_b;        // [low + d][D] and [heads d][low]
  const uint8_t* packed;             // the row, packed for FP8, stream form
  const float *q_norm, *kv_norm, *cos, *sin;
  void* low_kv;                      // bf16 [low + d], scratch
  void *low, *queries;               // bf16 [low] and [heads d]
  uint8_t* record;                   // of the window
  int d, half;                       // of a head; half: pairs that rotate
  float eps;
  int32_t* progress;                 // kChainProgress zeros, and zeros afterwards
};

struct OutputChain {
  ChainMatrix wo_a, wo_b;            // [groups rank][width] and [D][groups rank]
  int groups, width;                 // width: channels of a group
  const void* heads;                 // bf16 [groups width]
  const float *cos, *sin;
  int d, half;
  void* low;                         // bf16 [groups rank], scratch
  void* out;                         // bf16 [D]
  int32_t* progress;
};

inline constexpr int kChainProgress = 2;

bool fits(const QueryChain& c);
bool fits(const OutputChain& c);
void project_queries(const QueryChain& c, cudaStream_t stream);
void project_output(const OutputChain& c, cudaStream_t stream);

}  // namespace deepinfer::ops::cuda
