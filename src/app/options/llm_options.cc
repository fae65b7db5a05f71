#include "app/options/llm_options.h"

#include "app/options/token_ranges.h"
#include "base/format.h"
#include "engine/llm.h"

namespace deepinfer::app {

Status read_llm_options(const OptionValues& values, LlmOptions* options) {
  values.read("device", &options->device);
  values.read("backend", &options->backend);
  values.read("threads", &options->threads);
  values.read("pin-threads", &options->pin_threads);
  values.read("host-experts", &options->host_experts);
  std::string ram;
  values.read("ram", &ram);
  if (!ram.empty()) {
    DI_ASSIGN_OR_RETURN(options->ram_bytes, parse_bytes(ram));
  }
  values.read("context", &options->context);
  values.read("sequences", &options->sequences);
  values.read("rows", &options->rows);
  values.read("keep", &options->keep);
  values.read("grammar-timeout", &options->grammar_timeout_s);
  values.read("grammar-threads", &options->grammar_threads);
  values.read("grammar-cache-bytes", &options->grammar_cache_bytes);
  engine::EngineOptions& e = options->engine;
  values.read("cache", &e.prefix_cache);
  uint64_t cache_mb = e.host_bytes_max >> 20;
  values.read("cache-mb", &cache_mb);
  e.host_bytes_max = cache_mb << 20;
  values.read("top-k-max", &e.top_k_max);
  std::string banned;
  values.read("ban-tokens", &banned);
  DI_ASSIGN_OR_RETURN(e.banned_tokens, parse_token_ranges(banned));
  return Status();
}

}  // namespace deepinfer::app
