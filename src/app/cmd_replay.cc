// deepinfer replay TRACE: runs the steps of a trace again and compares what comes out.

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/options/command_options.h"
#include "app/run/find_model.h"
#include "app/run/load.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/result.h"
#include "checkpoint/checkpoint.h"
#include "engine/trace/replay.h"
#include "engine/trace/writers.h"
#include "ops/ops.h"

namespace deepinfer::app {
namespace {

struct ReplayFlags {
  std::string file, model, trace_chrome;
  RunOptions run;
};

Result<engine::ReplayReport> run(const ReplayFlags& flags) {
  DI_ASSIGN_OR_RETURN(engine::Replay replay, engine::Replay::open(flags.file));
  std::shared_ptr<engine::ChromeTrace> chrome;
  if (!flags.trace_chrome.empty()) {
    DI_ASSIGN_OR_RETURN(chrome, engine::ChromeTrace::open(flags.trace_chrome));
  }
  DI_ASSIGN_OR_RETURN(const std::string dir, find_model(flags.model));
  Interrupt interrupt;
  DI_ASSIGN_OR_RETURN(ModelParts parts, load_parts(dir, flags.run, &interrupt.flag()));
  DI_ASSIGN_OR_RETURN(auto executor,
                      engine::ModelExecutor::create(parts.checkpoint, std::move(parts.ops), replay.executor_options()));
  DI_ASSIGN_OR_RETURN(const engine::ReplayReport report, replay.run(*executor, chrome.get(), &interrupt.flag()));
  if (chrome) DI_RETURN_IF_ERROR(chrome->close());
  return report;
}

int replay(const ReplayFlags& flags) {
  const Result<engine::ReplayReport> r = run(flags);
  if (!r.ok()) return fail(r.status());
  std::string text = fmt::format(
      "{} steps, {} tokens; {} of {} rows of logits equal bit for bit, the likeliest token of {} is the same\n",
      r->steps, r->tokens, r->equal_rows, r->rows, r->same_likeliest);
  if (r->skipped_steps > 0)
    text += fmt::format("{} steps had failed when they were traced and were not compared\n", r->skipped_steps);
  if (r->first_difference >= 0) {
    text += fmt::format("first difference in step {}; log-probabilities of drawn tokens differ by {:.3g} at most\n",
                        r->first_difference, r->logprob_difference_max);
  }
  if (!r->same_numerics) text += "another backend than that of the trace: equal bits are not expected\n";
  text += fmt::format("forward {:.3f} s, when traced {:.3f} s\n", r->forward_s, r->traced_forward_s);
  return print_result(text, r->same_numerics && r->first_difference >= 0 ? kExitFailure : kExitOk);
}

void setup_replay(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ReplayFlags>();
  auto options = std::make_shared<CommandOptions>(app, "replay");
  app.add_option("file", flags->file, "A trace that --trace-steps wrote")->required();
  options->bind("model", &flags->model);
  options->bind("device", &flags->run.device);
  options->bind("backend", &flags->run.backend);
  options->bind("host-experts", &flags->run.host_experts);
  options->bind("threads", &flags->run.threads);
  options->bind("trace-chrome", &flags->trace_chrome);
  *run = [flags, options] { return options->run([&] { return replay(*flags); }); };
}

const Command kReplay("replay", "Run the steps of a trace again and compare the results", &setup_replay);

}  // namespace
}  // namespace deepinfer::app
