#include "app/engine_flags.h"

#include <algorithm>

#include "app/options/command_options.h"
#include "app/options/token_ranges.h"
#include "checkpoint/checkpoint.h"
#include "engine/loading.h"
#include "engine/model_executor.h"
#include "kv/tier_stack.h"
#include "ops/ops.h"

namespace deepinfer::app {
namespace {

constexpr int64_t kEngineContext = 8192;

}  // namespace

void bind_engine(CommandOptions& options, EngineFlags* flags) {
  options.bind("device", &flags->run.device);
  options.bind("backend", &flags->run.backend);
  options.bind("threads", &flags->run.threads);
  options.bind("pin-threads", &flags->run.pin_threads);
  options.bind("host-experts", &flags->run.host_experts);
  options.bind("ram", &flags->run.ram);
  options.bind("context", &flags->run.context);
  options.bind("sequences", &flags->sequences);
  options.bind("rows", &flags->rows);
  options.bind("cache", &flags->cache);
  options.bind("cache-mb", &flags->cache_mb);
  options.bind("keep", &flags->keep);
  options.bind("ban-tokens", &flags->ban_tokens);
  options.bind("top-k-max", &flags->top_k_max);
  options.bind("grammar-timeout", &flags->grammar_timeout_s);
  options.bind("grammar-threads", &flags->grammar_threads);
  options.bind("grammar-cache-bytes", &flags->grammar_cache_bytes);
  bind_kv(options, &flags->kv);
  bind_drafts(options, &flags->drafts);
  bind_watch(options, &flags->watch);
}

int64_t EngineFlags::context(const checkpoint::ModelConfig& config) const {
  return run.context > 0 ? run.context : std::min(kEngineContext, config.max_position_embeddings);
}

grammar::Compiler::Options EngineFlags::grammar(double timeout_s) const {
  grammar::Compiler::Options o;
  o.threads = grammar_threads;
  o.cache_bytes_max = grammar_cache_bytes;
  o.limits.compile_ms = static_cast<uint32_t>(grammar_timeout_s.value_or(timeout_s) * 1000);
  return o;
}

Result<std::unique_ptr<engine::Engine>> make_engine(const EngineFlags& flags, ModelParts& parts,
                                                    const EngineExtras& extras) {
  const checkpoint::ModelConfig& config = parts.checkpoint->config();
  engine::ModelExecutorOptions sizes;
  sizes.context_max = flags.context(config);
  sizes.sequences_max = flags.sequences;
  sizes.rows_max = std::max(flags.rows, flags.sequences);
  DI_ASSIGN_OR_RETURN(sizes.ram_bytes, ram_bytes(flags.run));
  sizes.drafts_max = flags.drafts.drafts;
  engine::EngineOptions options;
  add_drafts(flags.drafts, &options);
  DI_RETURN_IF_ERROR(read_draft_temperatures(parts.checkpoint->directory(), &options));
  if (flags.watch.stats_interval > 0) {
    sizes.count_work = true;
    sizes.peak_flops = engine::peak_flops(*parts.ops, {.device = flags.run.device,
                                                       .threads = flags.run.threads,
                                                       .library_dir = engine::program_directory()});
  }
  DI_ASSIGN_OR_RETURN(std::unique_ptr<engine::ModelExecutor> executor,
                      engine::ModelExecutor::create(parts.checkpoint, std::move(parts.ops), sizes));
  say_placement(executor->info());
  const auto& ends = parts.checkpoint->generation().eos_token_ids;
  options.end_tokens.assign(ends.begin(), ends.end());
  if (options.end_tokens.empty()) options.end_tokens = {static_cast<int32_t>(config.eos_token_id)};
  options.seed = extras.seed;
  options.observer = extras.observer;
  options.waiting_max = extras.waiting_max.value_or(options.waiting_max);
  options.prefix_cache = flags.cache;
  options.host_bytes_max = static_cast<uint64_t>(flags.cache_mb) << 20;
  options.top_k_max = flags.top_k_max;
  DI_ASSIGN_OR_RETURN(options.banned_tokens, parse_token_ranges(flags.ban_tokens));
  if (flags.keep > 0) options.keep_extra = static_cast<int>(flags.keep) - executor->info().window;
  DI_RETURN_IF_ERROR(add_kv_tiers(flags.kv, &options));
  if (extras.tiers != nullptr) *extras.tiers = std::dynamic_pointer_cast<kv::TierStack>(options.tier);
  return engine::Engine::create(std::move(executor), parts.tokenizer, options);
}

}  // namespace deepinfer::app
