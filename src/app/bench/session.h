// What `bench` and `sweep` share: the options of the engine, a model that is ready, points that are run several times.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/bench/workload.h"
#include "base/status.h"
#include "engine/llm.h"

namespace deepinfer::app {

class CommandOptions;

struct BenchFlags {
  std::string model, prefill;
  std::string ban_tokens;
  LlmOptions llm;
  std::string ram;
  int64_t cache_mb = 0;
  int prompt_tokens = 0, output_tokens = 0, repeats = 0;
  uint64_t seed = 0;
  bool cache = true, quiet = false, json = false;
};

// Binds what both commands take.
void bind_bench(CommandOptions& options, BenchFlags* flags);

// `sequences` answers of `tokens` tokens must fit, where no option says more.
Result<std::unique_ptr<LLM>> open_for_bench(BenchFlags flags, int sequences, int tokens,
                                            std::shared_ptr<engine::StepObserver> observer);

// Medians over the repeats, each figure by itself. Every run has prompts of its own, so that none is cached.
Result<Measured> measure_median(LLM& llm, Workload load, int repeats, const std::atomic<bool>* stop);

}  // namespace deepinfer::app
