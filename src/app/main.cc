#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/options/option.h"
#include "app/run/printer.h"

namespace deepinfer::app {
namespace {

struct Entry {
  std::string description;
  Setup setup;
};

std::map<std::string, Entry>& registry() {
  static std::map<std::string, Entry> commands;
  return commands;
}

// What was printed counts only when it has arrived: a full disk is an error.
int flush_output(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return fail(
      fmt::format("Cannot write the output: {}.", errno != 0 ? std::strerror(errno) : "an earlier write failed"));
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string path;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += at->get_name() + " ";
  }
  const std::string help = fmt::format("For more: deepinfer {}--help", path);
  const std::vector<std::string> rest = app.remaining(true);
  const bool has_commands = !at->get_subcommands([](const CLI::App*) { return true; }).empty();
  std::vector<std::string> names;
  if (has_commands && !rest.empty()) {
    for (const CLI::App* command : at->get_subcommands({})) names.push_back(command->get_name());
    return fmt::format("There is no command \"{}{}\".{} {}", path, rest.front(), suggestion(rest.front(), names), help);
  }
  for (const std::string& word : rest) {
    if (!word.starts_with("--")) continue;
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("There is no option {}.{} {}", name, suggestion(name, names), help);
  }
  return fmt::format("{}. {}", error.what(), help);
}

}  // namespace

Command::Command(std::string name, std::string description, Setup setup) {
  registry().emplace(std::move(name), Entry{std::move(description), setup});
}

int fail(const std::string& message) {
  fmt::print(stderr, "deepinfer: {}\n", without_controls(message));
  return kExitBadInput;
}

int run_main(int argc, char** argv) {
  CLI::App app("Inference and serving for DeepSeek-V4.1-Flash");
  app.name("deepinfer");
  app.set_version_flag("--version", DEEPINFER_VERSION);
  app.require_subcommand(1);
  std::map<std::string, Run> runs;
  for (auto& [name, entry] : registry()) {
    entry.setup(*app.add_subcommand(name, entry.description), &runs[name]);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      app.exit(e);
      return flush_output(kExitOk);
    }
    return fail(usage_error(app, e));
  }
  return flush_output(runs.at(app.get_subcommands().front()->get_name())());
}

// Weights are read through mappings, where a read that fails is a signal. Says why before the signal ends the program.
void explain_bus_errors() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    static constexpr char kWords[] =
        "deepinfer: A mapped file, most likely one of the model, was cut while it was in use, or its disk cannot be "
        "read. deepinfer inspect MODEL tells whether the model is whole; then start again.\n";
    (void)!::write(STDERR_FILENO, kWords, sizeof kWords - 1);
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGBUS, &action, nullptr);
}

// The number of a closed standard stream would go to the next file that is opened, which then got what is printed. What
// stands in for it can be neither read nor written.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF)
      (void)!::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace deepinfer::app

int main(int argc, char** argv) {
  deepinfer::app::occupy_closed_streams();
  deepinfer::app::explain_bus_errors();
  ::signal(SIGXFSZ, SIG_IGN);  // a file over the limit (ulimit -f) is an error of its write
  try {
    return deepinfer::app::run_main(argc, argv);
  } catch (const std::bad_alloc&) {
    return deepinfer::app::fail(
        "There is not enough memory for this. End other programs, or raise the limit (ulimit -v, control group).");
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::resource_unavailable_try_again) {
      return deepinfer::app::fail(
          "The system lets this program start no more threads. Use --threads 1, or raise the limit (ulimit -u, ulimit "
          "-v).");
    }
    return deepinfer::app::fail(e.what());
  } catch (const std::exception& e) {
    fmt::print(stderr, "deepinfer: internal error: {}\n", e.what());
  }
  return deepinfer::app::kExitFailure;
}
