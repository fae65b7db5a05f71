// The running engine: many requests at once on one model, each getting exactly the tokens that it would get alone.
//
//   DI_ASSIGN_OR_RETURN(auto executor, ModelExecutor::create(checkpoint, ops::make_plain_ops(threads), {}));
//   DI_ASSIGN_OR_RETURN(auto engine, Engine::create(std::move(executor), tokenizer, {.end_tokens = {eos}}));
//   DI_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, engine->submit({.prompt = ids, .max_tokens = 100}));
//   for (Event e; stream->next(&e);) std::cout << e.text;             // engine/stream.h
//
// Where the device leaves the host its cores, two threads of the engine's own: one runs forwards and draws, the other
// plans the next step and streams and commits the last one meanwhile (sched/scheduler.h decides the plans). So a stop
// is seen one step late, at the price of a row that is thrown away. Where forwards take all cores (the CPU backends),
// one thread does one after the other: what a second one does takes a core from the forward, and handing over costs
// more than all of that. All calls may come from any thread and only put a message into the mailbox. Prompts share KV
// through the prefix cache, n answers to one prompt through forks. Determinism: docs/determinism.md.
//
// Failures. A request that cannot run is refused by submit(). If a step fails, its sequences run again one by one:
// those that fail alone end with kFailed, the others go on. Where the device may have overwritten what a prompt's
// rows need (more rows than `backtrack` and a failure after the start), that sequence ends with kFailed as well. If a
// copy of KV memory fails, all requests end with kFailed and submit() gives kUnavailable from then on.
//
// Limits: waiting_max and those of engine/request.h. Destroying the engine ends all answers with kCancelled; drain()
// lets them end first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/step_observer.h"
#include "engine/stream.h"
#include "kv/tier.h"
#include "sched/scheduler.h"
#include "text/tokenizer.h"

namespace deepinfer::sched {
struct DraftCosts;
}

