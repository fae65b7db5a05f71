// deepinfer run [MODEL]: a chat in the terminal, or one answer.
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/draft_flags.h"
#include "app/environment.h"
#include "app/options/command_options.h"
#include "app/run/chat.h"
#include "app/run/find_model.h"
#include "app/run/load.h"
#include "app/run/options.h"
#include "app/run/printer.h"
#include "app/run/report.h"
#include "app/run/session.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/result.h"
#include "app/terminal/terminal.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

namespace deepinfer::app {
namespace {

constexpr size_t kInputBytesMax = 64u << 20;

struct Flags {
  RunOptions options;
  std::string model_option, effort, prefill;
};

// A mapped weight file that shrinks or cannot be read ends the program by SIGBUS; at least it says so.
void on_bus_error(int) {
  constexpr char kMessage[] =
      "deepinfer: A file of the model could not be read while it was in use: it was changed, or its disk failed.\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  ::_exit(kExitBadInput);
}

uint64_t random_seed() {
  uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  }
  return seed;
}

Result<std::string> read_input() {
  DI_ASSIGN_OR_RETURN(std::string text, read_standard_input(kInputBytesMax));
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty()) {
    return Status(
        Code::kInvalidArgument,
        "The prompt is empty: standard input has no text. Use --prompt TEXT, or start in a terminal to chat.");
  }
  return text;
}

Status apply_flags(Flags& flags) {
  RunOptions& o = flags.options;
  if (o.model.empty()) o.model = flags.model_option;
  o.prefill = flags.prefill == "full" ? engine::Prefill::kFull : engine::Prefill::kTail;
  if (flags.effort == "low") o.effort = recipe::Effort::kLow;
  if (flags.effort == "high") o.effort = recipe::Effort::kHigh;
  if (flags.effort == "max") o.effort = recipe::Effort::kMax;
  if (!flags.effort.empty() && std::isdigit(static_cast<unsigned char>(flags.effort.front()))) {
    o.effort = recipe::Effort::kNumber;
    o.effort_number = std::stoi(flags.effort);
  }
  if (o.json && !o.prompt && is_terminal(STDIN_FILENO)) {
    return Status(Code::kInvalidArgument,
                  "--json prints one answer; give a prompt with --prompt or on standard input.");
  }
  if (o.raw && !o.system.empty()) {
    return Status(Code::kInvalidArgument,
                  "--system is a part of the chat format, which --raw leaves out; write it into the prompt.");
  }
  if (o.prompt && o.prompt->empty()) return Status(Code::kInvalidArgument, "The prompt is empty.");
  for (const std::string& s : o.stop) DI_RETURN_IF_ERROR(check_utf8(s, "A --stop text"));
  if (o.prompt) DI_RETURN_IF_ERROR(check_utf8(*o.prompt, "The prompt"));
  return check_utf8(o.system, "The --system text");
}

