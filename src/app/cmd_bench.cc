// deepinfer bench offline: how fast an engine reads prompts and writes answers, many at once.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/bench/session.h"
#include "app/commands.h"
#include "app/options/command_options.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/result.h"
#include "app/watch.h"

namespace deepinfer::app {
namespace {

struct Flags : BenchFlags {
  std::string what;
  int prompts = 0;
  WatchFlags watch;
};

std::string report(const Flags& f, const Measured& m) {
  if (f.json) {
    return fmt::format(
        "{{\"prompts\":{},\"prompt_tokens\":{},\"output_tokens\":{},\"repeats\":{},\"seconds\":{:.6f},\"first_token_"
        "s\":{:.6f},"
        "\"first_token_max_s\":{:.6f},\"prefill_tokens_per_s\":{:.3f},\"decode_tokens_per_s\":{:.3f},\"user_tokens_per_"
        "s\":{:.3f}}}\n",
        f.prompts, f.prompt_tokens, f.output_tokens, f.repeats, m.seconds, m.first_token_s, m.first_token_max_s,
        m.prefill_tokens_per_s, m.decode_tokens_per_s, m.user_tokens_per_s);
  }
  return fmt::format(
      "{} prompts of {} tokens at once, answers of {}; medians of {} runs\n"
      "prefill  {:10.1f} prompt tokens/s    first token after {:.3f} s, the last one's after {:.3f} s\n"
      "decode   {:10.1f} answer tokens/s    {:.1f} tokens/s an answer\n",
      f.prompts, f.prompt_tokens, f.output_tokens, f.repeats, m.prefill_tokens_per_s, m.first_token_s,
      m.first_token_max_s, m.decode_tokens_per_s, m.user_tokens_per_s);
}

int bench(Flags flags) {
  flags.llm.count_work = flags.watch.stats_interval > 0;
  Result<std::unique_ptr<Watch>> watch = Watch::open(flags.watch);
  if (!watch.ok()) return fail(watch.status());
  Interrupt interrupt;
  Result<std::unique_ptr<LLM>> llm =
      open_for_bench(flags, flags.prompts, flags.prompt_tokens + flags.output_tokens, watch.value()->observer());
  if (!llm.ok()) return fail(llm.status());
  watch.value()->begin(llm.value()->engine().info());
  const Workload load{.prompts = flags.prompts,
                      .prompt_tokens = flags.prompt_tokens,
                      .output_tokens = flags.output_tokens,
                      .seed = flags.seed,
                      .full_prefill = flags.prefill == "full",
                      .on_progress = [&] { watch.value()->tick(llm.value()->engine()); }};
  const Result<Measured> m = measure_median(*llm.value(), load, flags.repeats, &interrupt.flag());
  if (!m.ok()) return fail(m.status());
  llm.value().reset();  // its last steps are traced, too
  if (const Status status = watch.value()->close(); !status.ok()) return fail(status);
  return print_result(report(flags, m.value()));
}

void setup_bench(CLI::App& app, Run* run) {
  auto flags = std::make_shared<Flags>();
  auto options = std::make_shared<CommandOptions>(app, "bench");
  app.add_option("what", flags->what, "offline: prompts in, answers out, in this process")
      ->required()
      ->check(CLI::IsMember({"offline"}));
  bind_bench(*options, flags.get());
  bind_watch(*options, &flags->watch);
  options->bind("prompts", &flags->prompts);
  options->bind("json", &flags->json);
  *run = [flags, options] { return options->run([&] { return bench(*flags); }); };
}

const Command kBench("bench", "Measure how fast prompts are read and answers are written", &setup_bench);

}  // namespace
}  // namespace deepinfer::app
