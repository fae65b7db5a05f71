// deepinfer config: checks a configuration file, and prints the page of all options.

#include <CLI/CLI.hpp>

#include "app/commands.h"
#include "app/options/docs_page.h"
#include "app/options/values.h"
#include "app/terminal/result.h"

namespace deepinfer::app {
namespace {

struct ConfigFlags {
  std::string file;
  bool docs = false;
};

int config(const ConfigFlags& flags) {
  if (flags.docs) return print_result(configuration_markdown());
  if (flags.file.empty()) return fail("Name a configuration file, or ask for the page of all options with --docs.");
  const auto values = read_config_file(flags.file);
  return values.ok() ? kExitOk : fail(values.status().message());
}

void setup_config(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ConfigFlags>();
  app.add_option("file", flags->file, "A configuration file to check");
  app.add_flag("--docs", flags->docs, "Print docs/configuration.md");
  *run = [flags] { return config(*flags); };
}

const Command kConfig("config", "Check a configuration file, or describe all options", &setup_config);

}  // namespace
}  // namespace deepinfer::app
