// The CUDA backend, for programs that link it; others open the shared object by ops/cuda_backend.h.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/ops.h"

namespace deepinfer::ops::cuda {

struct Options {
  uint64_t memory_bytes = 0;  // of the GPU, for everything; 0: what is free
  int expert_slots_max = 0;   // routed experts that lie on the GPU at once; 0: as many as fit
  double step_limit_s = 60;   // a GPU that is busy for longer is taken for lost
};

// kUnavailable without a usable GPU, kUnsupported on another architecture than Hopper.
Result<std::unique_ptr<Ops>> make(int device, const Options& options = {});

// What experts outside of the GPU did since load().
struct ExpertTraffic {
  uint64_t asked = 0, missing = 0;  // distinct experts of a layer and step
  uint64_t expert_bytes = 0;
  int slots = 0;
};
// Of an object that make() gave.
ExpertTraffic expert_traffic(Ops& ops);

}  // namespace deepinfer::ops::cuda
