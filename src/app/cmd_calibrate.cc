// deepinfer calibrate MODEL DATA: temperatures of the drafter's confidence head, from what comes true of its drafts.

#include <deque>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/draft_flags.h"
#include "app/generate/line.h"
#include "app/run/find_model.h"
#include "app/run/load.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/result.h"
#include "base/file.h"
#include "base/line_file.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "ops/ops.h"
#include "sched/draft_calibration.h"

namespace deepinfer::app {
namespace {

constexpr int kSequences = 16, kContext = 4096, kTokens = 128;

struct CalibrateFlags {
  std::string model, data, output, device = "auto", backend;
  int threads = 0;
};

struct Rounds {
  std::deque<std::vector<float>> confidence;
  std::vector<sched::DraftOutcome> outcomes;
};

Status collect(engine::Engine& engine, LineReader& reader, const std::string& path, const std::atomic<bool>& stop) {
  DI_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, LineReader::kLineBytesMax));
  std::deque<std::unique_ptr<engine::Stream>> streams;
  const auto drain_one = [&streams] {
    for (engine::Event e; streams.front()->next(&e);) {
    }
    streams.pop_front();
  };
  std::string text;
  for (int64_t number = 1; !stop && file.next(&text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    Line line;
    DI_RETURN_IF_ERROR(reader.read(text, number, &line).with_context(fmt::format("{}, line {}", path, number)));
    if (line.request.max_tokens == 0) line.request.max_tokens = kTokens;
    DI_ASSIGN_OR_RETURN(std::unique_ptr<engine::Stream> stream, engine.submit(std::move(line.request)));
    streams.push_back(std::move(stream));
    if (streams.size() >= 2 * kSequences) drain_one();
  }
  while (!streams.empty()) drain_one();
  DI_RETURN_IF_ERROR(file.status());
  return stop ? Status(Code::kCancelled, "Stopped.") : Status();
}

std::string report(const Rounds& rounds, const sched::DraftTemperatures& temperatures) {
  std::string out = fmt::format("{} rounds of drafts\n", rounds.outcomes.size());
  for (size_t j = 0; j < temperatures.size(); ++j) {
    out += fmt::format("draft {}: temperature {:.3f}\n  sure        drafts  said   right\n", j + 1, temperatures[j]);
    const auto bins = sched::draft_reliability(rounds.outcomes, temperatures, static_cast<int>(j));
    for (size_t b = 0; b < bins.size(); ++b) {
      if (bins[b].drafts == 0) continue;
      out += fmt::format("  {:.1f} to {:.1f}  {:>6}  {:.3f}  {:.3f}\n", 0.1 * static_cast<double>(b),
                         0.1 * static_cast<double>(b + 1), bins[b].drafts, bins[b].predicted, bins[b].measured);
    }
  }
  return out;
}

Status calibrate(const CalibrateFlags& flags, std::string* text) {
  DI_ASSIGN_OR_RETURN(const std::string dir, find_model(flags.model));
  Interrupt interrupt;
  RunOptions run;
  run.device = flags.device;
  run.backend = flags.backend;
  run.threads = flags.threads;
  DI_ASSIGN_OR_RETURN(ModelParts parts, load_parts(dir, run, &interrupt.flag()));
  const checkpoint::ModelConfig& config = parts.checkpoint->config();
  if (!config.has_drafter()) return make_error(Code::kUnsupported, "{} has no drafter to calibrate.", dir);
  const int64_t context = std::min<int64_t>(kContext, config.max_position_embeddings);
  DI_ASSIGN_OR_RETURN(
      const std::unique_ptr<LineReader> reader,
      LineReader::create(parts.tokenizer, {.context_max = context,
                                           .vocab_size = config.vocab_size,
                                           .model_name = "deepseek-v4.1-flash"}));
  Rounds rounds;
  const DraftFlags drafts{.drafts = static_cast<int>(config.dspark_block_size), .confidence = false, .text = false};
  engine::ModelExecutorOptions sizes{
      .context_max = context, .sequences_max = kSequences, .drafts_max = drafts.drafts};
  engine::EngineOptions options;
  add_drafts(drafts, &options);
  options.drafts.on_round = [&rounds](std::span<const float> confidence, int verified, int accepted) {
    rounds.confidence.emplace_back(confidence.begin(), confidence.end());
    rounds.outcomes.push_back({rounds.confidence.back(), accepted, verified});
  };
  options.end_tokens = {static_cast<int32_t>(config.eos_token_id)};
  DI_ASSIGN_OR_RETURN(std::unique_ptr<engine::ModelExecutor> executor,
                      engine::ModelExecutor::create(parts.checkpoint, std::move(parts.ops), sizes));
  {
    DI_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                        engine::Engine::create(std::move(executor), parts.tokenizer, options));
    DI_RETURN_IF_ERROR(collect(*engine, *reader, flags.data, interrupt.flag()));
  }
  if (std::ssize(rounds.outcomes) < sched::kOutcomesMin) {
    return make_error(Code::kFailedPrecondition, "{} gives only {} rounds of drafts; at least {} are needed.",
                      flags.data, rounds.outcomes.size(), sched::kOutcomesMin);
  }
  const sched::DraftTemperatures temperatures = sched::fit_draft_temperatures(rounds.outcomes);
  const std::string path = flags.output.empty() ? draft_temperatures_path(dir) : flags.output;
  DI_RETURN_IF_ERROR(write_file_atomically(path, draft_temperatures_json(temperatures)));
  *text = report(rounds, temperatures) + "Written to " + path + ".\n";
  return Status();
}

void setup_calibrate(CLI::App& app, Run* run) {
  auto flags = std::make_shared<CalibrateFlags>();
  app.add_option("model", flags->model, "Folder or name of a model")->required();
  app.add_option("data", flags->data, "Requests, one a line, as for generate")->required();
  app.add_option("-o,--output", flags->output, "Where the temperatures go; default: beside the model");
  app.add_option("--device", flags->device, "As for run");
  app.add_option("--backend", flags->backend, "As for run");
  app.add_option("--threads", flags->threads, "As for run");
  *run = [flags] {
    std::string text;
    const Status status = calibrate(*flags, &text);
    if (!status.ok()) return fail(status);
    return print_result(text);
  };
}

const Command kCalibrate("calibrate", "Fit the confidence of a model's drafts to what comes true", &setup_calibrate);

}  // namespace
}  // namespace deepinfer::app
