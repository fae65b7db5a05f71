#include "checkpoint/placement.h"

#include <algorithm>
#include <array>

#include "numeric/quantize.h"

namespace deepinfer::checkpoint {
namespace {

// Bytes read per token and byte stored, highest first: what every token reads, then experts (a token reads k of n),
// then tables of which a token reads a few rows.
constexpr std::array<Group, kGroups> kPlacementOrder = {
    Group::kAttention,     Group::kSharedExperts,  Group::kHead,   Group::kEngramDense, Group::kDrafter,
    Group::kRoutedExperts, Group::kDrafterExperts, Group::kVision, Group::kEmbedding,   Group::kEngramTables};

bool by_layer(Group group) {
  return group == Group::kRoutedExperts || group == Group::kDrafterExperts || group == Group::kEngramTables;
}

uint64_t less(uint64_t bytes, double share, uint64_t fixed) {
  const uint64_t kept = static_cast<uint64_t>(static_cast<double>(bytes) * share);
  return kept > fixed ? kept - fixed : 0;
}

}  // namespace

std::string_view tier_name(Tier tier) {
  switch (tier) {
    case Tier::kGpu: return "GPU";
    case Tier::kRam: return "RAM";
    case Tier::kSsd: return "SSD";
  }
  return "?";
}

PlacementBudget budget_of(const Machine& machine) {
  PlacementBudget budget;
  for (const Gpu& gpu : machine.gpus) budget.gpu_bytes += less(gpu.memory, 0.85, uint64_t{2} << 30);
  budget.ram_bytes = less(machine.ram_free, 0.85, uint64_t{512} << 20);
  return budget;
}

void PlacementPlan::sum(Group group, uint64_t (&tiers)[kTiers]) const {
  std::fill(std::begin(tiers), std::end(tiers), 0);
  for (const PlacementItem& item : items) {
    if (item.group == group) tiers[static_cast<int>(item.tier)] += item.bytes;
  }
}

PlacementPlan plan_placement(const ModelConfig& config, const PlacementBudget& budget) {
  std::array<std::map<int, uint64_t>, kGroups> parts;
  for (const TensorSpec& spec : expected_tensors(config)) {
    parts[static_cast<size_t>(spec.group)][by_layer(spec.group) ? spec.layer : -1] += stored_bytes(spec);
  }
  PlacementPlan plan;
  uint64_t room[kTiers] = {budget.gpu_bytes, budget.ram_bytes, UINT64_MAX};
  for (const Group group : kPlacementOrder) {
    const auto fixed = budget.fixed.find(group);
    for (const auto& [layer, bytes] : parts[static_cast<size_t>(group)]) {
      int tier = 0;
      if (fixed != budget.fixed.end()) tier = static_cast<int>(fixed->second);
      else while (room[tier] < bytes) ++tier;
      room[tier] -= std::min(room[tier], bytes);
      plan.bytes[tier] += bytes;
      plan.items.push_back({group, layer, bytes, static_cast<Tier>(tier)});
    }
  }
  return plan;
}

ModelSizes model_sizes(const ModelConfig& config) {
  ModelSizes s;
  for (const TensorSpec& spec : expected_tensors(config)) {
    const uint64_t n = parameters(spec), bytes = stored_bytes(spec);
    s.parameters[static_cast<int>(spec.group)] += n;
    s.bytes[static_cast<int>(spec.group)] += bytes;
    s.total_parameters += n;
    s.total_bytes += bytes;
    const bool image = spec.name.starts_with("image_");
    const bool engram = spec.group == Group::kEngramTables || spec.group == Group::kEngramDense;
    const bool other =
        spec.group == Group::kVision || spec.group == Group::kDrafter || spec.group == Group::kDrafterExperts || image;
    if (!other && !engram) s.backbone_parameters += n;
    if (other || spec.group == Group::kEmbedding || spec.group == Group::kEngramTables || spec.shape.size() < 2)
      continue;
    if (spec.group == Group::kEngramDense && !spec.name.ends_with("wkv.weight")) continue;
    if (spec.group == Group::kRoutedExperts) {
      s.active_parameters +=
          n * static_cast<uint64_t>(config.num_experts_per_tok) / static_cast<uint64_t>(config.n_routed_experts);
    } else {
      s.active_parameters += n;
    }
  }
  s.kv_bytes_per_token = static_cast<double>(config.kv_bytes_per_block()) / kBlockTokens;
  s.window_bytes_per_sequence =
      static_cast<uint64_t>(config.sliding_window * (config.num_hidden_layers + config.num_nextn_predict_layers)) *
      numeric::window_record_bytes(static_cast<size_t>(config.head_dim));
  return s;
}

}  // namespace deepinfer::checkpoint
