#include "kv/explain.h"

#include <algorithm>

namespace deepinfer::kv {

Explanation explain_miss(std::span<const LoggedPrompt> prompts, size_t at, const ExplainShape& shape) {
  const LoggedPrompt& p = prompts[at];
  Explanation e;
  const auto size = static_cast<int>(p.tokens.size());
  e.usable = std::max(0, size - shape.keep) / shape.block_tokens * shape.block_tokens;
  e.block = p.cached / shape.block_tokens;
  for (size_t i = 0; i < at; ++i) {
    if (prompts[i].tenant != p.tenant) continue;
    const auto ends = std::ranges::mismatch(prompts[i].tokens, p.tokens);
    const auto common = static_cast<int>(ends.in2 - p.tokens.begin());
    if (common < e.common || common == 0) continue;  // of equal ones the latest
    e.common = common;
    e.other = i;
  }
  const int whole = std::min(e.common / shape.block_tokens * shape.block_tokens, e.usable);
  if (e.usable == 0) e.why = MissReason::kShort;
  else if (p.cached >= e.usable) e.why = MissReason::kNone;
  else if (whole > p.cached) e.why = MissReason::kGone;
  else if (e.common < shape.block_tokens) e.why = MissReason::kNew;
  else e.why = MissReason::kDiffers;
  return e;
}

}  // namespace deepinfer::kv
