// What the model tests share: checkpoints by the names of the golden files.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "tests/support/checkpoints.h"

namespace deepinfer::testing {

// "tiny-random", "tiny-wide-random" or "tiny-trained" (the bundled model). Ends the program with a message on failure.
inline std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const std::string& name) {
  const std::string directory = name == "tiny-trained" ? "models/tiny" : name == "tiny-random" ? tiny_random_dir() : tiny_wide_random_dir();
  Result<checkpoint::Checkpoint> c = checkpoint::Checkpoint::open(directory);
  if (!c.ok()) {
    std::fprintf(stderr, "%s\n", c.status().to_string().c_str());
    std::abort();
  }
  return std::make_shared<const checkpoint::Checkpoint>(std::move(c).value());
}

}  // namespace deepinfer::testing
