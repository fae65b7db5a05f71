// Gives a subcommand its options of the table: flags in CLI11, then values from flags, environment and file.
//
//   auto options = std::make_shared<CommandOptions>(app, "generate");     // in setup
//   options->bind("rows", &flags->rows);
//   *run = [=] { return options->run([&] { return generate(*flags); }); };
//
// run() fills the bound variables and calls the command; bad values end it with a sentence and kExitBadInput, and
// --print-config prints the effective values instead. Binding an option that the command does not take, or not binding
// one that it takes, is a defect that ends the program at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/options/values.h"

namespace CLI {
class App;
}

namespace deepinfer::app {

class CommandOptions {
 public:
  CommandOptions(CLI::App& app, std::string command);

  template <class T>
  void bind(std::string_view name, T* target) {
    add_binding(name, [name, target](const OptionValues& values) { values.read(name, target); });
  }

  // Fills the bound variables; `command` runs if nothing was wrong and there is something to do.
  int run(const std::function<int()>& command);
  // Reads file and environment again and fills the bound variables with what holds now; on an error nothing changes.
  Status reload();
  // Where a bound option's value came from.
  Origin origin(std::string_view name) const { return values_.at(name).origin; }

 private:
  struct Flag {
    std::vector<std::string> texts;
    bool on = false, off = false;
  };
  void add_binding(std::string_view name, std::function<void(const OptionValues&)> read);
  void add_flag(CLI::App& app, const OptionSpec& spec);
  Result<OptionValues> resolve() const;

  std::string command_, config_path_;
  bool print_ = false;
  std::map<std::string, Flag> flags_;  // by option name; nodes keep their place
  std::map<std::string, std::function<void(const OptionValues&)>> bindings_;
  OptionValues values_;
};

}  // namespace deepinfer::app
