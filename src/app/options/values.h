// Which value each option of a command has, and where it came from: flag, environment, configuration file, default.
//
//   OptionInputs inputs{.command = "generate", .flags = {{"rows", {"512"}}}, .environment = deepinfer_environment()};
//   DI_ASSIGN_OR_RETURN(OptionValues values, resolve_options(inputs));
//   DI_RETURN_IF_ERROR(values.read("rows", &rows));      // int: 512
//
// Refused with kInvalidArgument and a sentence that names the place: values out of range, keys and DEEPINFER_ names
// that do not exist (with the nearest that does), two names of one option that disagree. What the file or the
// environment holds for other commands is checked as well, and not used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/options/option.h"
#include "base/status.h"

namespace deepinfer::app {

enum class Origin : uint8_t { kDefault, kFile, kEnvironment, kFlag };

struct OptionValue {
  std::vector<std::string> texts;  // one, but for kTexts; none: there is no default
  Origin origin = Origin::kDefault;
  std::string where;  // "--rows", "DEEPINFER_ROWS", "rows in [engine] of FILE"
};

struct OptionInputs {
  std::string command;
  std::map<std::string, std::vector<std::string>> flags = {};  // by option name
  std::string config_path = {};                                // empty: no file
  std::vector<std::string> environment = {};                   // NAME=VALUE
};

class OptionValues {
 public:
  const OptionValue& at(std::string_view name) const;
  // Leaves *out as it is if the option has neither a value nor a default.
  void read(std::string_view name, bool* out) const;
  void read(std::string_view name, int* out) const;
  void read(std::string_view name, int64_t* out) const;
  void read(std::string_view name, uint64_t* out) const;
  void read(std::string_view name, double* out) const;
  void read(std::string_view name, std::string* out) const;
  void read(std::string_view name, std::vector<std::string>* out) const;
  template <class T>
  void read(std::string_view name, std::optional<T>* out) const {
    if (at(name).texts.empty()) return;
    T value{};
    read(name, &value);
    *out = std::move(value);
  }

  // A configuration file with these values, each with the place it came from behind it.
  std::string to_toml() const;

  // What a user should know, for example a name of DeepInfer 0.1.0 that does nothing here.
  std::vector<std::string> notes;

 private:
  friend Result<OptionValues> resolve_options(const OptionInputs& inputs);
  std::map<std::string, OptionValue, std::less<>> values_;  // of the command's options
};

Result<OptionValues> resolve_options(const OptionInputs& inputs);

// The variables of this process that begin with DEEPINFER_.
std::vector<std::string> deepinfer_environment();

// The values in a configuration file, by option name. Limit: kConfigBytesMax.
inline constexpr uint64_t kConfigBytesMax = 1 << 20;
Result<std::map<std::string, OptionValue, std::less<>>> read_config_file(const std::string& path);

}  // namespace deepinfer::app
