// Opens a model folder and makes it ready to generate, with a progress bar when that takes over a second.
//
//   DI_ASSIGN_OR_RETURN(LoadedModel loaded, load_model(dir, options, &stop));
//
// Weights stay mapped; they are read once ahead if they fit into memory, so that the first answer does not wait for
// single pages. Errors say what is wrong with the folder, that tokenizer.json is another model's, or how much memory is
// needed and there is.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "app/run/options.h"
#include "base/status.h"
#include "engine/engine_generator.h"
#include "text/tokenizer.h"

namespace deepinfer::checkpoint {
class Checkpoint;
}

namespace deepinfer::ops {
class Ops;
}

namespace deepinfer::engine {
struct ExecutorInfo;
}

namespace deepinfer::app {

// An opened model that nothing runs on yet.
struct ModelParts {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  text::Tokenizer tokenizer;
  std::unique_ptr<ops::Ops> ops;
};

// RunOptions::ram in bytes, 0 if none is given.
Result<uint64_t> ram_bytes(const RunOptions& options);

// A line on standard error if weights lie beyond the GPU's memory: where, and how they come.
void say_placement(const engine::ExecutorInfo& info);

Result<ModelParts> load_parts(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop);

struct LoadedModel {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  text::Tokenizer tokenizer;
  std::unique_ptr<engine::EngineGenerator> generator;
};

Result<LoadedModel> load_model(const std::string& dir, const RunOptions& options, const std::atomic<bool>* stop);

}  // namespace deepinfer::app
