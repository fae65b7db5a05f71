#include "app/options/values.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

#include "app/options/former_names.h"

namespace deepinfer::app {
namespace {

using Values = std::map<std::string, OptionValue, std::less<>>;

constexpr std::string_view kPrefix = "DEEPINFER_";
// Names that are no options: the configuration file's path, and what tests and tools of the source tree use.
constexpr std::string_view kConfigVariable = "DEEPINFER_CONFIG";
constexpr std::string_view kDeveloperNames[] = {"DEEPINFER_TEST_",     "DEEPINFER_FIXTURE_",      "DEEPINFER_SDK_TEST",
                                                "DEEPINFER_MIRROR",    "DEEPINFER_CLEAN_MACHINE", "DEEPINFER_IN_VENV",
                                                "DEEPINFER_SOURCE_DIR"};

bool has_word(std::string_view list, std::string_view word) {
  std::string_view room[32];
  return std::ranges::find(split_words(list, room), word) != split_words(list, room).end();
}

const OptionSpec* option_of_variable(std::string_view variable) {
  for (const OptionSpec& s : option_table()) {
    if (s.once) continue;
    if (option_variable(s) == variable || has_word(s.aliases, variable.substr(kPrefix.size()))) return &s;
  }
  return nullptr;
}

Status unknown_variable(std::string_view variable) {
  std::vector<std::string> names;
  for (const OptionSpec& s : option_table()) {
    if (!s.once) names.push_back(option_variable(s));
    std::string_view room[8];
    for (std::string_view alias : split_words(s.aliases, room)) names.push_back(fmt::format("{}{}", kPrefix, alias));
  }
  for (const FormerName& f : former_names()) names.push_back(fmt::format("{}{}", kPrefix, f.name));
  return make_error(Code::kInvalidArgument,
                    "The environment has {}, which is no option.{} Unset it, or see docs/configuration.md.", variable,
                    suggestion(variable, names));
}

Status check_former_name(std::string_view variable, const std::string& value, std::vector<std::string>* notes) {
  for (const FormerName& f : former_names()) {
    if (f.name != variable.substr(kPrefix.size())) continue;
    if (f.accepted != "*" && !has_word(f.accepted, value)) {
      return make_error(Code::kInvalidArgument, "{}={} is not possible: {}. Unset it, or set it to {}.", variable,
                        value, f.reason, f.accepted);
    }
    if (f.accepted == "*") notes->push_back(fmt::format("{} has no effect: {}.", variable, f.reason));
    return Status();
  }
  return unknown_variable(variable);
}

Result<Values> read_environment(const std::vector<std::string>& environment, std::vector<std::string>* notes) {
  Values values;
  for (const std::string& entry : environment) {
    const size_t equal = entry.find('=');
    if (!entry.starts_with(kPrefix) || equal == std::string::npos) continue;
    const std::string variable = entry.substr(0, equal), text = entry.substr(equal + 1);
    if (variable == kConfigVariable) continue;
    if (std::ranges::any_of(kDeveloperNames, [&](std::string_view p) { return variable.starts_with(p); })) continue;
    const OptionSpec* spec = option_of_variable(variable);
    if (spec == nullptr) {
      DI_RETURN_IF_ERROR(check_former_name(variable, text, notes));
      continue;
    }
    if (text.empty()) continue;  // as if it were not set
    CheckedOption checked = check_option(*spec, text, variable);
    if (!checked.error.empty()) return Status(Code::kInvalidArgument, checked.error);
    OptionValue value{{std::move(checked.value)}, Origin::kEnvironment, variable};
    const auto [it, added] = values.emplace(spec->name, value);
    if (!added && it->second.texts != value.texts) {
      return make_error(Code::kInvalidArgument,
                        "{}={} and {}={} contradict each other: both set {}. Unset one of them.", it->second.where,
                        it->second.texts.front(), variable, value.texts.front(), spec->name);
    }
  }
  return values;
}

Result<OptionValue> flag_value(const OptionSpec& spec, const std::vector<std::string>& given) {
  OptionValue value;
  value.origin = Origin::kFlag;
  value.where = fmt::format("--{}", spec.name);
  const size_t first = spec.kind == OptionKind::kTexts || given.empty() ? 0 : given.size() - 1;  // the last one counts
  for (size_t i = first; i < given.size(); ++i) {
    CheckedOption checked = check_option(spec, given[i], value.where);
    if (!checked.error.empty()) return Status(Code::kInvalidArgument, checked.error);
    value.texts.push_back(std::move(checked.value));
  }
  return value;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string toml_value(const OptionSpec& spec, const OptionValue& value) {
  switch (spec.kind) {
    case OptionKind::kText:
    case OptionKind::kChoice:
      return quoted(value.texts.front());
    case OptionKind::kTexts: {
      std::string list;
      for (const std::string& text : value.texts) list += (list.empty() ? "" : ", ") + quoted(text);
      return "[" + list + "]";
    }
    case OptionKind::kSeed:
      return value.texts.front().size() > 18 ? quoted(value.texts.front()) : value.texts.front();
    default:
      return value.texts.front();
  }
}

}  // namespace

std::vector<std::string> deepinfer_environment() {
  std::vector<std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::string_view(*entry).starts_with(kPrefix)) out.emplace_back(*entry);
  }
  std::ranges::sort(out);
  return out;
}

