#include "checkpoint/store/store_plan.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/io_queue.h"
#include "checkpoint/tensors.h"

namespace deepinfer::checkpoint {
namespace {

constexpr uint64_t kRowCacheLeast = 1 << 20, kRowCacheMost = 256 << 20;
constexpr uint64_t kPageEdges = 2 * kIoAlignment;  // what reading whole pages adds to a tensor at most

struct Sizes {
  uint64_t dense = 0, embedding = 0, expert = 0, slot = 0;
  std::vector<uint64_t> tables;
  int64_t experts = 0, experts_of_a_row = 0;
};

// Tensors of one expert are counted once: all experts of a model have one shape.
Sizes measure(const ModelConfig& c) {
  Sizes s;
  for (const TensorSpec& spec : expected_tensors(c)) {
    const uint64_t bytes = stored_bytes(spec);
    switch (spec.group) {
      case Group::kVision:
        break;
      case Group::kRoutedExperts:
      case Group::kDrafterExperts:
        break;
      case Group::kEngramTables:
        s.tables.push_back(bytes + 2 * kPageEdges);
        break;
      case Group::kEmbedding:
        if (spec.name == "embed.weight") {
          s.embedding = bytes + kPageEdges;
        } else {
          s.dense += bytes + kPageEdges;
        }
        break;
      default:
        s.dense += bytes + 2 * kPageEdges;
    }
  }
  const int64_t D = c.hidden_size, I = c.moe_intermediate_size;
  for (const auto& [rows, cols] : {std::pair{I, D}, std::pair{D, I}, std::pair{I, D}}) {
    const auto codes = static_cast<uint64_t>(rows * cols / 2), scales = static_cast<uint64_t>(rows * cols / 32);
    s.expert += codes + scales;
    s.slot += io_aligned(codes) + io_aligned(scales) + 2 * kIoAlignment;
  }
  s.experts = c.num_hidden_layers * c.n_routed_experts + c.num_nextn_predict_layers * c.dspark_n_routed_experts;
  s.experts_of_a_row = std::max(c.num_experts_per_tok, c.has_drafter() ? c.dspark_num_experts_per_tok : 0);
  return s;
}

int64_t least_slots(const Sizes& s) { return std::min(s.experts, s.experts_of_a_row + 2); }

uint64_t least_bytes(const Sizes& s) {
  return s.dense + static_cast<uint64_t>(least_slots(s)) * s.slot + (s.tables.size() + 1) * kRowCacheLeast;
}

}  // namespace

uint64_t least_store_bytes(const ModelConfig& config) { return least_bytes(measure(config)); }

Result<StorePlan> plan_store(const ModelConfig& config, const StoreBudget& budget) {
  const Sizes s = measure(config);
  const uint64_t row_tables = s.tables.size() + 1;
  const uint64_t least = least_bytes(s);
  if (budget.ram_bytes < least) {
    return make_error(
        Code::kResourceExhausted,
        "{} of memory for weights are too few: {} are read for every token, and {} experts of {} and rows "
        "of tables need {} more.",
        format_bytes(budget.ram_bytes), format_bytes(s.dense), least_slots(s), format_bytes(s.slot),
        format_bytes(least - s.dense));
  }
  StorePlan p;
  p.slot_bytes = s.slot;
  p.experts = s.experts;
  p.expert_bytes = s.expert;
  for (uint64_t t : s.tables) p.table_bytes += t;
  const uint64_t all_experts = static_cast<uint64_t>(s.experts) * s.slot;
  uint64_t room = budget.ram_bytes - s.dense;
  p.dense_bytes = s.dense;
  p.embedding_resident = room >= s.embedding + std::max(all_experts / 4, least - s.dense);
  if (p.embedding_resident) {
    p.dense_bytes += s.embedding;
    room -= s.embedding;
  }
  uint64_t rows = p.embedding_resident ? 0 : 1;
  for (uint64_t t : s.tables) {
    const bool fits = room >= all_experts + t + row_tables * kRowCacheLeast;
    p.table_resident.push_back(fits);
    if (fits) {
      p.dense_bytes += t;
      room -= t;
    } else {
      ++rows;
    }
  }
  if (rows > 0) {
    const uint64_t spare = room > all_experts ? room - all_experts : room / 16;
    p.row_cache_bytes = std::clamp(spare / rows, kRowCacheLeast, kRowCacheMost);
    room -= rows * p.row_cache_bytes;
  }
  p.slots = std::min(s.experts, static_cast<int64_t>(room / s.slot));
  p.total_bytes = p.dense_bytes + static_cast<uint64_t>(p.slots) * s.slot + rows * p.row_cache_bytes;
  return p;
}

}  // namespace deepinfer::checkpoint
