// Decides what every step of the engine runs: pure policy, without a device, thread or clock (design.md 3, 6, 7).
//
//   DI_ASSIGN_OR_RETURN(auto s, Scheduler::create(config));
//   DI_ASSIGN_OR_RETURN(int64_t id, s->submit({.prompt = ids, .max_tokens = 100}, now_s));
//   while (s->has_work()) {
//     const Plan& plan = s->plan(now_s);      // rows, block tables, copies; see sched/plan.h
//     ... execute it ...
//     s->commit(result, now_s);               // tokens of the oldest plan that is not committed yet
//     s->take_ended(&ended);                  // who is done, and why
//   }
//
// Asynchronous planning: plan() may be called once more before the previous plan is committed. Decode rows then name
// the token "drawn by samples[i] of the previous plan"; a sequence that turns out to have stopped has one row too many,
// whose result is dropped. Blocks and slots of an ended sequence go back when no plan with its rows is open.
//
// A sequence: (fetching from a lower tier ->) waiting -> running (prefill in chunks, then decode) -> ended, with
// preemption back to waiting. Its decoder_begin is fixed from the original prompt. n answers to one prompt are one
// sequence until the prompt is computed; then they fork (blocks shared, slot copied, the partial block copied by who
// writes it first) and have ids id, id + 1, ..
//
// Order. Waiting requests are served by weighted fair shares: a flow is a tenant at a priority, its weight the tenant's
// times 2^priority, its price the rows it uses; within a flow first come, first served. In a step decode rows come
// first, then the prompts share the rows that the budget leaves. When blocks run out the last in (priority, arrival) is
// preempted. The same calls give the same plans, byte for byte; no token depends on policy, since rows do not depend on
// the batch.
//
// With drafts, a sequence waits for its commit before its next rows are planned: their position depends on it. With
// SchedulerConfig::drafts_ahead it does not wait: its rows are planned at the furthest place they may have, as many as
// set_draft_rows() said, and place_drafts() gives them their places and tokens once the step before is drawn.
//
// Errors: submit() refuses what can never run with the name of the limit; later failures end single sequences. One
// thread uses a Scheduler. A decode step without a new block allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/block_pool.h"
#include "kv/hit_plan.h"
#include "kv/host_store.h"
#include "kv/prefix_index.h"
#include "kv/sequence_state.h"
#include "sched/config.h"
#include "sched/plan.h"
#include "sched/tiers.h"

namespace deepinfer::sched {

enum class Prefill : uint8_t {
  kTail,  // the decoder half runs the last KEEP prompt rows only (spec/model.md 15.3)
  kFull,  // every row: prompt logprobs, perplexity. Never served from the cache
};

// Positions of a prompt that hold an image. Their rows of the step name rows of ops::Role::kImageRows.
struct ImageSpan {
  int32_t begin = 0;
  int32_t count = 0;
  int32_t first_row = 0;
  kv::ImageDigest digest = {};
};

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Request {
  std::vector<int32_t> prompt;
  std::vector<ImageSpan> images;     // ascending, not overlapping
  int32_t max_tokens = 0;            // 0: until the context is full
  int32_t samples = 1;
  uint64_t seed = 0;
  int32_t tenant = 0;                // from add_tenant(); 0 is always there
  int32_t priority = 0;              // -8 .. 8; each step doubles the share
  Prefill prefill = Prefill::kTail;
  bool prompt_outputs = false;       // logits of every prompt row; needs kFull
  bool cache = true;                 // read and fill the prefix cache
  double ttl_s = 7 * 86400.0;        // how long its blocks may stay unused: chat 7 days, agents 3
  kv::Traffic traffic = kv::Traffic::kChat;
  double deadline_s = kNever;        // ends with kDeadline when passed
  std::vector<kv::BlockKey> keys;    // from prompt_keys() on another thread; empty: made in submit()
};

enum class EndReason : uint8_t { kStop, kMaxTokens, kContextFull, kKvFull, kCancelled, kDeadline, kFailed };
std::string_view end_reason_name(EndReason reason);

struct Ended {
  int64_t id = 0;
  EndReason reason = EndReason::kStop;
};

// What became of a sequence so far; valid until its end was taken and its last plan committed.
struct Progress {
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;    // of the prompt, at first admission: whole blocks
  int32_t fetched_tokens = 0;   // of those, from a lower tier
  int32_t replayed_rows = 0;    // of those, rows that had to run again for their windows
  kv::HitKind hit = kv::HitKind::kCold;
  int32_t preemptions = 0;
  bool running = false;
};

// What a sample of the step before came to: the tokens drawn, oldest first (none: it ends), and the drafts behind them.
struct PlacedDrafts {
  std::span<const int32_t> drawn, drafts;
};

struct SchedulerStats {
  int waiting = 0, fetching = 0, running = 0, open_plans = 0;
  int blocks_free = 0, blocks_evictable = 0, slots_free = 0;
  int64_t plans = 0, rows = 0, decode_rows = 0, prefill_rows = 0, late_rows = 0;
  int64_t submitted = 0, ended = 0, spilled = 0, recomputed = 0, spill_losses = 0, copies_on_write = 0, forks = 0;
  int64_t cached_tokens = 0, replayed_rows = 0;
  int64_t tier_blocks = 0, tier_losses = 0, tier_puts = 0, tier_puts_skipped = 0;  // losses: fetched and not used
  // Prompts that asked lower tiers for blocks; of these, waits that ended before all blocks had come. Declined: prompts
  // that did not ask, since computing takes less time by what both have taken lately; with their blocks.
  int64_t tier_loads = 0, tier_loads_late = 0, tier_loads_declined = 0, tier_blocks_declined = 0;
  // Steps that began before all pages had come, and those of them that were thrown away.
  int64_t loads_beside = 0, loads_thrown = 0;
  int64_t snapshots_taken = 0, snapshots_used = 0, snapshots_skipped = 0;
  int64_t snapshots_put = 0, snapshots_loaded = 0;  // to lower tiers, and from there
  std::array<int64_t, kLimits> limit_hits = {};
};

class Scheduler {
 public:
  static Result<std::unique_ptr<Scheduler>> create(const SchedulerConfig& config);
  ~Scheduler();

