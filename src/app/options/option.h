// The options of the program, each declared once. A row of the table (table_*.cc) gives an option its flag, its key in
// a configuration file, its environment name, its check, its line of help and its line in docs/configuration.md:
//
//   {.section = "engine", .name = "cache-mb", .kind = OptionKind::kInteger, .fallback = "256", .min = 0, .max = 1 <<
//   30,
//    .unit = "MiB", .commands = "generate", .help = "Host memory for window snapshots and waiting sequences"}
//
//   --cache-mb 256      [engine] cache_mb = 256      DEEPINFER_CACHE_MB=256        flag > environment > file > default
//
// A new option is a new row and a bind() in the command that takes it (app/options/command_options.h); then
// `deepinfer config --docs > docs/configuration.md`.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace deepinfer::app {

enum class OptionKind : uint8_t {
  kSwitch,   // off unless given: --resume
  kOnOff,    // --cache on, --cache off, --no-cache
  kInteger,  // min .. max
  kSeed,     // a whole number of 64 bits
  kNumber,   // min .. max
  kText,
  kChoice,  // one of `choices`
  kTexts,   // a flag that may be given several times; a list in a file; one text in the environment
};

struct OptionSpec {
  std::string_view section;                      // of a configuration file
  std::string_view name;                         // as a flag, without dashes; unique
  OptionKind kind = OptionKind::kText;
  std::string_view fallback = {};                // the default; empty: none, and `without` says what happens then
  std::string_view without = {};
  double min = std::numeric_limits<double>::lowest(), max = std::numeric_limits<double>::max();
  std::string_view choices = {};                 // separated by spaces
  std::string_view unit = {};
  std::string_view commands = {};                // that take it, separated by spaces
  std::string_view help = {};
  std::string_view short_flag = {};              // "-q"
  std::string_view aliases = {};                 // environment names of DeepInfer 0.1.0, without DEEPINFER_
  // What is wrong with a value beyond kind and range; empty if nothing is.
  std::string (*check)(const std::string& value) = nullptr;
  bool once = false;  // belongs to one call: no place in a configuration file or the environment
};

// All rows, sections together.
std::span<const OptionSpec> option_table();
const OptionSpec* find_option(std::string_view name);
bool takes_option(const OptionSpec& spec, std::string_view command);

// "cache_mb" and "DEEPINFER_CACHE_MB".
std::string option_key(const OptionSpec& spec);
std::string option_variable(const OptionSpec& spec);

// The value in its one spelling ("true" and "false" for switches), or a sentence; `where` names the place it came from.
struct CheckedOption {
  std::string value;
  std::string error;
};
CheckedOption check_option(const OptionSpec& spec, const std::string& value, const std::string& where);

// " Did you mean X?" for the name that differs least from `word`; empty if none is near.
std::string suggestion(std::string_view word, std::span<const std::string> names);

// Words of a list that is separated by spaces.
std::span<const std::string_view> split_words(std::string_view list, std::span<std::string_view> room);

}  // namespace deepinfer::app
