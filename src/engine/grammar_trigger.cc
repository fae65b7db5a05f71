#include "engine/grammar_trigger.h"

#include <utility>

namespace deepinfer::engine {

GrammarTrigger::GrammarTrigger(std::vector<int32_t> ids, int32_t bound)
    : ids_(std::move(ids)), shorter_(ids_.size() + 1, 0), bound_(bound) {
  for (size_t i = 1, k = 0; i < ids_.size(); ++i) {
    while (k > 0 && ids_[i] != ids_[k]) k = shorter_[k];
    if (ids_[i] == ids_[k]) ++k;
    shorter_[i + 1] = k;
  }
}

void GrammarTrigger::take(int32_t token) {
  if (open()) return;
  while (matched_ > 0 && ids_[matched_] != token) matched_ = shorter_[matched_];
  if (ids_[matched_] == token) ++matched_;
  if (forcing_ && forced_ + 1 < ids_.size()) ++forced_;
  forcing_ = forcing_ || token == bound_;
}

}  // namespace deepinfer::engine
