// Inside the scheduler: what a sequence is, and the parts of policy (internal to sched/).
//   scheduler.cc   requests in, ends out          planner.cc   the rows of a step
//   memory.cc      blocks, slots, cache, copies   commit.cc    results, ends
//   fetch.cc       lower tiers                    beside.cc    pages that come while a step runs
//   snapshots.cc   encoder windows in host memory and lower tiers
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sched/fair_queue.h"
#include "sched/load_rate.h"
#include "sched/scheduler.h"

namespace deepinfer::sched {

struct Sequence;

inline constexpr uint8_t kAnswerSnapshot = 1;  // tag of a snapshot taken behind an answer

enum class Phase : uint8_t { kFetching, kWaiting, kRunning, kEnded };

// Blocks first .. end - 1 of a sequence on their way from a lower tier.
struct Fetch {
  int first = 0, end = 0;
  int next = 0;          // the next block to ask for: all before it may have claims, those behind a gap too
  int arrived = 0;       // blocks first .. arrived - 1 are in host memory
  int outstanding = 0;   // gets without an answer
  std::vector<int> borders;     // blocks before the windows to ask for
  size_t borders_asked = 0;
  int windows_outstanding = 0;  // of outstanding
  int host = kv::kNoEntry;
  bool asked = false;    // for any block
  bool sure = false;     // all up to `end` are there, and no more, as far as anybody knows
  bool beside = false;   // the rest may come while the first step runs
  bool thrown = false;   // it was tried and a page did not come
  double until_s = 0;
  int64_t looked_at = -1;     // claims_version when the index was last searched
  std::vector<uint8_t> here;  // of blocks first ..
};

// A key that is being fetched, or was and is not in the prefix index yet.
struct Claim {
  Sequence* by = nullptr;  // null: who asked is gone
  int block = 0;
  bool in_flight = false;
  bool windows = false;  // those before the border behind the block
};

struct Sequence {
  kv::SequenceState state;  // tokens, decoder_begin, computed rows, ..
  Request request;          // its prompt has moved to state.tokens
  std::vector<uint8_t> dropped;  // samples that ended before the fork
  bool forked = false;      // or only one answer is asked for
  int32_t max_output = 0;
  int flow = 0;
  uint64_t arrival = 0;
  size_t at = 0;            // in Impl::all

  Phase phase = Phase::kWaiting;
  EndReason end = EndReason::kStop;
  int skips = 0;
  int64_t charged = 0;      // rows of its prompt that its flow has paid: once, also where a step is thrown away
  bool paused = false;

  // Device memory.
  int slot = -1;
  int reserved_slots = 0;            // for the fork
  std::vector<int32_t> blocks;
  std::vector<kv::BlockKey> keys;    // of whole blocks of tokens
  int node = kv::kNoNode;            // deepest node of the prefix index that it holds,
  int indexed = 0;                   // which is for this many blocks
  int spill = kv::kNoEntry;          // host entry of a preempted sequence
  int spill_blocks = 0;
  std::optional<Fetch> fetch;
  int loaded_begin = 0, loaded_end = 0;  // blocks that came from a lower tier
  kv::BlockKey restored_from = {};   // snapshot of an answer that this sequence continues
  bool continues_answer = false;

  // Rows.
  int32_t planned = 0;               // position of the next row to plan
  int32_t exact_begin = 0;           // rows below run for windows alone; forgotten by a spill, which only costs time
  int32_t draft_begin = 0;           // the drafter's rings hold [draft_begin, planned)
  int32_t written = 0;               // end of the rows ever planned into the slot's rings
  int32_t refs = 0;                  // rows and draws in open plans
  int32_t ahead = 0;                 // draws in open plans: each gives at least one token
  int32_t drawn_at = 0;              // index of the latest in its plan's samples
  int64_t in_plan = -1;              // last plan that has rows of it
  std::vector<int32_t> drafts;
  // With drafts_ahead:
  int32_t draft_rows = 0;            // to keep in the next plan
  int32_t open_drafts = 0;           // draft rows of its latest plan, while that is open
  int32_t draft_room = 0;            // drafts that its rows of the latest plan may be given

