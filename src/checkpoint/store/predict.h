// How fast a model will decode within a budget, before it is started.
//
//   DI_ASSIGN_OR_RETURN(StorePlan plan, plan_store(config, {.ram_bytes = ram}));
//   DI_ASSIGN_OR_RETURN(StoreRates rates, measure_disk(checkpoint, 1.0));
//   DI_ASSIGN_OR_RETURN(rates.memory_bytes_per_s, measure_memory(threads));
//   predict_decode(config, plan, rates).tokens_per_s;
//
// One sequence, a warm cache, a short context. A token reads the resident weights once, the chosen experts from memory,
// those that are not cached from the SSD first, and its table rows. Hit rate: slots / experts, which holds if all
// experts are used alike; text that prefers some makes it higher, so what is said is careful. The disk works while the
// processor does, but for wrong guesses and the first and last expert of a layer: kOverlap of the shorter time is
// hidden.
#pragma once

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/store/store_plan.h"

namespace deepinfer::checkpoint {

class Checkpoint;

struct StoreRates {
  double memory_bytes_per_s = 0;  // reading, all threads
  double disk_bytes_per_s = 0;    // random reads of 128 KiB past the page cache, 64 at once
  double disk_rows_per_s = 0;     // random reads of 4 KiB, 64 at once
};

// Takes about `seconds`; reads pieces of the checkpoint's files, 8 MiB at a time. memory_bytes_per_s stays 0.
Result<StoreRates> measure_disk(const Checkpoint& checkpoint, double seconds);
// Some tenths of a second; takes 256 MiB.
Result<double> measure_memory(int threads);

struct DecodePrediction {
  double hit_rate = 0;      // of experts
  double memory_bytes = 0;  // a token reads from memory
  double expert_bytes = 0;  // and from the SSD
  double row_reads = 0;     // reads of table rows
  double memory_s = 0, disk_s = 0;
  double tokens_per_s = 0;
};
inline constexpr double kOverlap = 0.75;

DecodePrediction predict_decode(const ModelConfig& config, const StorePlan& plan, const StoreRates& rates);

}  // namespace deepinfer::checkpoint
