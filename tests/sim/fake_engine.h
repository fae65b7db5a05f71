// Executes plans on a FakeMemory the way the engine does on a device: copies, rows, draws, in order. Checks each plan
// against the limits, poisons what was freed, and can damage host memory and rows.
//
//   FakeEngine engine(shape, *scheduler, config);
//   engine.execute(scheduler.plan(now), &result, rng);     // result for commit(), now or one plan later
//
// Faults are found by `errors`: empty when all is well.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "tests/sim/fake_model.h"

namespace deepinfer::sim {

struct FakeFaults {
  double flip = 0;         // probability that a sealed host entry has a bit turned
  double row_failure = 0;  // probability that a sequence of a step fails
};

class FakeEngine {
 public:
  FakeEngine(const FakeShape& shape, sched::Scheduler& scheduler, const sched::SchedulerConfig& config,
             FakeFaults faults);

  // `seed_of(id)`: the seed of a sequence's request.
  template <class SeedOf>
  void execute(const sched::Plan& plan, sched::StepResult* result, std::mt19937_64& rng, SeedOf&& seed_of) {
    run(plan, result, rng);
    for (size_t i = 0; i < plan.samples.size(); ++i) draw_row(plan, i, seed_of(plan.samples[i].id), result);
  }

  std::string errors;
  uint64_t plans_digest = 0;  // of everything that was planned

 private:
  void run(const sched::Plan& plan, sched::StepResult* result, std::mt19937_64& rng);
  void check(const sched::Plan& plan);
  void copy(const sched::MemoryOp& op, std::mt19937_64& rng);
  void draw_row(const sched::Plan& plan, size_t i, uint64_t seed, sched::StepResult* result);
  void digest(const sched::Plan& plan);
  void error(const std::string& what);
  std::span<uint64_t> host_words(const sched::MemoryOp& op, size_t words);

  const FakeShape shape_;
  const sched::SchedulerConfig config_;
  const FakeFaults faults_;
  sched::Scheduler& scheduler_;
  FakeMemory memory_;
  std::vector<int> freed_blocks_, freed_slots_;
  std::vector<int32_t> feedback_, next_feedback_;
  std::vector<uint64_t> logits_;
  std::vector<int32_t> row_tokens_;
  std::vector<bool> row_failed_;
};

}  // namespace deepinfer::sim
