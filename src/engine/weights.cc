#include "engine/weights.h"

#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/placement.h"
#include "checkpoint/store/weight_store.h"
#include "ops/ops.h"

namespace deepinfer::engine {

using checkpoint::WeightStore;

uint64_t text_weight_bytes(const checkpoint::ModelConfig& config) {
  const checkpoint::ModelSizes sizes = checkpoint::model_sizes(config);
  return sizes.total_bytes - sizes.bytes[static_cast<int>(checkpoint::Group::kVision)];
}

Result<std::shared_ptr<WeightStore>> open_weights(const checkpoint::Checkpoint& checkpoint, const ops::Ops& ops,
                                                  uint64_t ram_bytes, uint64_t other_bytes) {
  const uint64_t weights = text_weight_bytes(checkpoint.config());
  uint64_t room = 0;
  if (ram_bytes > 0) {
    const uint64_t used = own_memory() + other_bytes;
    room = ram_bytes > used ? ram_bytes - used : 0;
  } else {
    // Mapped weights need no room of their own as long as the page cache can hold them.
    const uint64_t free = available_memory().bytes;
    if (!ops.capabilities().offload || weights + other_bytes <= free) return std::shared_ptr<WeightStore>();
    const uint64_t kept = free / 100 * 15 + (uint64_t{512} << 20) + other_bytes;
    room = free > kept ? free - kept : 0;
  }
  if (weights <= room) return std::shared_ptr<WeightStore>();
  if (!ops.capabilities().offload) {
    return make_error(Code::kUnsupported, "--ram leaves weights on the SSD, which backend {} cannot; use fast.",
                      ops.capabilities().backend);
  }
  if (const uint64_t least = checkpoint::least_store_bytes(checkpoint.config()); room < least) {
    return make_error(
        Code::kResourceExhausted,
        "This model needs at least {} of memory for weights; {} are left of {}, beside {} for KV, work and the "
        "program. {}",
        format_bytes(least), format_bytes(room), ram_bytes > 0 ? "--ram" : "what is free",
        format_bytes(own_memory() + other_bytes),
        ram_bytes > 0 ? fmt::format("Give --ram {}MB, or less context (--context) or fewer sequences.",
                                    (least + own_memory() + other_bytes) / 1'000'000 + 2)
                      : std::string("Allow less context (--context) or fewer sequences."));
  }
  return WeightStore::open(checkpoint, {.ram_bytes = room});
}

}  // namespace deepinfer::engine
