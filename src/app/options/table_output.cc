#include "app/options/tables.h"

namespace deepinfer::app {

std::span<const OptionSpec> output_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "output",
       .name = "quiet",
       .kind = OptionKind::kSwitch,
       .commands = "run generate bench sweep",
       .help = "No progress and no figures",
       .short_flag = "-q"},
      {.section = "output",
       .name = "json",
       .kind = OptionKind::kSwitch,
       .commands = "run bench",
       .help = "Print the answer, its reasoning and figures, or what was measured, as one JSON object"},
      {.section = "output",
       .name = "trace-steps",
       .without = "none",
       .commands = "generate serve bench",
       .help = "Write every step's plan and results to this file, for deepinfer replay"},
      {.section = "output",
       .name = "trace-chrome",
       .without = "none",
       .commands = "generate serve bench replay",
       .help = "Write the times of every step's stages to this file, for chrome://tracing or Perfetto"},
      {.section = "output",
       .name = "stats-interval",
       .kind = OptionKind::kInteger,
       .fallback = "0",
       .min = 0,
       .max = 1 << 30,
       .unit = "steps",
       .commands = "generate serve bench",
       .help = "Print statistics of the engine after so many steps; 0: never",
       .aliases = "LOGGING_INTERVAL_STEP"},
      {.section = "output",
       .name = "order",
       .kind = OptionKind::kChoice,
       .fallback = "input",
       .choices = "input done",
       .commands = "generate",
       .help = "input: answers in the order of the requests; done: as they come"},
      {.section = "output",
       .name = "resume",
       .kind = OptionKind::kSwitch,
       .commands = "generate",
       .help = "Continue a job that was ended: what OUT has is not done again",
       .once = true},
  };
  return kTable;
}

}  // namespace deepinfer::app
