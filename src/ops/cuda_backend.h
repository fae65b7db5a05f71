// Opens the CUDA backend, a shared object beside the program (libdeepinfer_cuda.so), at run time: the program itself
// needs no CUDA library and starts on machines without a GPU.
//
//   Result<std::unique_ptr<Ops>> ops = open_cuda_ops(0, directory_of_the_program);
//
// kNotFound: no shared object, no driver or no GPU; kInvalidArgument: no GPU of that number; kUnsupported: a GPU of
// another architecture; kUnavailable: a shared object of another program, a driver too old, or a GPU that does not
// answer. The message says which, and what to do.
#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

namespace deepinfer::ops {

// What the shared object fills in.
struct CudaBackend {
  Status status;
  std::unique_ptr<Ops> ops;
};

// Dense bf16 operations a second of that GPU at its highest clock; 0 where it cannot be told.
double cuda_peak_flops(int device, const std::string& directory);

Result<std::unique_ptr<Ops>> open_cuda_ops(int device, const std::string& directory);

}  // namespace deepinfer::ops
