// Opens the CUDA backend, a shared object beside the program (libdeepinfer_cuda.so), at run time: the program itself
// needs no CUDA library and starts on machines without a GPU.
//
//   Result<std::unique_ptr<Ops>> ops = open_cuda_ops(0, directory_of_the_program);
//
// kNotFound: no shared object, no driver or no GPU; kInvalidArgument: no GPU of that number; kUnsupported: a GPU of
// another architecture; kUnavailable: a shared object of another program, a driver too old, or a GPU that does not
// answer. The message says which, and what to do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ops/ops.h"

namespace deepinfer::ops {

struct CudaOptions {
  // Computes experts that do not fit into the GPU's memory (ops/host_experts.h): what, and how many of each layer, or
  // kAutoHostExperts. Null: none.
  std::shared_ptr<Ops> host = {};
  int host_experts = 0;
  // Called while the GPU takes the weights, by the thread that loads: bytes done and of all; equal at the end.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

// What the shared object reads and fills in.
struct CudaBackend {
  CudaOptions options;
  Status status;
  std::unique_ptr<Ops> ops;
};

// Dense bf16 operations a second of that GPU at its highest clock; 0 where it cannot be told.
double cuda_peak_flops(int device, const std::string& directory);

Result<std::unique_ptr<Ops>> open_cuda_ops(int device, const std::string& directory, CudaOptions options = {});

// Once loaded: where experts beyond the GPU's memory lie, how they come and who computes them, with the rates that were
// measured, in words. Empty: all are on the GPU, or it is another backend's object.
std::string cuda_placement(const Ops& ops);

}  // namespace deepinfer::ops
