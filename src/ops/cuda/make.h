// The CUDA backend, for programs that link it; others open the shared object by ops/cuda_backend.h.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace deepinfer::ops::cuda {

// kUnavailable without a usable GPU, kUnsupported on another architecture than Hopper.
Result<std::unique_ptr<Ops>> make(int device);

}  // namespace deepinfer::ops::cuda
