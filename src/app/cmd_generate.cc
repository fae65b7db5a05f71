// deepinfer generate FILE.jsonl -o OUT.jsonl: many requests, one a line, answered together.
#include <unistd.h>

#include <chrono>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/engine_flags.h"
#include "app/generate/job.h"
#include "app/options/command_options.h"
#include "app/run/find_model.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/progress_bar.h"
#include "app/terminal/result.h"
#include "app/terminal/terminal.h"
#include "checkpoint/checkpoint.h"
#include "ops/ops.h"
#include "recipe/output_vocabulary.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

constexpr double kGrammarTimeoutS = 20;

struct GenerateFlags {
  std::string input, output, model, order, prefill;
  EngineFlags engine;
  uint64_t seed = 0;
  bool resume = false, quiet = false;
};

std::string summary(const JobResult& r, double seconds) {
  std::string text = fmt::format("{} answers, {} errors", r.answered, r.failed);
  if (r.skipped > 0) text += fmt::format(", {} were there already", r.skipped);
  const double rate = seconds > 0 ? static_cast<double>(r.output_tokens) / seconds : 0;
  return text + fmt::format("; {} prompt tokens ({} cached), {} answer tokens at {:.1f}/s\n", r.prompt_tokens,
                            r.cached_tokens, r.output_tokens, rate);
}

int generate(GenerateFlags& flags) {
  const Result<int64_t> total = count_lines(flags.input);
  if (!total.ok()) return fail(total.status());
  Result<std::unique_ptr<OutputFile>> output = OutputFile::open(flags.output, flags.resume);
  if (!output.ok()) return fail(output.status());
  const Result<std::string> dir = find_model(flags.model);
  if (!dir.ok()) return fail(dir.status());
  Interrupt interrupt;
  Result<ModelParts> parts = load_parts(dir.value(), flags.engine.run, &interrupt.flag());
  if (!parts.ok()) return fail(parts.status());
  const recipe::OutputVocabulary vocabulary(parts->tokenizer);
  const auto created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  Result<std::unique_ptr<LineReader>> reader = LineReader::create(
      parts->tokenizer,
      {.context_max = flags.engine.context(parts->checkpoint->config()),
       .vocab_size = parts->checkpoint->config().vocab_size,
       .vocabulary = &vocabulary,
       .seed = flags.seed,
       .model_name = "deepseek-v4.1-flash",
       .created = created.count(),
       .full_prefill = flags.prefill == "full",
       .grammar = flags.engine.grammar(kGrammarTimeoutS)});
  if (!reader.ok()) return fail(reader.status());
  const Result<std::unique_ptr<Watch>> watch = Watch::open(flags.engine.watch);
  if (!watch.ok()) return fail(watch.status());
  Result<std::unique_ptr<engine::Engine>> engine =
      make_engine(flags.engine, parts.value(), {.observer = watch.value()->observer()});
  if (!engine.ok()) return fail(engine.status());
  watch.value()->begin(engine.value()->info());

  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Result<JobResult> result = Status(Code::kInternal, "not run");
  {
    ProgressBar bar("Generating", 1000ms, ProgressBar::Unit::kItems);
    const auto on_progress = [&](const JobResult& r, int64_t done) {
      watch.value()->tick(*engine.value());
      if (flags.quiet) return;
      bar.update(static_cast<uint64_t>(done), static_cast<uint64_t>(total.value()),
                 fmt::format("{:.1f} tokens/s", static_cast<double>(r.output_tokens) / std::max(seconds(), 1e-9)));
    };
    Job job(*engine.value(), *reader.value(), vocabulary, *output.value(),
            {.in_order = flags.order == "input", .in_work_max = 4 * flags.engine.sequences});
    result = job.run(flags.input, on_progress, &interrupt.flag());
  }
  if (!result.ok()) return fail(result.status());
  if (const Status status = output.value()->close(); !status.ok()) return fail(status);
  const engine::DraftStats drafts = engine.value()->stats().drafts;
  const std::string guesses = drafts.verify_rows > 0 ? draft_summary(drafts) : "";
  engine.value().reset();  // its last steps are traced, too
  if (const Status status = watch.value()->close(); !status.ok()) return fail(status);
  if (!flags.quiet) write_out(STDERR_FILENO, summary(result.value(), seconds()) + guesses);
  return result->failed > 0 ? kExitFailure : kExitOk;
}

void setup_generate(CLI::App& app, Run* run) {
  auto flags = std::make_shared<GenerateFlags>();
  auto options = std::make_shared<CommandOptions>(app, "generate");
  app.add_option("file", flags->input,
                 "Requests, one JSON object a line: prompt, messages or token_ids, or OpenAI's batch form")
      ->required();
  app.add_option("-o,--output", flags->output, "Where the answers go, one a line")->required();
  options->bind("model", &flags->model);
  bind_engine(*options, &flags->engine);
  options->bind("prefill", &flags->prefill);
  options->bind("seed", &flags->seed);
  options->bind("order", &flags->order);
  options->bind("resume", &flags->resume);
  options->bind("quiet", &flags->quiet);
  *run = [flags, options] { return options->run([&] { return generate(*flags); }); };
}

const Command kGenerate("generate", "Answer a file of requests", &setup_generate);

}  // namespace
}  // namespace deepinfer::app
