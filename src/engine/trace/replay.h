// Runs the plans of a step trace again on a model and compares what comes out.
//
//   DI_ASSIGN_OR_RETURN(Replay replay, Replay::open("steps.jsonl"));
//   DI_ASSIGN_OR_RETURN(auto executor, ModelExecutor::create(checkpoint, ops, replay.executor_options()));
//   DI_ASSIGN_OR_RETURN(ReplayReport report, replay.run(*executor, observer, &stop));
//
// Tokens come from the trace, so that one difference does not make all later rows different. The same backend must give
// every row of logits bit for bit; another one is compared by its likeliest tokens and log-probabilities.
// Errors: kInvalidArgument for a file that is no whole trace (a last line that was cut is left out),
// kFailedPrecondition for another model or for KV that came from outside the trace (a KV tier, images).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/line_file.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/model_executor.h"
#include "engine/step_observer.h"

namespace deepinfer::engine {

struct ReplayReport {
  int64_t steps = 0, skipped_steps = 0;  // skipped: steps that failed when they were traced
  int64_t rows = 0;                      // of logits
  int64_t equal_rows = 0;                // bit for bit
  int64_t same_likeliest = 0;
  int64_t tokens = 0;                 // drawn
  double logprob_difference_max = 0;  // of drawn tokens
  int64_t first_difference = -1;      // step; -1: none
  bool same_numerics = false;         // backend and summation trees are those of the trace
  double forward_s = 0, traced_forward_s = 0;
};

class Replay {
 public:
  static Result<Replay> open(const std::string& path);

  const ExecutorInfo& traced() const { return info_; }
  ModelExecutorOptions executor_options() const;
  // `observer` may be null. kCancelled once `stop` is set.
  Result<ReplayReport> run(StepExecutor& executor, StepObserver* observer, const std::atomic<bool>* stop);

 private:
  Replay(std::string path, LineFile file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  LineFile file_;
  ExecutorInfo info_;
};

}  // namespace deepinfer::engine
