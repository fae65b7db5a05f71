// A step as a line of text: the plan that ran and what came out. The format of --trace-steps (docs/tracing.md).
//
//   std::string out;
//   append_step_line(record, &out);
//   DI_ASSIGN_OR_RETURN(TracedStep step, parse_step_line(out));
//
// A trace begins with a header line that says what ran. Errors: kInvalidArgument for what is no such line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/step_observer.h"

namespace deepinfer::engine {

constexpr size_t kStepLineBytesMax = 256u << 20;

// What a trace can be compared with later: the plan, the tokens, and of each row of logits its digest.
struct TracedStep {
  sched::Plan plan;
  sched::StepResult result;
  std::vector<uint64_t> digests;   // of the logits rows, in their order
  std::vector<int32_t> likeliest;  // token of each row
  std::vector<double> logprobs;    // of each sample's last token, natural log softmax; 0 where nothing was drawn
  StepMoments at;
};

TracedStep trace_step(const StepRecord& record);
// Fills digests, likeliest and logprobs from logits of plan.step.
void digest_logits(std::span<const float> logits, TracedStep* step);

std::string header_line(const ExecutorInfo& info);
Result<ExecutorInfo> parse_header_line(std::string_view line);

void append_step_line(const TracedStep& step, std::string* out);
Result<TracedStep> parse_step_line(std::string_view line);

}  // namespace deepinfer::engine
