#include "app/bench/session.h"

#include <algorithm>

#include "app/options/command_options.h"
#include "app/options/token_ranges.h"
#include "app/run/find_model.h"
#include "base/format.h"

namespace deepinfer::app {
namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

void bind_bench(CommandOptions& options, BenchFlags* flags) {
  LlmOptions& o = flags->llm;
  options.bind("model", &flags->model);
  options.bind("device", &o.device);
  options.bind("backend", &o.backend);
  options.bind("threads", &o.threads);
  options.bind("pin-threads", &o.pin_threads);
  options.bind("host-experts", &o.host_experts);
  options.bind("ram", &flags->ram);
  options.bind("context", &o.context);
  options.bind("prefill", &flags->prefill);
  options.bind("sequences", &o.sequences);
  options.bind("rows", &o.rows);
  options.bind("keep", &o.keep);
  options.bind("cache", &flags->cache);
  options.bind("cache-mb", &flags->cache_mb);
  options.bind("top-k-max", &o.engine.top_k_max);
  options.bind("ban-tokens", &flags->ban_tokens);
  options.bind("seed", &flags->seed);
  options.bind("prompt-tokens", &flags->prompt_tokens);
  options.bind("output-tokens", &flags->output_tokens);
  options.bind("repeats", &flags->repeats);
  options.bind("quiet", &flags->quiet);
}

Result<std::unique_ptr<LLM>> open_for_bench(BenchFlags flags, int sequences, int tokens,
                                            std::shared_ptr<engine::StepObserver> observer) {
  LlmOptions& o = flags.llm;
  DI_ASSIGN_OR_RETURN(o.model, find_model(flags.model));
  DI_ASSIGN_OR_RETURN(o.engine.banned_tokens, parse_token_ranges(flags.ban_tokens));
  if (!flags.ram.empty()) {
    DI_ASSIGN_OR_RETURN(o.ram_bytes, parse_bytes(flags.ram));
  }
  o.engine.prefix_cache = flags.cache;
  o.engine.host_bytes_max = static_cast<uint64_t>(flags.cache_mb) << 20;
  o.engine.observer = std::move(observer);
  o.sequences = std::max(o.sequences, sequences);
  if (o.context == 0) o.context = tokens + 1;
  return LLM::open(o);
}

Result<Measured> measure_median(LLM& llm, Workload load, int repeats, const std::atomic<bool>* stop) {
  std::vector<Measured> runs;
  for (int i = 0; i <= repeats; ++i) {
    DI_ASSIGN_OR_RETURN(const Measured m, measure(llm, load, stop));
    ++load.seed;
    if (i > 0) runs.push_back(m);
  }
  Measured out = runs.front();
  for (double Measured::*figure :
       {&Measured::seconds, &Measured::first_token_s, &Measured::first_token_max_s, &Measured::prefill_tokens_per_s,
        &Measured::decode_tokens_per_s, &Measured::user_tokens_per_s}) {
    std::vector<double> values;
    for (const Measured& m : runs) values.push_back(m.*figure);
    out.*figure = median(std::move(values));
  }
  return out;
}

}  // namespace deepinfer::app
