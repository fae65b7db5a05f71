#include "app/options/tables.h"

namespace deepinfer::app {

std::span<const OptionSpec> engine_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "engine",
       .name = "sequences",
       .kind = OptionKind::kInteger,
       .fallback = "16",
       .min = 1,
       .max = 4096,
       .unit = "answers",
       .commands = "generate serve",
       .help = "Answers in work at once"},
      {.section = "engine",
       .name = "rows",
       .kind = OptionKind::kInteger,
       .fallback = "256",
       .min = 1,
       .max = 1 << 20,
       .unit = "tokens",
       .commands = "generate serve",
       .help = "Tokens of a step: prompts are cut into pieces that fit"},
      {.section = "engine",
       .name = "cache",
       .kind = OptionKind::kOnOff,
       .fallback = "on",
       .commands = "generate serve",
       .help = "Share the beginnings of prompts"},
      {.section = "engine",
       .name = "cache-mb",
       .kind = OptionKind::kInteger,
       .fallback = "256",
       .min = 0,
       .max = 1 << 30,
       .unit = "MiB",
       .commands = "generate serve",
       .help = "Host memory for window snapshots and waiting sequences"},
  };
  return kTable;
}

}  // namespace deepinfer::app
