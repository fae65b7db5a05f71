// deepinfer sweep -o FOLDER: the two curves of an engine, as CSV and SVG: prefill throughput against latency, decode
// throughput against the speed of one answer. The files are there from the start and grow with every point.
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/bench/chart.h"
#include "app/bench/session.h"
#include "app/commands.h"
#include "app/options/command_options.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/result.h"
#include "app/terminal/terminal.h"
#include "base/file.h"

namespace deepinfer::app {
namespace {

struct Flags : BenchFlags {
  std::string output, counts;
  int decode_prompt_tokens = 0;
};

std::vector<int> numbers(const std::string& list) {
  std::vector<int> out = {0};
  for (char c : list) {
    if (c == ',')
      out.push_back(0);
    else
      out.back() = out.back() * 10 + (c - '0');
  }
  return out;
}

struct Point {
  int count = 0;
  Measured prefill, decode;
};

std::string csv(const Flags& f, const std::vector<Point>& points) {
  std::string out =
      "phase,count,prompt_tokens,output_tokens,latency_s,user_tokens_per_s,throughput_tokens_per_s,repeats\n";
  for (const Point& p : points) {
    out += fmt::format("prefill,{},{},1,{:.6f},,{:.3f},{}\n", p.count, f.prompt_tokens, p.prefill.first_token_s,
                       p.prefill.prefill_tokens_per_s, f.repeats);
  }
  for (const Point& p : points) {
    out += fmt::format("decode,{},{},{},,{:.3f},{:.3f},{}\n", p.count, f.decode_prompt_tokens, f.output_tokens,
                       p.decode.user_tokens_per_s, p.decode.decode_tokens_per_s, f.repeats);
  }
  return out;
}

Chart prefill_chart(const Flags& f, const std::vector<Point>& points) {
  Chart chart{.title = "Prefill: throughput against latency; labels: prompts at once",
              .x_title = "seconds to the first token, mean",
              .y_title = "uncached prompt tokens/s"};
  ChartCurve& curve = chart.curves.emplace_back(ChartCurve{fmt::format("prompts of {} tokens", f.prompt_tokens), {}});
  for (const Point& p : points) {
    curve.points.push_back({p.prefill.first_token_s, p.prefill.prefill_tokens_per_s, fmt::format("{}", p.count)});
  }
  return chart;
}

Chart decode_chart(const Flags& f, const std::vector<Point>& points) {
  Chart chart{.title = "Decode: throughput against the speed of one answer; labels: answers at once",
              .x_title = "tokens/s of one answer, mean",
              .y_title = "tokens/s of all answers"};
  ChartCurve& curve = chart.curves.emplace_back(ChartCurve{fmt::format("answers of {} tokens", f.output_tokens), {}});
  for (const Point& p : points) {
    curve.points.push_back({p.decode.user_tokens_per_s, p.decode.decode_tokens_per_s, fmt::format("{}", p.count)});
  }
  return chart;
}

Status write_all(const Flags& flags, const std::vector<Point>& points) {
  DI_RETURN_IF_ERROR(write_file_atomically(flags.output + "/sweep.csv", csv(flags, points)));
  DI_RETURN_IF_ERROR(write_file_atomically(flags.output + "/prefill.svg", to_svg(prefill_chart(flags, points))));
  return write_file_atomically(flags.output + "/decode.svg", to_svg(decode_chart(flags, points)));
}

Status run_points(const Flags& flags, const std::vector<int>& counts, const std::atomic<bool>* stop) {
  const int tokens = std::max(flags.prompt_tokens + 1, flags.decode_prompt_tokens + flags.output_tokens);
  DI_ASSIGN_OR_RETURN(const auto llm, open_for_bench(flags, counts.back(), tokens, nullptr));
  std::vector<Point> points;
  DI_RETURN_IF_ERROR(write_all(flags, points));  // before the long work: whether that is possible
  const bool full = flags.prefill == "full";
  uint64_t seed = flags.seed;
  for (int count : counts) {
    Point& p = points.emplace_back();
    p.count = count;
    const Workload reading{
        .prompts = count, .prompt_tokens = flags.prompt_tokens, .output_tokens = 1, .seed = seed, .full_prefill = full};
    const Workload writing{.prompts = count,
                           .prompt_tokens = flags.decode_prompt_tokens,
                           .output_tokens = flags.output_tokens,
                           .seed = seed + 1'000'000,
                           .full_prefill = full};
    DI_ASSIGN_OR_RETURN(p.prefill, measure_median(*llm, reading, flags.repeats, stop));
    DI_ASSIGN_OR_RETURN(p.decode, measure_median(*llm, writing, flags.repeats, stop));
    DI_RETURN_IF_ERROR(write_all(flags, points));
    seed += 1000;
    if (flags.quiet) continue;
    write_out(
        STDERR_FILENO,
        fmt::format("{:4} at once: prefill {:8.1f} tokens/s, {:.3f} s; decode {:8.1f} tokens/s, {:.1f} an answer\n",
                    count, p.prefill.prefill_tokens_per_s, p.prefill.first_token_s, p.decode.decode_tokens_per_s,
                    p.decode.user_tokens_per_s));
  }
  return Status();
}

int sweep(const Flags& flags) {
  std::error_code error;
  std::filesystem::create_directories(flags.output, error);
  if (error) return fail(fmt::format("Cannot make the folder {}: {}.", flags.output, error.message()));
  Interrupt interrupt;
  const Status status = run_points(flags, numbers(flags.counts), &interrupt.flag());
  return status.ok() ? kExitOk : fail(status);
}

void setup_sweep(CLI::App& app, Run* run) {
  auto flags = std::make_shared<Flags>();
  auto options = std::make_shared<CommandOptions>(app, "sweep");
  app.add_option("-o,--output", flags->output, "Folder for sweep.csv, prefill.svg and decode.svg")->required();
  bind_bench(*options, flags.get());
  options->bind("counts", &flags->counts);
  options->bind("decode-prompt-tokens", &flags->decode_prompt_tokens);
  *run = [flags, options] { return options->run([&] { return sweep(*flags); }); };
}

const Command kSweep("sweep", "Draw throughput against latency, and against the speed of one answer", &setup_sweep);

}  // namespace
}  // namespace deepinfer::app
