// Watches the steps of a running engine: what was planned, what came out, and when. For traces (engine/trace/) and
// tests.
//
//   class Counter : public StepObserver { void on_step(const StepRecord& r) override { rows +=
//   r.plan.step.tokens.size(); } };
//   options.observer = std::make_shared<Counter>();
//
// All are called on the engine's thread. For every step that did something, in the order of the steps: on_step() once
// its tokens were streamed, on_commit() once the scheduler has them. on_end(): of every answer. Without an observer a
// step costs a few comparisons more, with one a copy of its logits. What the record points to is only valid during the
// call.
#pragma once

#include <span>

#include "engine/stream.h"
#include "sched/plan.h"

namespace deepinfer::engine {

// Seconds since the engine's start. The stages of a step follow each other: plan [begin, planned), forward until the
// logits are there [started, ready), sample [ready, sampled), stream until `streamed` and commit. Where steps overlap,
// plan lies beside the step before, stream and commit beside the next one.
struct StepMoments {
  double begin = 0, planned = 0, started = 0, ready = 0, sampled = 0, streamed = 0;
};

struct StepRecord {
  const sched::Plan& plan;
  const sched::StepResult& result;
  std::span<const float> logits;  // [rows that the plan's sequences ask for, vocabulary]
  StepMoments at;
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void on_step(const StepRecord& record) = 0;
  // False: records come without logits, which then are not kept for it.
  virtual bool wants_logits() const { return true; }
  virtual void on_commit(double begin, double end) {
    (void)begin;
    (void)end;
  }
  virtual void on_end(const Usage&, FinishReason) {}
};

}  // namespace deepinfer::engine
