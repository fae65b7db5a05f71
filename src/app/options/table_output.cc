#include "app/options/tables.h"

namespace deepinfer::app {

std::span<const OptionSpec> output_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "output",
       .name = "quiet",
       .kind = OptionKind::kSwitch,
       .commands = "run generate",
       .help = "No progress and no figures",
       .short_flag = "-q"},
      {.section = "output",
       .name = "json",
       .kind = OptionKind::kSwitch,
       .commands = "run",
       .help = "Print the answer, its reasoning and figures as one JSON object"},
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
