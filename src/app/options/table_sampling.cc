#include "app/options/tables.h"

namespace deepinfer::app {
namespace {

std::string check_effort(const std::string& text) {
  if (text == "low" || text == "high" || text == "max") return "";
  const bool digits = !text.empty() && text.size() <= 3 && text.find_first_not_of("0123456789") == std::string::npos;
  return digits && std::stoi(text) >= 1 && std::stoi(text) <= 100 ? ""
                                                                   : "must be low, high, max or a number from 1 to 100";
}

}  // namespace

std::span<const OptionSpec> sampling_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "sampling",
       .name = "temperature",
       .kind = OptionKind::kNumber,
       .without = "the model's generation_config.json",
       .min = 0,
       .max = 2,
       .commands = "run",
       .help = "0 picks the likeliest token"},
      {.section = "sampling",
       .name = "top-p",
       .kind = OptionKind::kNumber,
       .without = "the model's generation_config.json",
       .min = 1e-9,
       .max = 1,
       .commands = "run",
       .help = "Keep the likeliest tokens up to this probability mass"},
      {.section = "sampling",
       .name = "top-k",
       .kind = OptionKind::kInteger,
       .without = "the model's generation_config.json",
       .min = -1,
       .max = 2147483648.0,
       .commands = "run",
       .help = "Keep this many of the likeliest tokens; -1: all"},
      {.section = "sampling",
       .name = "seed",
       .kind = OptionKind::kSeed,
       .without = "random (run), 0 (elsewhere)",
       .commands = "run generate bench sweep",
       .help = "The same seed gives the same answers; in a batch it is that of lines without one of their own"},
      {.section = "sampling",
       .name = "max-tokens",
       .kind = OptionKind::kInteger,
       .without = "the protocol's limit for chats, the context for plain text",
       .min = 1,
       .max = 1099511627776.0,
       .unit = "tokens",
       .commands = "run",
       .help = "End the answer after so many tokens"},
      {.section = "sampling",
       .name = "stop",
       .kind = OptionKind::kTexts,
       .without = "none",
       .commands = "run",
       .help = "End the answer before this text; may be given several times"},
      {.section = "sampling",
       .name = "thinking",
       .kind = OptionKind::kOnOff,
       .fallback = "on",
       .commands = "run",
       .help = "Think before the answer; shown on a terminal and in --json only"},
      {.section = "sampling",
       .name = "effort",
       .without = "high",
       .commands = "run",
       .help = "How much to think: low, high, max, or 1 to 100",
       .check = &check_effort},
  };
  return kTable;
}

}  // namespace deepinfer::app
