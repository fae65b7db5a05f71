// Where the weights of a checkpoint live: GPU memory, RAM, or left on the SSD and read as needed.
//
//   PlacementPlan plan = plan_placement(config, budget_of(probe_machine(dir)));
//   for (const PlacementItem& p : plan.items) print(group_name(p.group), p.layer, p.bytes, tier_name(p.tier));
//
// A pure function of sizes and budgets: parts are taken in the order of how often a token touches their bytes and each
// goes to the fastest tier with room left (see kPlacementOrder in the source). Routed experts and Engram tables are
// placed layer by layer, everything else group by group. `fixed` overrides the tier of a group whatever the budgets
// say. Backends decide how to use a tier; on a machine without GPUs "RAM" means mapped and expected to stay in the page
// cache.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/machine.h"
#include "checkpoint/tensors.h"

namespace deepinfer::checkpoint {

enum class Tier : uint8_t { kGpu, kRam, kSsd };
inline constexpr int kTiers = 3;
std::string_view tier_name(Tier tier);  // "GPU", "RAM", "SSD"

struct PlacementBudget {
  uint64_t gpu_bytes = 0;  // for weights, over all GPUs
  uint64_t ram_bytes = 0;
  std::map<Group, Tier> fixed;
};

// Leaves 15% and 2 GiB of each GPU, and 15% of the free memory and 512 MiB, for KV, activations and the rest of the
// system.
PlacementBudget budget_of(const Machine& machine);

struct PlacementItem {
  Group group = Group::kAttention;
  int layer = -1;  // backbone layer or drafter stage, where the group is placed by layer
  uint64_t bytes = 0;
  Tier tier = Tier::kSsd;
};

struct PlacementPlan {
  std::vector<PlacementItem> items;
  uint64_t bytes[kTiers] = {};
  // Bytes of a group in each tier.
  void sum(Group group, uint64_t (&tiers)[kTiers]) const;
};

PlacementPlan plan_placement(const ModelConfig& config, const PlacementBudget& budget);

// Parameters and bytes of a model, by group and as the totals of section 17.
struct ModelSizes {
  uint64_t parameters[kGroups] = {};
  uint64_t bytes[kGroups] = {};
  uint64_t total_parameters = 0;
  uint64_t total_bytes = 0;
  uint64_t backbone_parameters = 0;  // text backbone without Engram and drafter
  // matrix elements that one decoded token meets: head yes, embedding and Engram tables no
  uint64_t active_parameters = 0;
  double kv_bytes_per_token = 0;     // compressed KV and index keys of all sources
  uint64_t window_bytes_per_sequence = 0;  // window KV of all layers and drafter rings, at sliding_window rows
};
ModelSizes model_sizes(const ModelConfig& config);

}  // namespace deepinfer::checkpoint
