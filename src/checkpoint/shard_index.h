// The shards of a checkpoint folder and, if there is an index file, which shard holds which tensor (internal to
// checkpoint/).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deepinfer::checkpoint {

struct ShardIndex {
  std::vector<std::string> files;                          // plain names, sorted
  // name as written, number of its file; empty without an index file
  std::vector<std::pair<std::string, uint32_t>> tensors;
  bool has_index = false;
};

// Reads model.safetensors.index.json, or takes model.safetensors alone. Checks that every shard exists and names those
// that do not.
Result<ShardIndex> read_shard_index(const std::string& directory);

// `name` without a leading "model.".
std::string_view canonical_name(std::string_view name);

}  // namespace deepinfer::checkpoint
