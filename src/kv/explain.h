// Why a prompt was not served from the cache: compared with the prompts before it.
//
//   Explanation e = explain_miss(prompts, prompts.size() - 1, {.block_tokens = 128, .keep = 140});
//   if (e.why == MissReason::kDiffers) ... prompts[e.other], e.common tokens alike, block e.block differs ...
//
// The prompt of the same tenant that has most tokens in common is the one to compare with. Pure; no errors.
#pragma once

#include <cstdint>
#include <span>

#include "kv/block_pool.h"
#include "kv/prompt_log.h"

namespace deepinfer::kv {

enum class MissReason : uint8_t {
  kNone,     // all whole blocks that can be used came from the cache
  kShort,    // the prompt has no whole block before the rows that always run
  kNew,      // no earlier prompt of this tenant begins with the same block
  kDiffers,  // it differs from the most similar one in `block`, and what is before it came from the cache
  kGone,     // blocks from `block` on were there once: they left, passed their time, their tier did not answer, or
             // computing them was faster
};

struct Explanation {
  MissReason why = MissReason::kNone;
  size_t other = 0;  // the most similar prompt before it; only with common > 0
  int common = 0;    // tokens alike from the start
  int usable = 0;    // tokens in whole blocks that the cache could give
  int block = 0;     // the first one that had to be computed
};

struct ExplainShape {
  int block_tokens = kBlockTokens;
  int keep = 140;  // the last prompt rows, which always run
};

Explanation explain_miss(std::span<const LoggedPrompt> prompts, size_t at, const ExplainShape& shape);

}  // namespace deepinfer::kv
