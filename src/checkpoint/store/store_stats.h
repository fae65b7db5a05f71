// What a weight store has done since it was opened: hit rates, bytes, waits. Plain counters, for reports and metrics.
//
//   StoreStats s = store.stats();
//   double hit_rate = s.experts.hit_rate(), per_token = s.bytes_read / tokens;
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::checkpoint {

struct ExpertStats {
  int64_t slots = 0, slots_used = 0, experts = 0;
  uint64_t layers_run = 0;  // calls of begin
  uint64_t uses = 0, hits = 0;
  uint64_t reads = 0;                            // experts read because a step needed them
  uint64_t expected_reads = 0, expected_used = 0;  // read ahead, and of those used before they left
  uint64_t router_reads = 0, router_used = 0;    // of those: guessed by the layer's own router
  uint64_t late = 0;                             // needed while they were being read ahead
  uint64_t warm_reads = 0;                       // to fill an empty cache
  uint64_t failures = 0;
  uint64_t needed_bytes = 0;  // of reads and of expected ones that were used
  double wait_s = 0;          // a step stood still for an expert

  double hit_rate() const { return uses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(uses); }
};

struct RowStats {
  uint64_t lookups = 0, hits = 0, reads = 0;
  uint64_t failures = 0;
  double wait_s = 0;

  double hit_rate() const { return lookups == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(lookups); }
};

struct StoreStats {
  ExpertStats experts;
  RowStats rows;  // of Engram tables and of the embedding
  uint64_t bytes_read = 0;  // in all since opening, whole pages
  uint64_t resident_bytes = 0;
  double load_s = 0;  // reading the resident weights
};

// One line for people; tokens: those that the model has run, 0 if unknown.
std::string to_string(const StoreStats& stats, int64_t tokens);

}  // namespace deepinfer::checkpoint
