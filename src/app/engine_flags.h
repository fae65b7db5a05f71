// The engine of a command, as its flags say: one list of options and one way from them to an engine.
//
//   EngineFlags flags;  bind_engine(*options, &flags);
//   DI_ASSIGN_OR_RETURN(auto watch, Watch::open(flags.watch));
//   DI_ASSIGN_OR_RETURN(auto engine, make_engine(flags, parts, {.seed = 7, .observer = watch->observer()}));
//
// Errors name the option, or the store that cannot be opened.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/draft_flags.h"
#include "app/kv_tiers.h"
#include "app/run/load.h"
#include "app/watch.h"
#include "engine/engine.h"
#include "grammar/compiler.h"

namespace deepinfer::checkpoint {
struct ModelConfig;
}
namespace deepinfer::kv {
class TierStack;
}

namespace deepinfer::app {

struct EngineFlags {
  RunOptions run;  // device, backend, threads, memory, context
  KvFlags kv;
  DraftFlags drafts;
  WatchFlags watch;
  int sequences = 0, rows = 0, top_k_max = 0;
  int64_t cache_mb = 0, keep = 0;
  bool cache = true;
  std::string ban_tokens;
  std::optional<double> grammar_timeout_s;  // absent: the command's own
  int grammar_threads = 0;
  uint64_t grammar_cache_bytes = 0;

  // Positions of prompt and answer: as asked for, or the model's, at most 8192.
  int64_t context(const checkpoint::ModelConfig& config) const;
  grammar::Compiler::Options grammar(double timeout_s) const;
};

void bind_engine(CommandOptions& options, EngineFlags* flags);

struct EngineExtras {
  uint64_t seed = 0;  // of requests without one
  std::shared_ptr<engine::StepObserver> observer = {};
  std::optional<int> waiting_max = {};
  std::shared_ptr<kv::TierStack>* tiers = nullptr;  // gets the KV tiers, if there are any
};

// Takes the backend out of `parts`.
Result<std::unique_ptr<engine::Engine>> make_engine(const EngineFlags& flags, ModelParts& parts,
                                                    const EngineExtras& extras);

}  // namespace deepinfer::app
