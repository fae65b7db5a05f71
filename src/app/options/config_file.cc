// Reads configuration files. The one place that includes toml++.
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "app/options/values.h"
#include "base/file.h"

namespace deepinfer::app {
namespace {

using Values = std::map<std::string, OptionValue, std::less<>>;

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const OptionSpec& s : option_table()) {
    if (!s.once && (names.empty() || names.back() != s.section)) names.emplace_back(s.section);
  }
  return names;
}

const OptionSpec* find_key(std::string_view section, std::string_view key) {
  for (const OptionSpec& s : option_table()) {
    if (s.section == section && option_key(s) == key && !s.once) return &s;
  }
  return nullptr;
}

Status unknown_key(const std::string& path, std::string_view section, std::string_view key, unsigned line) {
  std::vector<std::string> names;
  for (const OptionSpec& s : option_table()) {
    if (s.once) continue;
    if (option_key(s) == key) {
      return make_error(Code::kInvalidArgument, "{} line {}: {} belongs into [{}], not into [{}].", path, line, key,
                        s.section, section);
    }
    if (s.section == section) names.push_back(option_key(s));
  }
  return make_error(Code::kInvalidArgument, "{} line {}: there is no key {} in [{}].{}", path, line, key, section,
                    suggestion(key, names));
}

bool is_number(OptionKind kind) {
  return kind == OptionKind::kInteger || kind == OptionKind::kSeed || kind == OptionKind::kNumber;
}

// The text of a value whose TOML type fits the option; none if it does not.
std::optional<std::string> text_of(const toml::node& node, OptionKind kind) {
  const bool is_switch = kind == OptionKind::kSwitch || kind == OptionKind::kOnOff;
  if (const auto* v = node.as_boolean(); v != nullptr && is_switch) return v->get() ? "true" : "false";
  if (const auto* v = node.as_integer(); v != nullptr && is_number(kind)) return fmt::format("{}", v->get());
  if (const auto* v = node.as_floating_point(); v != nullptr && kind == OptionKind::kNumber) {
    return fmt::format("{}", v->get());
  }
  const auto* v = node.as_string();
  if (v == nullptr) return std::nullopt;
  if (kind == OptionKind::kText || kind == OptionKind::kChoice || kind == OptionKind::kTexts) return v->get();
  // Seeds beyond TOML's 63 bits, and numbers that only a text can say in some editors.
  return kind == OptionKind::kSeed ? std::optional<std::string>(v->get()) : std::nullopt;
}

std::string_view wanted_type(OptionKind kind) {
  switch (kind) {
    case OptionKind::kSwitch:
    case OptionKind::kOnOff:
      return "true or false";
    case OptionKind::kInteger:
    case OptionKind::kSeed:
      return "a whole number";
    case OptionKind::kNumber:
      return "a number";
    case OptionKind::kTexts:
      return "a list of texts";
    default:
      return "a text in quotes";
  }
}

Status add_value(const std::string& path, const OptionSpec& spec, const toml::node& node, Values* values) {
  const unsigned line = node.source().begin.line;
  OptionValue value;
  value.origin = Origin::kFile;
  value.where = fmt::format("{} in [{}] of {} (line {})", option_key(spec), spec.section, path, line);
  const auto add = [&](const toml::node& one) -> Status {
    const std::optional<std::string> text = text_of(one, spec.kind);
    if (!text) {
      return make_error(Code::kInvalidArgument, "{} must be {}.", value.where, wanted_type(spec.kind));
    }
    CheckedOption checked = check_option(spec, *text, value.where);
    if (!checked.error.empty()) return Status(Code::kInvalidArgument, checked.error);
    value.texts.push_back(std::move(checked.value));
    return Status();
  };
  const toml::array* list = node.as_array();
  if (list == nullptr || spec.kind != OptionKind::kTexts) {
    DI_RETURN_IF_ERROR(add(node));
  } else {
    for (const toml::node& one : *list) DI_RETURN_IF_ERROR(add(one));
  }
  values->emplace(spec.name, std::move(value));
  return Status();
}

}  // namespace

Result<Values> read_config_file(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string text, read_file(path, kConfigBytesMax));
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    return make_error(Code::kInvalidArgument, "{} line {}: {}.", path, parsed.error().source().begin.line,
                      parsed.error().description());
  }
  Values values;
  const std::vector<std::string> sections = section_names();
  for (const auto& [section, node] : parsed.table()) {
    const unsigned line = node.source().begin.line;
    if (std::ranges::find(sections, section.str()) == sections.end()) {
      return make_error(Code::kInvalidArgument, "{} line {}: there is no {} {}.{}", path, line,
                        node.is_table() ? "section" : "key outside of sections named", section.str(),
                        suggestion(section.str(), sections));
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      return make_error(Code::kInvalidArgument, "{} line {}: {} must be a section: [{}]", path, line, section.str(),
                        section.str());
    }
    for (const auto& [key, value] : *table) {
      const OptionSpec* spec = find_key(section.str(), key.str());
      if (spec == nullptr) return unknown_key(path, section.str(), key.str(), value.source().begin.line);
      DI_RETURN_IF_ERROR(add_value(path, *spec, value, &values));
    }
  }
  return values;
}

}  // namespace deepinfer::app
