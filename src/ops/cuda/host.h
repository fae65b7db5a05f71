// Experts that the host computes beside the GPU (internal to ops/cuda, part of Backend; ops/host_experts.h).
//
// On a stream of its own, from behind the router to combine(): a kernel writes ids, weights and activations of the rows
// that have such experts to pinned memory, a host function (a node of the graph where steps are recorded) computes
// them, a kernel reads the results back into the rows' places of kExpertOut.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "ops/host_experts.h"

namespace deepinfer::ops::cuda {

struct HostWork {
  std::unique_ptr<HostExperts> experts;
  HostExpertLoad load;
  HostExpertRates rates;
  int full_step_rows = 0;  // of an expert
  // Pinned: [rows, D], [rows, columns] twice, [rows, columns, D].
  uint16_t* input = nullptr;
  int32_t* ids = nullptr;
  float* weights = nullptr;
  uint16_t* output = nullptr;
  // What a host function is called with; recorded graphs keep the addresses.
  struct Call {
    Call(HostExperts* e, const HostExpertRows& r) : experts(e), rows(r) {}
    HostExperts* experts;
    HostExpertRows rows;
  };
  std::map<std::array<int64_t, 3>, Call> calls;  // by layer, rows, columns
};

}  // namespace deepinfer::ops::cuda
