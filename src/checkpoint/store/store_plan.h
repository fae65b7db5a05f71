// What of a checkpoint a weight store keeps in memory, for a budget in bytes.
//
//   DI_ASSIGN_OR_RETURN(StorePlan plan, plan_store(config, {.ram_bytes = 64ull << 30}));
//   plan.slots;                                          // experts that fit
//
// A pure function of sizes. Everything that each token reads is resident (attention, shared experts, routers, head,
// mixing, drafter without its experts); routed experts share a cache of equal slots; Engram tables and the token
// embedding are resident where there is room behind all experts (the embedding: behind a quarter of them), else rows of
// them are read when they are needed, with a small cache of rows. Vision weights are not loaded.
// kResourceExhausted below least_store_bytes().
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "checkpoint/config.h"

namespace deepinfer::checkpoint {

struct StoreBudget {
  uint64_t ram_bytes = 0;  // for weights
};

struct StorePlan {
  uint64_t dense_bytes = 0;   // resident, embedding and tables included where they are
  uint64_t slot_bytes = 0;    // of one expert
  int64_t slots = 0;          // of the cache, at most `experts`
  int64_t experts = 0;        // of all layers and drafter stages
  uint64_t expert_bytes = 0;  // stored bytes of one
  bool embedding_resident = true;
  std::vector<bool> table_resident;  // an Engram layer each
  uint64_t row_cache_bytes = 0;      // a table that is not resident each, the embedding included
  uint64_t table_bytes = 0;          // of all Engram tables
  uint64_t total_bytes = 0;          // what the plan takes of the budget
};

// The least budget with which a model runs: what every token reads, and experts and rows of one at a time.
uint64_t least_store_bytes(const ModelConfig& config);

Result<StorePlan> plan_store(const ModelConfig& config, const StoreBudget& budget);

}  // namespace deepinfer::checkpoint
