// Timed runs of an engine on made-up prompts: what `bench offline` and `sweep` measure.
//
//   Workload load{.prompts = 8, .prompt_tokens = 512, .output_tokens = 64};
//   DI_ASSIGN_OR_RETURN(Measured m, measure(llm, load, &stop));
//
// Prompts are random token ids, all different, and their answers never end early, so that every run does the same work.
// Times are those of the engine's own usage figures; a mean over answers where there are several.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "engine/llm.h"

namespace deepinfer::app {

struct Workload {
  int prompts = 1;  // at once
  int prompt_tokens = 512;
  int output_tokens = 1;
  uint64_t seed = 0;
  bool full_prefill = false;
  std::function<void()> on_progress = {};
};

struct Measured {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  double seconds = 0;
  double first_token_s = 0;         // mean over answers: the latency of prefill
  double first_token_max_s = 0;
  double prefill_tokens_per_s = 0;  // uncached prompt tokens until the last first token
  double decode_tokens_per_s = 0;   // all answers together, from the first token of all to the last
  double user_tokens_per_s = 0;     // one answer, mean
};

Result<Measured> measure(LLM& llm, const Workload& load, const std::atomic<bool>* stop);

}  // namespace deepinfer::app
