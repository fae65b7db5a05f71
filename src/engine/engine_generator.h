// The same as engine/generator.h on an engine with a prefix cache: a prompt that goes on where an earlier one, or its
// answer, ended costs its new tokens only. What `deepinfer run` chats with.
//
//   DI_ASSIGN_OR_RETURN(auto generator, EngineGenerator::create(checkpoint, std::move(ops), context));
//   GenerateRequest request{.prompt = ids, .seed = 7, .stop_tokens = {eos}};
//   DI_ASSIGN_OR_RETURN(GenerateResult r, generator->generate(request, [&](int32_t token) { return true; }, &stop));
//
// Tokens are those of Generator, bit for bit, cached or not (docs/determinism.md). KV memory: blocks for one context,
// which hold the cache as well. One prompt at a time, from one thread; `stop` is looked at every 50 ms at least.
// Errors: those of Generator and of ModelExecutor::create. `sample` must be 0.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/generator.h"

namespace deepinfer::checkpoint {
class Checkpoint;
}
namespace deepinfer::ops {
class Ops;
}

namespace deepinfer::engine {

class EngineGenerator {
 public:
  // context: positions, at most the config's max_position_embeddings. ram_bytes: ModelExecutorOptions.
  static Result<std::unique_ptr<EngineGenerator>> create(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                                         std::unique_ptr<ops::Ops> ops, int64_t context,
                                                         uint64_t ram_bytes = 0, const DraftOptions& drafts = {});

  EngineStats stats() { return engine_->stats(); }
  const ExecutorInfo& info() const { return engine_->info(); }
  Result<GenerateResult> generate(const GenerateRequest& request, const Generator::Sink& sink,
                                  const std::atomic<bool>* stop);

 private:
  explicit EngineGenerator(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  std::unique_ptr<Engine> engine_;
};

}  // namespace deepinfer::engine