Result<OptionValues> resolve_options(const OptionInputs& inputs) {
  OptionValues out;
  std::string path = inputs.config_path;
  for (const std::string& entry : inputs.environment) {
    if (path.empty() && entry.starts_with(std::string(kConfigVariable) + "=")) {
      path = entry.substr(kConfigVariable.size() + 1);
    }
  }
  Values file;
  if (!path.empty()) {
    DI_ASSIGN_OR_RETURN(file, read_config_file(path));
  }
  DI_ASSIGN_OR_RETURN(Values environment, read_environment(inputs.environment, &out.notes));
  for (const OptionSpec& spec : option_table()) {
    if (!takes_option(spec, inputs.command)) continue;
    OptionValue& value = out.values_[std::string(spec.name)];
    if (const auto flag = inputs.flags.find(std::string(spec.name)); flag != inputs.flags.end()) {
      DI_ASSIGN_OR_RETURN(value, flag_value(spec, flag->second));
    } else if (const auto e = environment.find(spec.name); e != environment.end()) {
      value = e->second;
    } else if (const auto f = file.find(spec.name); f != file.end()) {
      value = f->second;
    } else if (!spec.fallback.empty() || spec.kind == OptionKind::kSwitch) {
      value.texts = {spec.kind == OptionKind::kSwitch ? "false"
                                                      : check_option(spec, std::string(spec.fallback), "").value};
    }
  }
  return out;
}

const OptionValue& OptionValues::at(std::string_view name) const {
  static const OptionValue kNone;
  const auto it = values_.find(name);
  return it == values_.end() ? kNone : it->second;
}

void OptionValues::read(std::string_view name, bool* out) const {
  if (const auto& texts = at(name).texts; !texts.empty()) *out = texts.front() == "true";
}

void OptionValues::read(std::string_view name, int64_t* out) const {
  if (const auto& texts = at(name).texts; !texts.empty()) *out = std::strtoll(texts.front().c_str(), nullptr, 10);
}

void OptionValues::read(std::string_view name, int* out) const {
  int64_t value = *out;
  read(name, &value);
  *out = static_cast<int>(std::min<int64_t>(value, INT32_MAX));
}

void OptionValues::read(std::string_view name, uint64_t* out) const {
  if (const auto& texts = at(name).texts; !texts.empty()) *out = std::strtoull(texts.front().c_str(), nullptr, 10);
}

void OptionValues::read(std::string_view name, double* out) const {
  const auto& texts = at(name).texts;
  if (!texts.empty()) std::from_chars(texts.front().data(), texts.front().data() + texts.front().size(), *out);
}

void OptionValues::read(std::string_view name, std::string* out) const {
  if (const auto& texts = at(name).texts; !texts.empty()) *out = texts.front();
}

void OptionValues::read(std::string_view name, std::vector<std::string>* out) const {
  if (const auto& texts = at(name).texts; !texts.empty()) *out = texts;
}

std::string OptionValues::to_toml() const {
  std::string out;
  std::string_view section;
  for (const OptionSpec& spec : option_table()) {
    const auto it = values_.find(spec.name);
    if (it == values_.end() || spec.once) continue;
    if (spec.section != section) {
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", spec.section);
      section = spec.section;
    }
    const OptionValue& value = it->second;
    if (value.texts.empty()) {
      out += fmt::format("# {}: {}\n", option_key(spec), spec.without);
      continue;
    }
    out += fmt::format("{} = {}  # {}\n", option_key(spec), toml_value(spec, value),
                       value.origin == Origin::kDefault ? "default" : "from " + value.where);
  }
  return out;
}

}  // namespace deepinfer::app
