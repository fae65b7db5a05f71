// What the scheduler is told once: sizes of memory, shape of the model, limits and policy. check() refuses what cannot
// work.
//
//   SchedulerConfig c;
//   c.blocks = options.pages;  c.slots = options.slots;  c.window = model.window;  c.keep = c.window + 12;  ...
//   DI_RETURN_IF_ERROR(check(c));
//
// Every limit has a name (limit_name), a counter in SchedulerStats, and an error that says the name and how to change
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/status.h"
#include "kv/block_pool.h"
#include "kv/cache_key.h"
#include "kv/faults.h"
#include "kv/tier.h"

namespace deepinfer::sched {

// Seconds that a step takes, as the engine measured them; zeros switch the latency budget off.
struct StepCost {
  double base_s = 0;
  double decode_row_s = 0;
  double prefill_row_s = 0;
};

struct SchedulerConfig {
  // Memory.
  int blocks = 0;                    // blocks of global KV on the device
  int slots = 0;                     // state slots; a running sequence has one
  int block_tokens = kv::kBlockTokens;
  size_t block_bytes = 0;            // of one block, when it is spilled
  size_t slot_bytes = 0;             // of one slot, when it is spilled
  size_t snapshot_bytes = 0;         // of the encoder windows at a border; 0: no snapshots
  uint64_t host_bytes_max = 0;       // host memory for snapshots and spilled sequences; 0: neither
  bool host_keeps_bytes = true;      // false: account only (simulator)

  // Model.
  int window = 128;
  int encoder_layers = 20;
  // Rows that a window ring holds. Snapshots need window + keep + block_tokens + backtrack + 1 of them, so that the
  // last border that is KEEP behind the end is still there when the end is known; smaller rings go without
  // (snapshots_skipped counts).
  int ring_slots = 134;
  int backtrack = 6;                 // rows that a sequence may be stepped back
  int history_tokens = 3;            // tokens before a row that Engram needs
  int keep = 140;                    // prompt rows that the decoder half runs: window + 12

  // Limits of a step (ops::Limits).
  int rows_max = 512;
  int sequences_max = 1;             // sequences of a step, and running sequences
  int outputs_max = 1;               // rows with logits
  int blocks_per_step_max = 0;       // block ids of a step, at least those of one whole context; 0: no limit

  // Limits of requests.
  int context_max = 4096;            // prompt and output together
  int waiting_max = 4096;            // sequences that wait for admission
  int tenants_max = 1024;
  int samples_max = 16;              // answers to one prompt
  int drafts_max = 0;                // draft rows of a sequence in a step
  bool drafts_ahead = false;         // plans keep rows for drafts that are still to be made (Scheduler::place_drafts)

  // Policy.
  double step_target_s = 0;          // prefill beside decode is cut so that a step takes no longer; 0: rows_max only
  int prefill_rows_min = 32;         // but a step that has prefill work runs at least so many rows of it
  int skip_ahead_max = 8;            // requests that may be looked at behind one that does not fit
  int skips_max = 64;                // how often a request may be passed over before others wait for it
  int preemptions_max = 3;           // after so many preemptions a sequence is preempted last
  // Drills and tests: a running sequence for which it is true, with its output so far, is preempted before a step.
  std::function<bool(int64_t id, int32_t output_tokens)> preempt_drill;
  bool spill = true;                 // preemption to host memory; else, and without room, by computing again

  // Cache.
  kv::CacheScope scope;              // `tenant` is filled in a tenant
  bool prefix_cache = true;
  double snapshot_ttl_s = 600;
  double attention_tokens = 65536;   // kv::PrefixIndexOptions
  kv::Faults faults;

  // Lower tiers (sched/tiers.h).
  int tier_gets_max = 0;             // pages asked for at once; 0: there are no lower tiers
  int tier_puts_max = 64;            // finished blocks that wait to be written
  bool tier_snapshots = false;       // snapshots of the encoder windows go there too (sched/tiers.h)
  double tier_wait_s = 2;            // a request waits no longer for pages, and never longer than computing them takes
  // How many of the keys lower tiers are known to have (kv::Tier::known_prefix); empty: it is not known.
  std::function<kv::Tier::Known(std::span<const kv::BlockKey>)> tier_known;
  double load_beside_s = 0;          // pages that come this soon may come while the step runs; 0: none (Plan::beside)
};

Status check(const SchedulerConfig& config);

enum class Limit : uint8_t { kWaiting, kTenants, kSamples, kContext, kBlocks, kSlots, kDrafts };
inline constexpr int kLimits = 7;
std::string_view limit_name(Limit limit);

}  // namespace deepinfer::sched