  Progress progress;

  int64_t known() const { return static_cast<int64_t>(state.tokens.size()); }
  int32_t outputs() const { return static_cast<int32_t>(state.tokens.size()) - state.prompt_tokens; }
  bool idle() const { return refs == 0; }
};

// A plan and what commit() must know about it.
struct OpenPlan {
  Plan plan;
  std::vector<Sequence*> rows;   // as plan.step.sequences
  std::vector<Sequence*> draws;  // as plan.samples
  std::vector<int> pinned;       // host entries that its copies read
  Sequence* thrown = nullptr;    // its rows and draws do not count

  void clear();
};

struct Tenant {
  std::string name;
  double weight = 1;
  kv::BlockKey root;
  uint64_t space = 0;  // kv::space_of(name)
};

struct Scheduler::Impl {
  explicit Impl(const SchedulerConfig& c);

  // scheduler.cc
  Result<int64_t> submit(Request&& request, double now_s);
  Status check_request(const Request& r);
  Status refuse(Limit limit, std::string message);
  void cancel(int64_t id, EndReason reason);
  Sequence* find(int64_t id) const;
  void pass_deadlines(double now_s);
  Status check_accounting() const;
  SchedulerStats current_stats() const;

  Sequence& new_sequence();

  // planner.cc
  const Plan& make_plan(double now_s);
  bool wants_prefill(const Sequence& s) const;
  bool wants_decode(const Sequence& s) const;
  bool has_room_for(const Sequence& s, int end) const;  // in the step
  int draws_left() const;
  void plan_decode();
  int add_decode(Sequence& s, int drafts_max);          // draft rows that were added
  int prefill_budget() const;
  int plan_prefill(int budget);                         // rows that are left
  void admit_waiting(int budget);
  int add_prefill(Sequence& s, int rows);               // rows that were added
  void add_rows(Sequence& s, int count, int outputs, model::RowKind kind, std::span<const int32_t> tokens);
  void add_draws(Sequence& s, int logits_row, int rows);
  // ahead.cc
  int draft_rows_kept() const;
  void place_drafts(std::span<const PlacedDrafts> by_sample);
  int place_rows(Sequence& s, const model::StepSequence& at, const PlacedDrafts& placed, int rows_left);
  void make_history(const Sequence& s, int32_t position, std::span<const int32_t> drawn);
  Sequence* fork(Sequence& parent, int sample);

  // memory.cc
  bool grow(Sequence& s, int end);       // blocks for tokens 0 .. end - 1, its own where it will write
  int take_block(const Sequence& s);     // free, evicted, or from a sequence that is served after s
  Sequence* victim(const Sequence& s) const;
  void preempt(Sequence& s);
  bool spill(Sequence& s);
  void restart(Sequence& s);             // forgets what is computed
  void drop_spill(Sequence& s);
  void release_memory(Sequence& s);
  void release_device(Sequence& s);      // of that, all but pages of lower tiers
  bool admit(Sequence& s);
  int64_t blocks_to_admit(const Sequence& s, int shared_blocks) const;
  bool restore(Sequence& s);             // from its spill; false if that is damaged or does not fit
  void start_rows(Sequence& s, int hit);
  void make_keys(const kv::BlockKey& root, std::span<const int32_t> tokens, std::span<const ImageSpan> images,
                 size_t count, std::vector<kv::BlockKey>* keys) const;
  void extend_keys(Sequence& s, int count);
  void index_blocks(Sequence& s);

  // snapshots.cc
  int find_snapshot(const Sequence& s, const kv::HitInput& in) const;
  void save_windows(Sequence& s, int length, bool answer);
  void put_windows(Sequence& s, int border, int id);
  int choose_windows(Sequence& s, int end);  // to ask for; the border that they are surely for, or 0
  void issue_window_gets(Sequence& s);
  void windows_arrived(const Claim& claim, std::span<const std::byte> windows);

