// Where the weights of a model live on this machine: mapped where they fit, else within a budget of memory with the
// rest on the SSD (checkpoint/store/weight_store.h).
//
//   DI_ASSIGN_OR_RETURN(std::shared_ptr<checkpoint::WeightStore> store, open_weights(checkpoint, *ops, ram, kv +
//   work));
//
// ram_bytes: memory that this whole process may take; 0: what is free decides, and a store is only made where the
// weights do not fit. other_bytes: what the process is still going to take beside weights. Null: use the weights as
// mapped. kResourceExhausted: too little, with the least that works.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"

namespace deepinfer::checkpoint {
class Checkpoint;
struct ModelConfig;
class WeightStore;
}  // namespace deepinfer::checkpoint
namespace deepinfer::ops {
class Ops;
}

namespace deepinfer::engine {

Result<std::shared_ptr<checkpoint::WeightStore>> open_weights(const checkpoint::Checkpoint& checkpoint,
                                                              const ops::Ops& ops, uint64_t ram_bytes,
                                                              uint64_t other_bytes);

// Bytes of all weights but the vision tower's.
uint64_t text_weight_bytes(const checkpoint::ModelConfig& config);

}  // namespace deepinfer::engine