SessionSettings make_settings(const RunOptions& o, const checkpoint::Checkpoint& checkpoint) {
  const checkpoint::GenerationConfig& defaults = checkpoint.generation();
  SessionSettings s;
  s.sampling.temperature = o.temperature.value_or(defaults.do_sample ? defaults.temperature : 0.0);
  s.sampling.top_p = o.top_p.value_or(defaults.top_p);
  s.sampling.top_k = static_cast<int32_t>(std::min<int64_t>(o.top_k.value_or(defaults.top_k.value_or(-1)), INT32_MAX));
  s.seed = o.seed ? *o.seed : random_seed();
  s.max_tokens = o.max_tokens;
  s.stop = o.stop;
  s.stop_tokens.assign(defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
  if (s.stop_tokens.empty()) s.stop_tokens = {static_cast<int32_t>(checkpoint.config().eos_token_id)};
  s.prefill = o.prefill;
  return s;
}

recipe::Conversation make_conversation(const RunOptions& o) {
  recipe::Conversation c;
  c.thinking = o.thinking;
  c.effort = o.thinking ? std::optional(o.effort) : std::nullopt;
  c.effort_number = o.effort_number;
  if (!o.system.empty()) c.messages.push_back({.role = recipe::Role::kSystem, .content = {.text = o.system}});
  return c;
}

int answer_once(engine::EngineGenerator& generator, Session& session, const RunOptions& o, const std::string& prompt,
                const ReportContext& context,
                const Interrupt& interrupt) {
  recipe::Conversation c = make_conversation(o);
  c.messages.push_back({.role = recipe::Role::kUser, .content = {.text = prompt}});
  Printer printer(STDOUT_FILENO);
  SilentSink silent;
  AnswerSink& sink = o.json ? static_cast<AnswerSink&>(silent) : printer;
  const Result<Answer> answer =
      o.raw ? session.complete(prompt, sink, &interrupt.flag()) : session.chat(c, sink, &interrupt.flag());
  if (answer.ok() && o.json) printer.on_content(recipe::to_python_json(answer_json(answer.value(), context)));
  printer.finish();
  if (printer.write_error() != 0) {
    return fail(fmt::format("Cannot write the answer: {}.", std::strerror(printer.write_error())));
  }
  if (!answer.ok()) return fail(answer.status());
  if (const std::string why = why_cut(answer.value()); !why.empty() && !o.quiet) write_out(STDERR_FILENO, why + "\n");
  if (!o.quiet) {
    Totals totals;
    totals.add(answer.value().figures);
    write_out(STDERR_FILENO,
              fmt::format("{}; loaded in {:.2f} s, first token after {:.2f} s more, seed {}\n", totals.to_string(),
                          context.load_s, answer.value().figures.prefill_s, context.seed));
    if (const auto weights = generator.stats().weights) {
      const engine::GenerateResult& f = answer.value().figures;
      write_out(STDERR_FILENO, checkpoint::to_string(*weights, f.prompt_tokens + f.output_tokens) + "\n");
    }
  }
  return answer.value().cancelled ? kExitInterrupted : kExitOk;
}

int run_model(Flags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  ::signal(SIGBUS, &on_bus_error);
  if (const Status status = apply_flags(flags); !status.ok()) return fail(status);
  RunOptions& o = flags.options;
  const bool chat = !o.prompt && is_terminal(STDIN_FILENO);
  const Result<std::string> dir = find_model(o.model);
  if (!dir.ok()) return fail(dir.status());
  if (!o.prompt && !chat) {
    Result<std::string> input = read_input();
    if (!input.ok()) return fail(input.status());
    o.prompt = std::move(input).value();
  }
  Interrupt interrupt;
  Result<LoadedModel> loaded = load_model(dir.value(), o, &interrupt.flag());
  if (!loaded.ok()) return fail(loaded.status());
  LoadedModel& model = loaded.value();
  Session session(*model.generator, model.tokenizer, make_settings(o, *model.checkpoint));
  const std::chrono::duration<double> load_time = std::chrono::steady_clock::now() - begin;
  const auto guesses = [&model] { return draft_summary(model.generator->stats().drafts); };
  int code = kExitOk;
  if (chat) {
    const std::string state = state_dir();
    code = Chat(session, interrupt,
                {.conversation = make_conversation(o),
                 .model = dir.value(),
                 .history_path = state.empty() ? "" : state + "/history",
                 .guesses = guesses,
                 .raw = o.raw,
                 .quiet = o.quiet})
               .run();
  } else {
    code = answer_once(*model.generator, session, o, *o.prompt,
                       {.model = dir.value(), .seed = session.settings().seed, .load_s = load_time.count()}, interrupt);
  }
  if (o.stats) write_out(STDERR_FILENO, guesses());
  return code;
}

void setup_run(CLI::App& app, Run* run) {
  auto flags = std::make_shared<Flags>();
  RunOptions& o = flags->options;
  auto options = std::make_shared<CommandOptions>(app, "run");
  app.add_option("model", o.model, "Folder of a model, or the name of one that was pulled: the same as --model");
  app.add_option("-p,--prompt", o.prompt, "Answer this and end (also: text on standard input)");
  app.add_option("--system", o.system, "System text");
  app.add_flag("--stats", o.stats, "Say at the end what came of the guesses");
  app.add_flag("--raw", o.raw,
               "Continue the text as it is, without the chat format; special tokens may be spelled out");
  options->bind("model", &flags->model_option);
  options->bind("device", &o.device);
  options->bind("backend", &o.backend);
  options->bind("threads", &o.threads);
  options->bind("pin-threads", &o.pin_threads);
  options->bind("host-experts", &o.host_experts);
  options->bind("ram", &o.ram);
  options->bind("context", &o.context);
  bind_drafts(*options, &o.drafts);
  options->bind("prefill", &flags->prefill);
  options->bind("temperature", &o.temperature);
  options->bind("top-p", &o.top_p);
  options->bind("top-k", &o.top_k);
  options->bind("seed", &o.seed);
  options->bind("max-tokens", &o.max_tokens);
  options->bind("stop", &o.stop);
  options->bind("thinking", &o.thinking);
  options->bind("effort", &flags->effort);
  options->bind("json", &o.json);
  options->bind("quiet", &o.quiet);
  *run = [flags, options] { return options->run([&] { return run_model(*flags); }); };
}

const Command kRun("run", "Talk to a model in the terminal, or get one answer", &setup_run);

}  // namespace
}  // namespace deepinfer::app
