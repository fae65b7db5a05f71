// Experts and Engram tables that do not fit into GPU memory (internal to ops/cuda, part of Backend; docs/cuda.md).
//
// Experts share a cache of equal slots on the GPU. Which slot holds which expert is kept in device memory, and a kernel
// (offload.cu) looks a step's experts up, chooses whose slots go (the lowest count of uses, of which one 128 steps ago
// counts half, as in checkpoint/store/expert_cache.h) and lists what is missing. Then
//   without a weight store  all experts lie in pinned host memory, arranged as the kernels read them, and a second
//   kernel
//                           copies what is missing: nothing waits for the host, so that decode steps stay CUDA graphs;
//   with a weight store     the host reads the list, asks the store (checkpoint/store/weight_store.h), and copies what
//                           arrives: steps are not recorded.
// Engram tables lie in pinned host memory, from where the gather kernel reads rows; or come through the store.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <cuda_runtime.h>

#include "base/status.h"
#include "ops/weights.h"

namespace deepinfer::ops::cuda {

// Host memory that the GPU reads; freed with the backend.
class PinnedArena {
 public:
  ~PinnedArena();
  Status take(uint64_t bytes, void** p);
  uint64_t bytes() const { return bytes_; }
  void abandon() { blocks_.clear(); }

 private:
  std::vector<void*> blocks_;
  uint64_t bytes_ = 0;
};

// The cache as its kernels see it. Experts are numbered over all layers.
struct ExpertTable {
  int32_t* slot_of = nullptr;  // [experts] -1: not here
  int32_t* owner = nullptr;    // [slots] expert, or -1
  uint32_t* used = nullptr;    // [slots] clock of the last use
  double* count = nullptr;     // [experts] log2 of the uses, one `half_life` ago counting half, plus now / half_life
  double half_life = 1;        // in layers run
  uint32_t* clock = nullptr;
  int32_t* missing = nullptr;  // count, then (expert, slot) each
  unsigned long long* traffic = nullptr;  // experts asked for, experts missing
  const uint8_t* const* host = nullptr;   // [experts] their images in pinned memory
  uint8_t* slots = nullptr;
  int64_t slot_bytes = 0;
  int slot_count = 0, experts = 0;
};

// An expert's image: w1 over w3, then w2, each as arrange_fp4() lays it.
struct ExpertShape {
  int gate_up_n = 0, gate_up_k = 0, down_n = 0, down_k = 0;
  int64_t gate_up_bytes = 0, down_bytes = 0;
  int64_t image_bytes() const { return gate_up_bytes + down_bytes; }
  bool operator==(const ExpertShape&) const = default;
};

struct Offload {
  bool tables = false;   // Engram tables lie on the host
  bool experts = false;  // not all experts are on the GPU
  std::shared_ptr<checkpoint::WeightStore> store;
  int host_experts = 0;      // of each backbone layer, the last ones: the host computes them
  double kernel_rate = 0, copy_rate = 0;  // from pinned memory, bytes a second; 0: not measured
  PinnedArena pinned;
  // Experts.
  ExpertTable table;
  ExpertShape shape;
  ExpertWeights like;           // formats and sizes of any of them
  std::vector<int> first;       // number of each layer's first expert
  int most = 0;                 // experts of a layer that the GPU computes
  std::vector<const uint8_t*> images;  // in pinned memory, an expert each; null: the host computes it
  // Device: row-major w1 over w3, and w2, on their way into an image; columns of padding stay zero.
  uint8_t *codes[2] = {}, *scales[2] = {};
  int32_t* missing = nullptr;                   // pinned copy of the list
  bool forget = false;                          // a read failed: what the slots hold is unknown
  // Table rows that came through the store.
  uint8_t* rows = nullptr;  // device
  std::vector<int32_t> ids;
};

}  // namespace deepinfer::ops::cuda
