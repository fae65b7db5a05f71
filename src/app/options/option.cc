#include "app/options/option.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "app/options/tables.h"

namespace deepinfer::app {
namespace {

constexpr size_t kWordsMax = 32;

std::string range_text(const OptionSpec& s) {
  const bool integer = s.kind == OptionKind::kInteger;
  const std::string unit = s.unit.empty() ? "" : fmt::format(" ({})", s.unit);
  if (integer) {
    return fmt::format("a whole number from {} to {}{}", static_cast<int64_t>(s.min), static_cast<int64_t>(s.max),
                       unit);
  }
  return fmt::format("a number from {} to {}{}", s.min, s.max, unit);
}

bool in_range(const OptionSpec& s, const std::string& text) {
  const char* const end = text.data() + text.size();
  if (s.kind == OptionKind::kInteger) {
    int64_t value = 0;
    const auto [at, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && at == end && static_cast<double>(value) >= s.min &&
           static_cast<double>(value) <= s.max;
  }
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end && value >= s.min && value <= s.max;  // NaN compares false
}

bool is_seed(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

bool is_one_of(std::string_view text, std::string_view list) {
  std::string_view room[kWordsMax];
  return std::ranges::find(split_words(list, room), text) != split_words(list, room).end();
}

// DeepInfer 0.1.0's spellings of values, for options that have an alias.
std::string translated(const OptionSpec& s, const std::string& value) {
  if (s.name == "backend" && value == "nvidia") return "cuda";
  if (s.name == "prefill" && value == "off") return "full";
  if (s.name == "prefill" && (value == "mask" || value == "compact")) return "tail";
  return value;
}

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t before = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = before + (a[i - 1] != b[j - 1]);
      before = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const std::string_view> split_words(std::string_view list, std::span<std::string_view> room) {
  size_t n = 0;
  while (!list.empty() && n < room.size()) {
    const size_t end = std::min(list.find(' '), list.size());
    room[n++] = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return room.first(n);
}

std::span<const OptionSpec> option_table() {
  static const std::vector<OptionSpec> kAll = [] {
    std::vector<OptionSpec> all;
    for (const auto part : {model_options(), engine_options(), kv_options(), sampling_options(), output_options(),
                            bench_options(), serve_options()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return kAll;
}

const OptionSpec* find_option(std::string_view name) {
  for (const OptionSpec& s : option_table()) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

bool takes_option(const OptionSpec& spec, std::string_view command) { return is_one_of(command, spec.commands); }

std::string option_key(const OptionSpec& spec) {
  std::string key(spec.name);
  std::ranges::replace(key, '-', '_');
  return key;
}

std::string option_variable(const OptionSpec& spec) {
  std::string name = option_key(spec);
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return "DEEPINFER_" + name;
}

CheckedOption check_option(const OptionSpec& spec, const std::string& given, const std::string& where) {
  const std::string value = spec.aliases.empty() ? given : translated(spec, given);
  std::string wanted;
  switch (spec.kind) {
    case OptionKind::kSwitch:
    case OptionKind::kOnOff: {
      std::string lower = value;
      for (char& c : lower) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      }
      if (is_one_of(lower, "true on yes 1")) return {"true", {}};
      if (is_one_of(lower, "false off no 0")) return {"false", {}};
      wanted = "on or off";
      break;
    }
    case OptionKind::kInteger:
    case OptionKind::kNumber:
      if (!in_range(spec, value)) wanted = range_text(spec);
      break;
    case OptionKind::kSeed:
      if (!is_seed(value)) wanted = "a whole number from 0 to 18446744073709551615";
      break;
    case OptionKind::kChoice:
      if (!is_one_of(value, spec.choices)) {
        std::string_view room[kWordsMax];
        wanted = fmt::format("one of {}", fmt::join(split_words(spec.choices, room), ", "));
      }
      break;
    case OptionKind::kText:
    case OptionKind::kTexts:
      break;
  }
  if (!wanted.empty()) return {{}, fmt::format("{} must be {}, not \"{}\".", where, wanted, value)};
  if (spec.check != nullptr) {
    if (const std::string wrong = spec.check(value); !wrong.empty()) {
      return {{}, fmt::format("{} {}, not \"{}\".", where, wrong, value)};
    }
  }
  return {value, {}};
}

std::string suggestion(std::string_view word, std::span<const std::string> names) {
  if (word.size() > 100) return "";
  const std::string* best = nullptr;
  size_t least = std::max<size_t>(2, word.size() / 4) + 1;
  for (const std::string& name : names) {
    const size_t d = distance(word, name);
    if (d < least) {
      least = d;
      best = &name;
    }
  }
  return best == nullptr ? "" : fmt::format(" Did you mean {}?", *best);
}

}  // namespace deepinfer::app