namespace deepinfer::engine {

enum class DraftMode : uint8_t {
  kOff,
  kFixed,       // every draft is verified
  kConfidence,  // as many as bring the most expected tokens a second; none where drafting does not pay
};

// Speculation (engine/speculation.h): never changes a token.
struct DraftOptions {
  DraftMode mode = DraftMode::kOff;
  int drafts_max = 5;      // a sequence and step; the model's block is the bound. Request::drafts_max asks for less
  int step_drafts_max = 0;  // verified in a step, all sequences together; 0: as many as its rows allow
  bool model = true;       // drafts of the model's drafter
  bool text = true;        // drafts from the answer's own text
  bool history = true;     // and from what the same tenant's requests were answered, of those that share a cache
  // A step with drafts is planned while the one before it runs, as all others are, with rows kept for drafts that are
  // still to be made. false: planned when that one is drawn and committed. Needs EngineOptions::overlap.
  bool ahead = false;
  std::vector<float> temperatures;  // of the confidence head (sched/draft_calibration.h); empty: 1
  std::shared_ptr<const sched::DraftCosts> costs;  // of the device; null: measured at start
  // Called on one of the engine's threads for every verified round of the model's drafter: its confidence logits, and
  // how many drafts were verified and came true. For calibration.
  std::function<void(std::span<const float> confidence, int verified, int accepted)> on_round;
};

struct DraftStats {
  static constexpr int kPositions = 16;
  std::array<int64_t, kPositions> verified = {}, accepted = {};  // by place in the round
  int64_t turns = 0, tokens = 0;   // draws of an answer in a step, and their tokens: tokens / turns a step
  int64_t drafted = 0;             // tokens offered for verification, by either drafter
  int64_t verify_rows = 0;         // of these verified
  int64_t saved_rows = 0;          // of these left out, since they were not worth a row
  int64_t rounds = 0;              // of the model's drafter, a sequence each
  int64_t text_rounds = 0, text_accepted = 0;
  int64_t steps_on = 0, steps_off = 0;  // drafts were in use, or not worth it
  double draft_s = 0;              // seconds of draft rounds
  // Of verified drafts of the model's drafter: the distance of its confidence from what came, 0 or 1.
  double confidence_error = 0;
  int64_t confidence_judged = 0;
};

struct EngineOptions {
  std::vector<int32_t> end_tokens;       // end every answer, unless ignore_end
  uint64_t seed = 0;                     // from which requests without a seed get theirs
  int keep_extra = 12;                   // KEEP = window + this: prompt tokens that the decoder half reads
  uint64_t host_bytes_max = 256u << 20;  // window snapshots and preempted sequences
  bool prefix_cache = true;
  bool bounded_replay = false;  // approximate hits (design.md 6); answers then depend on what is cached
  bool spill = true;            // preemption to host memory; else by computing again
  std::function<bool(int64_t id, int32_t output_tokens)> preempt_drill;  // sched/config.h; tests
  int waiting_max = 4096;       // requests that wait or run, beside those that fit at once
  int samples_max = 16;
  int queue_events = 256;    // of one request's stream
  double step_target_s = 0;  // prefill beside decode is cut to keep a step below; needs step_cost
  sched::StepCost step_cost;
  std::vector<int32_t> banned_tokens;  // never drawn
  int32_t top_k_max = 0;               // draws are among so many of the likeliest tokens at most; 0: no bound
  std::shared_ptr<StepObserver> observer;  // null: none
  // KV pages below host memory: local SSD, a remote store, or both behind one object (kv/tier.h). Only the engine's
  // thread calls it. Finished blocks are written there, and prompts look there for what the device does not hold; a
  // tier that is slow, full, damaged or away costs time, never an answer (sched/tiers.h).
  std::shared_ptr<kv::Tier> tier;
  // Snapshots of the encoder windows go there too, so that what comes from a tier needs no replay (design.md 6).
  bool tier_snapshots = false;
  double tier_wait_s = 2;     // a request waits no longer for its pages
  double tier_timeout_s = 5;  // a single page is given up
  double tier_beside_s = 0.05;  // a step that began before its last pages had come waits no longer for them; 0: none do
  double tier_flush_s = 2;    // the engine's end waits so long for writes
  // Seconds that blocks may stay unused, on the device and in every tier, by kv::Traffic: chat 7 days, agents 3.
  std::array<double, kv::kTraffics> ttl_s = {7 * 86400.0, 3 * 86400.0};
  // Called on the engine's thread when the first answer to a request has ended; it must be quick.
  std::function<void(const Request&, const Usage&)> on_answered;
  DraftOptions drafts;
  // false: a step is planned when the one before it is committed, as always on a device that takes all of the host's
  // cores (but for DraftOptions::ahead).
  bool overlap = true;
  bool cpu_times = false;  // StepTimes but forward in CPU time of the thread (benchmarks)
};

// Seconds since the start, summed over steps. Between two forwards lie sample and launch; the others run beside
// forwards, if the device leaves the host its cores.
struct StepTimes {
  double plan = 0, prepare = 0, forward = 0, sample = 0, launch = 0, commit = 0, stream = 0;
};

// Pages read from and written to EngineOptions::tier.
struct TierStats {
  int64_t hits = 0, missing = 0, damaged = 0, late = 0, errors = 0;
  int64_t written = 0, write_failures = 0, write_refusals = 0;
  int in_flight = 0;
};

struct EngineStats {
  sched::SchedulerStats scheduler;
  StepTimes times;
  TierStats tier;
  // By tier, tenant (kv::space_of of its name) and kind of traffic; empty without lower tiers.
  std::vector<kv::TierCount> tier_counts;
  DraftStats drafts;
  std::optional<WorkStats> work;  // where the device counts it
  std::optional<checkpoint::StoreStats> weights;  // where some of them are on the SSD
  int64_t steps = 0;  // with rows
  int64_t failed_steps = 0;
  int64_t output_tokens = 0;
  int64_t shared_draws = 0;  // made by a second thread, in steps whose draws take long
  int live = 0;  // requests
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::unique_ptr<StepExecutor> executor,
                                                std::optional<text::Tokenizer> tokenizer, const EngineOptions& options);
  ~Engine();

  // kInvalidArgument names the parameter and its range; kResourceExhausted: too many requests are waiting;
  // kUnavailable: the engine is draining.
  Result<std::unique_ptr<Stream>> submit(Request request);
  RequestLimits limits() const;
  const ExecutorInfo& info() const;

  // A namespace of the prefix cache with a share of the engine; the number for Request::tenant.
  Result<int32_t> add_tenant(const std::string& name, double weight);
  EngineStats stats();
  // Refuses new requests and waits until all have ended, at most timeout_s (then kDeadlineExceeded).
  Status drain(double timeout_s);
  // Whether every block, slot and host entry is back or cached; only meaningful when nothing runs.
  Status check_accounting();
  // Forgets all cached prefixes.
  void clear_cache();

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::engine
