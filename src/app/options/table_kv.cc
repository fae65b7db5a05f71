#include "app/options/tables.h"

namespace deepinfer::app {

std::span<const OptionSpec> kv_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "kv",
       .name = "kv-host-mb",
       .kind = OptionKind::kInteger,
       .fallback = "0",
       .min = 0,
       .max = 1 << 30,
       .unit = "MiB",
       .commands = "generate serve",
       .help = "Host memory for computed prompts that left the device's memory; 0: none"},
      {.section = "kv",
       .name = "kv-ssd",
       .without = "none",
       .commands = "generate serve",
       .help = "Folder on a local SSD for computed prompts; they outlive the program"},
      {.section = "kv",
       .name = "kv-ssd-gb",
       .kind = OptionKind::kNumber,
       .fallback = "64",
       .min = 0.25,
       .max = 1e6,
       .unit = "GiB",
       .commands = "generate serve",
       .help = "Space of that folder"},
      {.section = "kv",
       .name = "kv-remote",
       .kind = OptionKind::kTexts,
       .without = "none",
       .commands = "generate serve",
       .help = "A store that machines share: redis://HOST:PORT, redis+cluster://HOST:PORT or dir:/FOLDER; several are "
               "asked in their order"},
      {.section = "kv",
       .name = "kv-wait",
       .kind = OptionKind::kNumber,
       .fallback = "2",
       .min = 0,
       .max = 3600,
       .unit = "s",
       .commands = "generate serve",
       .help = "A request waits no longer for its prompt from these stores; what has not come is computed"},
  };
  return kTable;
}

}  // namespace deepinfer::app
