#include "app/options/docs_page.h"

#include <fmt/format.h>

#include "app/options/former_names.h"
#include "app/options/option.h"

namespace deepinfer::app {
namespace {

constexpr std::string_view kIntroduction =
    R"(# Configuration

Made by `deepinfer config --docs` from the option table (`src/app/options/`); a test compares them. What a request asks for stands in
its own fields, not here.

Every option has one name in three spellings: `--cache-mb 256` as a flag, `cache_mb = 256` in its section of a configuration file, and
`DEEPINFER_CACHE_MB=256` in the environment. The flag wins over the environment, the environment over the file, the file over the default.

    deepinfer generate in.jsonl -o out.jsonl --config deepinfer.toml     # or DEEPINFER_CONFIG=deepinfer.toml
    deepinfer generate in.jsonl -o out.jsonl --print-config              # the values in force and where each came from, as such a file

One file serves all commands: each takes the options that are its own. A key or a `DEEPINFER_` name that does not exist ends the program
with the nearest one that does; so does a value out of range, or two names of one option that disagree. An empty variable counts as unset.
Switches are `true` or `false` in a file, and on, off, yes, no, true, false, 1 or 0 elsewhere.
)";

constexpr std::string_view kFormer =
    R"(
## Names of DeepInfer 0.1.0

| name | here |
|---|---|
)";

std::string values_text(const OptionSpec& s) {
  std::string_view room[16];
  switch (s.kind) {
    case OptionKind::kSwitch:
    case OptionKind::kOnOff:
      return "on, off";
    case OptionKind::kInteger:
      return fmt::format("{} to {}", static_cast<int64_t>(s.min), static_cast<int64_t>(s.max));
    case OptionKind::kSeed:
      return "64 bits";
    case OptionKind::kNumber:
      return fmt::format("{} to {}", s.min, s.max);
    case OptionKind::kChoice:
      return fmt::format("{}", fmt::join(split_words(s.choices, room), ", "));
    case OptionKind::kTexts:
      return "texts";
    case OptionKind::kText:
      return "text";
  }
  return "";
}

std::string default_text(const OptionSpec& s) {
  if (s.kind == OptionKind::kSwitch) return "off";
  return s.fallback.empty() ? std::string(s.without) : fmt::format("{}", s.fallback);
}

std::string row(const OptionSpec& s) {
  std::string_view room[16];
  std::string flag = fmt::format("`--{}`", s.name);
  if (!s.short_flag.empty()) flag += fmt::format(", `{}`", s.short_flag);
  if (s.kind == OptionKind::kOnOff) flag += fmt::format(", `--no-{}`", s.name);
  return fmt::format("| {} | {} | {}{}{} | {} | {} | {} |\n", flag,
                     s.once ? "flag only" : fmt::format("`{}`", option_key(s)), values_text(s),
                     s.unit.empty() ? "" : " ", s.unit, default_text(s), fmt::join(split_words(s.commands, room), ", "),
                     s.help);
}

}  // namespace

std::string configuration_markdown() {
  std::string page(kIntroduction);
  std::string_view section;
  for (const OptionSpec& s : option_table()) {
    if (s.section != section) {
      page += fmt::format("\n## [{}]\n\n| flag | key | values | default | commands | |\n|---|---|---|---|---|---|\n",
                          s.section);
      section = s.section;
    }
    page += row(s);
  }
  page += kFormer;
  for (const OptionSpec& s : option_table()) {
    std::string_view room[16];
    for (std::string_view alias : split_words(s.aliases, room)) {
      page += fmt::format("| `DEEPINFER_{}` | `{}` |\n", alias, option_variable(s));
    }
  }
  for (const FormerName& f : former_names()) {
    const std::string what = f.accepted == "*" ? "no effect" : fmt::format("refused, unless {}", f.accepted);
    page += fmt::format("| `DEEPINFER_{}` | {}: {} |\n", f.name, what, f.reason);
  }
  return page;
}

}  // namespace deepinfer::app
