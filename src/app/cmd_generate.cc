// deepinfer generate FILE.jsonl -o OUT.jsonl: many requests, one a line, answered together.
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/draft_flags.h"
#include "app/generate/job.h"
#include "app/kv_tiers.h"
#include "app/options/command_options.h"
#include "app/options/token_ranges.h"
#include "app/run/find_model.h"
#include "app/run/load.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/progress_bar.h"
#include "app/terminal/terminal.h"
#include "app/watch.h"
#include "checkpoint/checkpoint.h"
#include "engine/model_executor.h"
#include "ops/ops.h"
#include "recipe/output_vocabulary.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

constexpr int kExitInterrupted = 130;
constexpr int64_t kContextDefault = 8192;

struct GenerateFlags {
  std::string input, output, model, order, prefill;
  RunOptions run;
  KvFlags kv;
  DraftFlags drafts;
  int sequences = 0, rows = 0;
  uint64_t seed = 0;
  int64_t cache_mb = 0, keep = 0;
  int top_k_max = 0;
  std::string ban_tokens;
  grammar::Compiler::Options grammar;
  double grammar_timeout_s = 0;
  WatchFlags watch;
  bool resume = false, quiet = false, cache = true;
};

int fail(const Status& status) {
  if (status.code() == Code::kCancelled) return kExitInterrupted;
  const int code = app::fail(status.message());
  return status.code() == Code::kInternal ? kExitFailure : code;
}

Result<std::unique_ptr<engine::Engine>> make_engine(const GenerateFlags& flags, ModelParts& parts, int64_t context,
                                                    const Watch& watch) {
  engine::ModelExecutorOptions sizes;
  sizes.context_max = context;
  sizes.sequences_max = flags.sequences;
  sizes.rows_max = std::max(flags.rows, flags.sequences);
  DI_ASSIGN_OR_RETURN(sizes.ram_bytes, ram_bytes(flags.run));
  engine::EngineOptions options;
  add_drafts(flags.drafts, &sizes, &options);
  DI_RETURN_IF_ERROR(read_draft_temperatures(parts.checkpoint->directory(), &options));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<engine::ModelExecutor> executor,
                      engine::ModelExecutor::create(parts.checkpoint, std::move(parts.ops), sizes));
  const auto& ends = parts.checkpoint->generation().eos_token_ids;
  options.end_tokens.assign(ends.begin(), ends.end());
  if (options.end_tokens.empty()) options.end_tokens = {static_cast<int32_t>(parts.checkpoint->config().eos_token_id)};
  options.prefix_cache = flags.cache;
  options.host_bytes_max = static_cast<uint64_t>(flags.cache_mb) << 20;
  options.observer = watch.observer();
  options.top_k_max = flags.top_k_max;
  DI_ASSIGN_OR_RETURN(options.banned_tokens, parse_token_ranges(flags.ban_tokens));
  if (flags.keep > 0) options.keep_extra = static_cast<int>(flags.keep) - executor->info().window;
  DI_RETURN_IF_ERROR(add_kv_tiers(flags.kv, &options));
  return engine::Engine::create(std::move(executor), parts.tokenizer, options);
}

std::string summary(const JobResult& r, double seconds) {
  std::string text = fmt::format("{} answers, {} errors", r.answered, r.failed);
  if (r.skipped > 0) text += fmt::format(", {} were there already", r.skipped);
  const double rate = seconds > 0 ? static_cast<double>(r.output_tokens) / seconds : 0;
  return text + fmt::format("; {} prompt tokens ({} cached), {} answer tokens at {:.1f}/s\n", r.prompt_tokens,
                            r.cached_tokens, r.output_tokens, rate);
}

int generate(GenerateFlags& flags) {
  flags.grammar.limits.compile_ms = static_cast<uint32_t>(flags.grammar_timeout_s * 1000);
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit shows as a failed write, which has a message
  const Result<int64_t> total = count_lines(flags.input);
  if (!total.ok()) return fail(total.status());
  Result<std::unique_ptr<OutputFile>> output = OutputFile::open(flags.output, flags.resume);
  if (!output.ok()) return fail(output.status());
  const Result<std::string> dir = find_model(flags.model);
  if (!dir.ok()) return fail(dir.status());
  Interrupt interrupt;
  Result<ModelParts> parts = load_parts(dir.value(), flags.run, &interrupt.flag());
  if (!parts.ok()) return fail(parts.status());
  const int64_t context = flags.run.context > 0
                              ? flags.run.context
                              : std::min(kContextDefault, parts->checkpoint->config().max_position_embeddings);
  const recipe::OutputVocabulary vocabulary(parts->tokenizer);
  const auto created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  Result<std::unique_ptr<LineReader>> reader = LineReader::create(
      parts->tokenizer,
      {.context_max = context,
       .seed = flags.seed,
       .model_name = "deepseek-v4.1-flash",
       .created = created.count(),
       .full_prefill = flags.prefill == "full",
       .grammar = flags.grammar});
  if (!reader.ok()) return fail(reader.status());
  const Result<std::unique_ptr<Watch>> watch = Watch::open(flags.watch);
  if (!watch.ok()) return fail(watch.status());
  Result<std::unique_ptr<engine::Engine>> engine = make_engine(flags, parts.value(), context, *watch.value());
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
            {.in_order = flags.order == "input",
             .in_work_max = 4 * flags.sequences,
             .on_ended = [&](const engine::Usage& usage) { watch.value()->ended(usage); }});
    result = job.run(flags.input, on_progress, &interrupt.flag());
  }
  if (!result.ok()) return fail(result.status());
  if (const Status status = output.value()->close(); !status.ok()) return fail(status);
  const std::string guesses = draft_summary(engine.value()->stats().drafts);
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
  options->bind("device", &flags->run.device);
  options->bind("backend", &flags->run.backend);
  options->bind("threads", &flags->run.threads);
  options->bind("ram", &flags->run.ram);
  options->bind("context", &flags->run.context);
  options->bind("prefill", &flags->prefill);
  options->bind("sequences", &flags->sequences);
  options->bind("rows", &flags->rows);
  options->bind("cache", &flags->cache);
  options->bind("cache-mb", &flags->cache_mb);
  bind_kv(*options, &flags->kv);
  bind_drafts(*options, &flags->drafts);
  options->bind("keep", &flags->keep);
  options->bind("ban-tokens", &flags->ban_tokens);
  options->bind("top-k-max", &flags->top_k_max);
  options->bind("grammar-timeout", &flags->grammar_timeout_s);
  options->bind("grammar-threads", &flags->grammar.threads);
  options->bind("grammar-cache-bytes", &flags->grammar.cache_bytes_max);
  bind_watch(*options, &flags->watch);
  options->bind("seed", &flags->seed);
  options->bind("order", &flags->order);
  options->bind("resume", &flags->resume);
  options->bind("quiet", &flags->quiet);
  *run = [flags, options] { return options->run([&] { return generate(*flags); }); };
}

const Command kGenerate("generate", "Answer a file of requests", &setup_generate);

}  // namespace
}  // namespace deepinfer::app
