// Drives a scheduler without a model: tokens are a function of sequence and position, unless a test says otherwise.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "sched/scheduler.h"

namespace deepinfer::sched {

inline SchedulerConfig small_config() {
  SchedulerConfig c;
  c.blocks = 64;
  c.slots = 4;
  c.block_tokens = 8;
  c.block_bytes = 64;
  c.slot_bytes = 64;
  c.snapshot_bytes = 32;
  c.host_bytes_max = 1 << 20;
  c.window = 4;
  c.encoder_layers = 2;
  c.backtrack = 2;
  c.keep = 8;
  c.ring_slots = 32;
  c.rows_max = 64;
  c.sequences_max = 4;
  c.outputs_max = 8;
  c.context_max = 256;
  c.prefill_rows_min = 4;
  return c;
}

inline std::vector<int32_t> prompt_of(int length, int first = 0) {
  std::vector<int32_t> p(length);
  std::iota(p.begin(), p.end(), first);
  return p;
}

class Driver {
 public:
  explicit Driver(const SchedulerConfig& config) {
    auto created = Scheduler::create(config);
    EXPECT_TRUE(created.ok()) << created.status().to_string();
    s = std::move(created).value();
  }

  int64_t submit(Request r) {
    const Result<int64_t> id = s->submit(std::move(r), now);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return id.ok() ? id.value() : -1;
  }

  // Plans, executes and commits one step; asynchronous: commits the step before.
  const Plan& step(bool async = false) {
    now += 1;
    const Plan& plan = s->plan(now);
    last = plan;
    StepResult result;
    for (const SampleRow& row : plan.samples) {
      const auto forced = tokens.find({row.id, row.position});
      const int32_t token =
          forced == tokens.end() ? static_cast<int32_t>(row.id * 1000 + row.position) : forced->second;
      result.samples.push_back({.tokens = {token}, .stop = token == kStop});
    }
    for (const MemoryOp& op : plan.before) {
      if (op.kind == MemoryOp::Kind::kSeal) s->host().seal(op.host);
      ++ops[op.kind];
    }
    for (const model::StepSequence& q : plan.step.sequences) rows[q.id] += q.count;
    if (open) s->commit(*open, now);
    open.reset();
    if (async) open = result;
    else s->commit(result, now);
    std::vector<Ended> list;
    s->take_ended(&list);
    for (const Ended& e : list) {
      EXPECT_FALSE(ended.contains(e.id));
      ended[e.id] = e.reason;
      order.push_back(e.id);
    }
    return last;
  }
  void drain(bool async = false, int steps_max = 5000) {
    while ((s->has_work() || open) && steps_max-- > 0) step(async && s->has_work());
    EXPECT_FALSE(s->has_work());
    const Status status = s->check_accounting();
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  const model::StepSequence* rows_of(int64_t id) const {
    const auto it = std::ranges::find(last.step.sequences, id, &model::StepSequence::id);
    return it == last.step.sequences.end() ? nullptr : &*it;
  }

  static constexpr int32_t kStop = -99;
  std::unique_ptr<Scheduler> s;
  double now = 0;
  Plan last;
  std::optional<StepResult> open;
  std::map<std::pair<int64_t, int32_t>, int32_t> tokens;  // (sequence, position) -> what is drawn there
  std::map<MemoryOp::Kind, int> ops;
  std::map<int64_t, int> rows;
  std::map<int64_t, EndReason> ended;
  std::vector<int64_t> order;
};

}  // namespace deepinfer::sched