  // Tenants have a namespace in the cache and a share. Name "" (tenant 0) has weight 1.
  Result<int32_t> add_tenant(const std::string& name, double weight);
  void set_weight(int32_t tenant, double weight);
  // Keys of the prompt's whole blocks, for Request::keys. Thread-safe.
  std::vector<kv::BlockKey> prompt_keys(int32_t tenant, std::span<const int32_t> prompt,
                                        std::span<const ImageSpan> images) const;

  // kResourceExhausted names the limit. The request ends exactly once for each of its samples.
  Result<int64_t> submit(Request request, double now_s);
  // Ends one sequence in any state; of a prompt that has not forked yet, that sample. Unknown or ended ids are ignored.
  void cancel(int64_t id);
  // While paused, none of its rows are planned; its memory stays, unless others need it. For a reader that is behind.
  void pause(int64_t id, bool paused);
  // Tokens to verify behind the sequence's last token in the next plan; ids or device references. Dropped if they do
  // not fit.
  Status set_drafts(int64_t id, std::span<const int32_t> drafts);
  // With drafts_ahead: the next plan keeps so many rows for drafts of this sequence, if the plan before it draws for
  // it.
  void set_draft_rows(int64_t id, int rows);
  // Of the newest plan: rows kept for drafts, in all; and drafts that this sequence may be given, out of those.
  int draft_rows_kept() const;
  int draft_room(int64_t id) const;
  // With drafts_ahead, between the draws of a plan and the run of the next one, which is open as well: by sample of the
  // first. Rows that get no draft are dropped from the plan; drafts beyond the rows kept are left out.
  void place_drafts(std::span<const PlacedDrafts> by_sample);
  // Whether the rows of plans from now on enter the drafter's rings (StepPlan::feeds_drafter).
  void set_feeds_drafter(bool feeds);
  void set_cost(const StepCost& cost);

  // The next step; may be empty(). At most one earlier plan may be open. Valid until it is committed.
  const Plan& plan(double now_s);
  // Fills in the newest plan's tokens that name draws of the plan before it, where `drawn` is there before they run.
  // Draws of -1 (none: their sequences end) become token 0.
  void fill_drawn(std::span<const int32_t> drawn);
  void commit(const StepResult& result, double now_s);
  // Appends the ends since the last call.
  void take_ended(std::vector<Ended>* out);
  // Lower tiers: see sched/tiers.h. Both append; gets beyond tier_gets_max come when others have arrived.
  void take_tier_gets(std::vector<TierGet>* out);
  void take_tier_puts(std::vector<TierPut>* out);
  // Answers a TierGet, once each. `page` has block_bytes, or none: a miss.
  void tier_arrived(const kv::BlockKey& key, std::span<const std::byte> page, double now_s,
                    std::shared_ptr<const void> owner = nullptr);
  // Of the newest plan's `beside`. Before its commit() the load is ended: all of it is there, or the step is thrown
  // away, as it is if nobody says.
  LoadState load_state() const;
  void end_load(bool here);
  // Requests that wait for pages: plan() should be called again soon.
  bool fetching() const;
  // Sequences that wait or run, or copies that plan() still has to hand out.
  bool has_work() const;

  // Empty once the sequence is gone.
  std::span<const int32_t> tokens(int64_t id) const;
  Progress progress(int64_t id) const;
  SchedulerStats stats() const;
  // Buffers of the plans' host copies. seal() is called by the engine, from the scheduler's thread.
  kv::HostStore& host();
  kv::PrefixIndex& prefix_index();
  kv::BlockPool& blocks();
  kv::BlockPool& slots();

  // Drops cached blocks and snapshots that have passed their time: call it every minute or so.
  void expire(double now_s);
  // Every block and slot is free or in the prefix index, every host entry published, no plan open: what must hold when
  // nothing is running. kInternal says what is missing.
  Status check_accounting() const;

 private:
  struct Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::sched