  // fetch.cc
  bool start_fetch(Sequence& s);         // false: nothing to be had from lower tiers
  bool choose_blocks(Sequence& s);       // those that are missing and would save rows
  int start_with(const Sequence& s, int blocks) const;  // first row to run if so many blocks were here
  double computing_takes_s(int rows) const;
  void advance_fetches();
  void issue_gets(Sequence& s);
  void take_gets(std::vector<TierGet>* out);
  void arrived(const kv::BlockKey& key, std::span<const std::byte> page, std::shared_ptr<const void> owner);
  bool reserve_pages(Fetch& f);          // its share of host memory for all of them
  bool keep_page(Sequence& s, int block, std::span<const std::byte> page, std::shared_ptr<const void> owner);
  void load_fetched(Sequence& s, int shared);
  void drop_pages(Sequence& s);          // its host memory
  void count_loaded(Sequence& s);
  void release_claims(Sequence& s);
  kv::PutInfo put_info(const Sequence& s) const;
  void put_block(const Sequence& s, const kv::BlockKey& key, std::span<const int32_t> tokens, int block);
  void take_puts(std::vector<TierPut>* out);

  // beside.cc
  bool may_load_beside(const Sequence& s) const;
  bool loads_beside(Sequence& s, int shared);  // false: what has come is all there will be
  LoadState load_state() const;
  void end_load(bool here);

  // commit.cc
  void commit(const StepResult& result, double now_s);
  void commit_draw(Sequence& s, int64_t step, const SampleRow& row, const SampleResult& result);
  void run(Sequence& s);
  void stop_running(Sequence& s);
  void fail(Sequence& s);
  void report(int64_t id, EndReason reason);
  void finish(Sequence& s, EndReason reason);
  void retire_ended();
  void retire(Sequence& s);

  int pages(int64_t tokens) const { return static_cast<int>((tokens + config.block_tokens - 1) / config.block_tokens); }
  OpenPlan& current() { return open[(first_open + open_count - 1) % 2]; }  // the plan being made
  const OpenPlan& current() const { return open[(first_open + open_count - 1) % 2]; }

  const SchedulerConfig config;
  const kv::WindowShape shape;
  StepCost cost;
  bool feeds_drafter = true;
  kv::BlockPool blocks, slots;
  kv::PrefixIndex index;
  kv::HostStore host;
  std::vector<Tenant> tenants;
  FairQueue queue;

  std::vector<std::unique_ptr<Sequence>> all;      // every live sequence, in no order that matters
  std::vector<std::unique_ptr<Sequence>> spare;
  std::unordered_map<int64_t, Sequence*> by_id;    // looked up, never walked
  std::vector<Sequence*> running;                  // first to be served first
  std::vector<Sequence*> fetching;                 // by arrival
  std::map<kv::BlockKey, Claim> claims;
  int64_t claims_version = 0;
  int gets_in_flight = 0;
  Sequence* loading = nullptr;                     // the newest plan began before its pages had come
  LoadRate load_rate;
  std::vector<kv::BlockKey> gets;                  // claimed and not handed out yet
  std::vector<TierPut> puts;
  uint64_t fetch_bytes = 0;
  int draining = 0;                                // ended, but with rows in an open plan
  int slots_reserved = 0;
  int64_t next_id = 1;
  uint64_t next_arrival = 0;
  double next_deadline_s = kNever;
  double now_s = 0;
  int admission_blocked_at = -1;                   // free and evictable blocks when the queue's head last did not fit

  std::array<OpenPlan, 2> open;
  int first_open = 0, open_count = 0;
  int64_t plan_count = 0;
  bool planning = false;                           // rows are being added to current()
  std::vector<MemoryOp> pending;                   // copies for the next plan
  std::vector<Ended> ended;
  std::vector<int32_t> history;
  model::StepPlan placed;                          // scratch of place_drafts()
  std::vector<int32_t> first_output;               // the same, by sequence: before
  std::vector<int32_t> row_images;
  std::vector<Sequence*> retiring;                 // ended, and no open plan has rows of them
  std::vector<Sequence*> walk, passed_over;        // scratch
  int logits_used = 0;                             // logits rows of the plan being made
  SchedulerStats stats;
};

}  // namespace deepinfer::sched
