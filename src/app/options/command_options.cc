#include "app/options/command_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/terminal/result.h"
#include "app/terminal/terminal.h"

namespace deepinfer::app {
namespace {

[[noreturn]] void defect(const std::string& what) {
  fmt::print(stderr, "deepinfer: internal error: {}\n", what);
  std::abort();
}

std::string type_name(const OptionSpec& s) {
  switch (s.kind) {
    case OptionKind::kOnOff:
      return "on|off";
    case OptionKind::kChoice: {
      std::string_view room[16];
      return fmt::format("{}", fmt::join(split_words(s.choices, room), "|"));
    }
    case OptionKind::kInteger:
    case OptionKind::kSeed:
    case OptionKind::kNumber:
      return "NUMBER";
    default:
      return "TEXT";
  }
}

std::string help_text(const OptionSpec& s) {
  std::string text(s.help);
  if (!s.fallback.empty()) text += fmt::format(" (default: {}{}{})", s.fallback, s.unit.empty() ? "" : " ", s.unit);
  if (!s.without.empty()) text += fmt::format(" (default: {})", s.without);
  return text;
}

}  // namespace

CommandOptions::CommandOptions(CLI::App& app, std::string command) : command_(std::move(command)) {
  app.option_defaults()->take_last();
  for (const OptionSpec& spec : option_table()) {
    if (takes_option(spec, command_)) add_flag(app, spec);
  }
  app.add_option("--config", config_path_, "Read options from this TOML file (also: DEEPINFER_CONFIG)")
      ->type_name("FILE");
  app.add_flag("--print-config", print_, "Print the options in force and where each came from, and end");
}

void CommandOptions::add_flag(CLI::App& app, const OptionSpec& spec) {
  Flag& flag = flags_[std::string(spec.name)];
  std::string name = fmt::format("--{}", spec.name);
  if (!spec.short_flag.empty()) name = fmt::format("{},{}", spec.short_flag, name);
  if (spec.kind == OptionKind::kSwitch) {
    app.add_flag(name, flag.on, help_text(spec));
    return;
  }
  app.add_option(name, flag.texts, help_text(spec))
      ->type_name(type_name(spec))
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (spec.kind == OptionKind::kOnOff) {
    app.add_flag(fmt::format("--no-{}", spec.name), flag.off, fmt::format("The same as --{} off", spec.name));
  }
}

void CommandOptions::add_binding(std::string_view name, std::function<void(const OptionValues&)> read) {
  const OptionSpec* spec = find_option(name);
  if (spec == nullptr || !takes_option(*spec, command_)) {
    defect(fmt::format("{} takes no option {}", command_, name));
  }
  bindings_[std::string(name)] = std::move(read);
}

Result<OptionValues> CommandOptions::resolve() const {
  OptionInputs inputs{.command = command_, .config_path = config_path_, .environment = deepinfer_environment()};
  for (const auto& [name, flag] : flags_) {
    if (flag.off && !flag.texts.empty() && check_option(*find_option(name), flag.texts.back(), "").value != "false") {
      return make_error(Code::kInvalidArgument, "--no-{} and --{} {} contradict each other.", name, name,
                        flag.texts.back());
    }
    if (flag.on) inputs.flags[name] = {"true"};
    if (flag.off) inputs.flags[name] = {"false"};
    if (!flag.texts.empty()) inputs.flags[name] = flag.texts;
  }
  return resolve_options(inputs);
}

Status CommandOptions::reload() {
  DI_ASSIGN_OR_RETURN(values_, resolve());
  for (const auto& [name, read] : bindings_) read(values_);
  return Status();
}

int CommandOptions::run(const std::function<int()>& command) {
  for (const auto& [name, flag] : flags_) {
    if (!bindings_.contains(name)) defect(fmt::format("{} does not use its option {}", command_, name));
  }
  Result<OptionValues> values = resolve();
  if (!values.ok()) return fail(values.status().message());
  values_ = std::move(values).value();
  for (const std::string& note : values_.notes) write_out(STDERR_FILENO, fmt::format("deepinfer: note: {}\n", note));
  if (print_) return print_result(values_.to_toml());
  for (const auto& [name, read] : bindings_) read(values_);
  return command();
}

}  // namespace deepinfer::app
