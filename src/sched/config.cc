#include "sched/config.h"

#include <algorithm>

namespace deepinfer::sched {

Status check(const SchedulerConfig& c) {
  const auto bad = [](std::string_view what) { return make_error(Code::kInvalidArgument, "scheduler: {}", what); };
  if (c.blocks < 1 || c.slots < 1 || c.block_tokens < 1) {
    return make_error(Code::kInvalidArgument,
                      "scheduler: {} KV blocks of {} tokens and {} state slots; it needs at least one of each",
                      c.blocks, c.block_tokens, c.slots);
  }
  if (c.window < 1 || c.encoder_layers < 1 || c.history_tokens < 0 || c.context_max < 2)
    return bad("the model's shape is out of range");
  const int back = std::max(c.backtrack, c.drafts_max + 1);
  if (c.keep < c.window + back) {
    return make_error(Code::kInvalidArgument,
                      "scheduler: KEEP is {}, but decoding needs at least window + max(backtracking, drafts + 1) = {} "
                      "+ {} prompt rows; raise it to {} or more",
                      c.keep, c.window, back, c.window + back);
  }
  if (c.ring_slots < c.window + back) {
    return make_error(Code::kInvalidArgument, "scheduler: window rings of {} rows are too small; {} are needed",
                      c.ring_slots, c.window + back);
  }
  if (c.sequences_max < 1 || c.rows_max < c.sequences_max || c.outputs_max < c.sequences_max) {
    return make_error(Code::kInvalidArgument,
                      "scheduler: a step of {} rows and {} logits rows is too small for {} sequences", c.rows_max,
                      c.outputs_max, c.sequences_max);
  }
  if (c.blocks_per_step_max > 0 && c.blocks_per_step_max < (c.context_max + c.block_tokens - 1) / c.block_tokens) {
    return make_error(Code::kInvalidArgument,
                      "scheduler: {} block ids a step are too few for one sequence of context_max = {} tokens",
                      c.blocks_per_step_max, c.context_max);
  }
  if (c.drafts_max < 0 || c.waiting_max < 1 || c.tenants_max < 1 || c.samples_max < 1 || c.prefill_rows_min < 1)
    return bad("a limit is out of range");
  if (c.tier_gets_max < 0 || c.tier_puts_max < 0 || !(c.tier_wait_s >= 0))
    return bad("a limit of lower tiers is negative");
  if (c.skip_ahead_max < 0 || c.skips_max < 0 || c.preemptions_max < 0) return bad("a policy value is negative");
  return {};
}

std::string_view limit_name(Limit limit) {
  switch (limit) {
    case Limit::kWaiting: return "waiting_max";
    case Limit::kTenants: return "tenants_max";
    case Limit::kSamples: return "samples_max";
    case Limit::kContext: return "context_max";
    case Limit::kBlocks: return "blocks";
    case Limit::kSlots: return "slots";
    case Limit::kDrafts: return "drafts_max";
  }
  return "?";
}

}  // namespace deepinfer::sched
