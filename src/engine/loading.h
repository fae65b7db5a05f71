// What opening a model for an engine takes beside its checkpoint: what computes, and a tokenizer that fits.
//
//   DI_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, make_ops({.device = "cuda:1", .library_dir =
//   program_directory()}));
//   DI_RETURN_IF_ERROR(check_tokenizer(tokenizer, checkpoint.config(), path));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace deepinfer::checkpoint {
struct ModelConfig;
}
namespace deepinfer::ops {
class Ops;
}
namespace deepinfer::text {
class Tokenizer;
}

namespace deepinfer::engine {

// What computes.
struct ComputeOptions {
  std::string device = "auto";  // cpu, cuda (the first GPU), cuda:N, or auto: a GPU if one can be used, else the CPU
  std::string backend = {};  // the CPU's kernels: fast, fast-avx2, plain, reference; empty: fast. "cuda": as a device
  int threads = 0;              // of the CPU; 0: all cores
  std::string library_dir = {};  // where the CUDA backend's shared object lies
  bool pin_threads = false;      // threads of the fast CPU backend stay on a core each
  // Experts of each layer that the host computes beside a GPU that cannot hold all: "off", "auto" (from measured rates)
  // or a number (docs/cuda.md).
  std::string host_experts = "off";
  // Told while a GPU takes the weights: bytes done, bytes of all.
  std::function<void(uint64_t done, uint64_t total)> on_copied = {};
};

// kInvalidArgument for names that do not exist or contradict each other; with a GPU named, what open_cuda_ops
// (ops/cuda_backend.h) says of it. `note`, if given, must be empty: it becomes a sentence where auto passed over a GPU,
// and one where host_experts has no effect.
Result<std::unique_ptr<ops::Ops>> make_ops(const ComputeOptions& options, std::string* note = nullptr);

// Bf16 operations a second that the device can do at most: of a CPU measured (ops/cpu/peak.h), of a GPU from its
// properties; 0: not known.
double peak_flops(const ops::Ops& ops, const ComputeOptions& options);

// kInvalidArgument if tokenizer.json (at `path`, for the message) is another model's.
Status check_tokenizer(const text::Tokenizer& tokenizer, const checkpoint::ModelConfig& config,
                       const std::string& path);

// The folder of the running program, where the CUDA backend's shared object lies.
std::string program_directory();

}  // namespace deepinfer::engine
