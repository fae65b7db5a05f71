// Writes checkpoints with random weights (spec/model.md 19.4): the same bytes for the same config and seed anywhere.
//
//   DI_RETURN_IF_ERROR(write_random_checkpoint(tiny_config(), "out/tiny-random", {.seed = 41}));
//
// Tensors are made and written in pieces by several threads; memory stays at a few MiB a thread. The disk must have
// room for all of it before anything is written (kResourceExhausted says how much). A folder that already holds a
// config.json is refused. config.json is written last: a folder without it is an unfinished one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "checkpoint/config.h"

namespace deepinfer::checkpoint {

struct RandomOptions {
  uint64_t seed = 41;
  int threads = 0;  // 0: available_cores()
  // Payload of a shard. 0: 15,000,000 as 19.4 says, and 5 GB for checkpoints above 1 GB, which would have thousands of
  // shards.
  uint64_t shard_bytes = 0;
  bool zeros = false;  // no values at all: files with holes, which take no disk space; for trying out sizes
  std::string config_json;  // content of config.json; empty: config.to_json()
  // payload bytes; called by the calling thread's workers in turn
  std::function<void(uint64_t done, uint64_t total)> progress;
};

// Payload bytes of such a checkpoint.
uint64_t random_checkpoint_bytes(const ModelConfig& config);

Status write_random_checkpoint(const ModelConfig& config, const std::string& directory, const RandomOptions& options);

}  // namespace deepinfer::checkpoint
