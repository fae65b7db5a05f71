// Statistics of an engine over a window of steps, as a few lines of text (spec/deepinfer.md T8).
//
//   auto stats = std::make_shared<StatsLine>();
//   options.observer = stats;
//   if (stats->steps() >= 100) print(stats->take(engine->stats(), engine->info()));     // and begins a new window
//
// All functions may be called from any thread. Rates are over the time since the window began; operations a second, and
// their share of the device's peak, over the time of its forwards. Lines about drafts, work and weights on the SSD are
// there where the engine has them.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "engine/step_observer.h"

namespace deepinfer::engine {

class StatsLine : public StepObserver {
 public:
  void on_step(const StepRecord& record) override;
  bool wants_logits() const override { return false; }
  void on_end(const Usage& usage, FinishReason reason) override;

  int64_t steps() const;  // of the window
  std::string take(const EngineStats& stats, const ExecutorInfo& info);

 private:
  using Clock = std::chrono::steady_clock;

  struct Window {
    int64_t steps = 0, prefill_steps = 0, rows = 0, prefill_rows = 0, tokens = 0;
    int64_t drafts = 0, accepted = 0;       // of verified rows
    int64_t chunks = 0;                     // parts of prompts that are not their last
    int64_t keys = 0;                       // sum over rows of the tokens that they attend over
    int64_t context_min = INT64_MAX, context_max = 0;
    double prefill_s = 0, decode_s = 0;     // forward time of steps with and without prompt rows
    double plan_max_s = 0, forward_max_s = 0, sample_max_s = 0, stream_max_s = 0;
    int64_t ended = 0, aborted = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, preemptions = 0;
    double first_token_s = 0, first_token_max_s = 0;
    Clock::time_point begin = Clock::now();
  };

  mutable std::mutex mutex_;
  Window window_;
  int64_t all_steps_ = 0;
  const Clock::time_point begin_ = Clock::now();
  // When the window began.
  StepTimes times_;
  DraftStats drafts_;
  WorkStats work_;
};

}  // namespace deepinfer::engine
