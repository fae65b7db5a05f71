// The CUDA backend, for programs that link it; others open the shared object by ops/cuda_backend.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ops/ops.h"

namespace deepinfer::ops::cuda {

struct Options {
  uint64_t memory_bytes = 0;  // of the GPU, for everything; 0: what is free
  int expert_slots_max = 0;   // routed experts that lie on the GPU at once; 0: as many as fit
  double step_limit_s = 60;   // a GPU that is busy for longer is taken for lost
  // What computes experts of the host (ops/host_experts.h), null: nothing; and how many of each backbone layer, or
  // kAutoHostExperts.
  std::shared_ptr<Ops> host = {};
  int host_experts = 0;
  // Called by load(): bytes of weights that have been copied, and of all.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

// kUnavailable without a usable GPU, kUnsupported on another architecture than Hopper.
Result<std::unique_ptr<Ops>> make(int device, const Options& options = {});

// What experts outside of the GPU did since load().
struct ExpertTraffic {
  uint64_t asked = 0, missing = 0;  // distinct experts of a layer and step
  uint64_t expert_bytes = 0;
  int slots = 0;
  int host_experts = 0;  // of each backbone layer, that the host computes
};
// Of an object that make() gave.
ExpertTraffic expert_traffic(Ops& ops);
// Where experts lie and are computed, with the rates that were measured, in words; empty: all on the GPU.
std::string placement(const Ops& ops);

}  // namespace deepinfer::ops::cuda
