// What the tests of offload on the CPU and on a GPU share: a small model's sizes, and logits to compare.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/config.h"
#include "model/kv_memory.h"
#include "model/model.h"
#include "model/sequence.h"

namespace deepinfer::testing {

inline constexpr int kPages = 8, kSlots = 4;

inline model::Options small_model(std::shared_ptr<checkpoint::WeightStore> store) {
  model::Options o;
  o.limits.rows_max = 64;
  o.limits.outputs_max = 64;
  o.limits.sequences_max = kSlots;
  o.limits.context_max = 256;
  o.pages = kPages;
  o.slots = kSlots;
  o.store = std::move(store);
  return o;
}

inline std::vector<int32_t> prompt(int n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(3 + random() % 6000);
  return out;
}

// All logits of a prompt that is read in a large piece, small ones and single tokens; and of a draft round.
inline Result<std::vector<float>> all_logits(model::Model& m, uint32_t seed = 1) {
  model::KvAllocator kv(kPages, kSlots);
  DI_ASSIGN_OR_RETURN(model::Sequence s, model::Sequence::create(m, kv));
  const std::vector<int32_t> tokens = prompt(90, seed);
  std::vector<float> all, part;
  size_t at = 0;
  for (size_t piece = 0; at < tokens.size(); ++piece) {
    const size_t n = std::min<size_t>(piece == 0 ? 64 : piece == 1 ? 5 : 1, tokens.size() - at);
    DI_RETURN_IF_ERROR(s.append(std::span(tokens).subspan(at, n), static_cast<int32_t>(n), &part));
    all.insert(all.end(), part.begin(), part.end());
    at += n;
  }
  DI_ASSIGN_OR_RETURN(const model::Draft d, s.draft(11, static_cast<int32_t>(m.config().dspark_block_size), true));
  all.insert(all.end(), d.logits.begin(), d.logits.end());
  return all;
}

}  // namespace deepinfer::testing
