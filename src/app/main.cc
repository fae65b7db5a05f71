#include <cstdio>
#include <exception>
#include <map>
#include <new>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"

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

}  // namespace

Command::Command(std::string name, std::string description, Setup setup) {
  registry().emplace(std::move(name), Entry{std::move(description), setup});
}

int fail(const std::string& message) {
  fmt::print(stderr, "deepinfer: {}\n", message);
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
    const int code = app.exit(e);
    return code == 0 ? kExitOk : kExitBadInput;
  }
  return runs.at(app.get_subcommands().front()->get_name())();
}

}  // namespace deepinfer::app

int main(int argc, char** argv) {
  try {
    return deepinfer::app::run_main(argc, argv);
  } catch (const std::bad_alloc&) {
    return deepinfer::app::fail("There is not enough memory for this. End other programs, or raise the limit (ulimit -v, control group).");
  } catch (const std::exception& e) {
    fmt::print(stderr, "deepinfer: internal error: {}\n", e.what());
  }
  return deepinfer::app::kExitFailure;
}
