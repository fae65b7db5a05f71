#include "app/bench/workload.h"

#include <algorithm>
#include <chrono>

#include "base/mix.h"
#include "checkpoint/config.h"

namespace deepinfer::app {
namespace {

std::vector<int32_t> random_prompt(const checkpoint::ModelConfig& config, const Workload& load, int number) {
  std::vector<int32_t> ids = {static_cast<int32_t>(config.bos_token_id)};
  uint64_t state = mix_seed(load.seed + mix_seed(static_cast<uint64_t>(number)));
  while (static_cast<int>(ids.size()) < load.prompt_tokens) {
    state = mix_seed(state);
    ids.push_back(static_cast<int32_t>(state % static_cast<uint64_t>(config.vocab_size)));
  }
  return ids;
}

}  // namespace

Result<Measured> measure(LLM& llm, const Workload& load, const std::atomic<bool>* stop) {
  std::vector<PromptInput> prompts;
  for (int i = 0; i < load.prompts; ++i) prompts.emplace_back(random_prompt(llm.config(), load, i));
  engine::Request r;
  r.max_tokens = load.output_tokens;
  r.ignore_end = true;
  r.text = false;
  r.full_prefill = load.full_prefill;
  r.seed = load.seed;
  r.sampling.temperature = 1;
  const auto begin = std::chrono::steady_clock::now();
  GenerateControl control{.stop = stop};
  control.on_progress = [&](const GenerateProgress&) {
    if (load.on_progress) load.on_progress();
  };
  DI_ASSIGN_OR_RETURN(const std::vector<Completion> done, llm.generate(prompts, std::span(&r, 1), control));
  Measured m;
  m.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  double last = 0, first = 1e300;
  for (const Completion& c : done) {
    const Generation& g = c.answers[0];
    DI_RETURN_IF_ERROR(g.error);
    m.prompt_tokens += g.usage.prompt_tokens;
    m.cached_tokens += g.usage.cached_tokens;
    m.output_tokens += g.usage.output_tokens;
    m.first_token_s += g.usage.first_token_s / load.prompts;
    m.first_token_max_s = std::max(m.first_token_max_s, g.usage.first_token_s);
    first = std::min(first, g.usage.first_token_s);
    last = std::max(last, g.usage.total_s);
    const double decode_s = g.usage.total_s - g.usage.first_token_s;
    if (decode_s > 0) m.user_tokens_per_s += (g.usage.output_tokens - 1) / decode_s / load.prompts;
  }
  if (m.first_token_max_s > 0)
    m.prefill_tokens_per_s = static_cast<double>(m.prompt_tokens - m.cached_tokens) / m.first_token_max_s;
  const auto decoded = static_cast<double>(m.output_tokens - load.prompts);
  if (last > first && decoded > 0) m.decode_tokens_per_s = decoded / (last - first);
  return m;
}

}  // namespace deepinfer::app
