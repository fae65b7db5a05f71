#include "app/options/tables.h"

namespace deepinfer::app {
namespace {

// "1,2,4": increasing whole numbers from 1 to 4096.
std::string check_counts(const std::string& text) {
  int last = 0, number = 0, digits = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] >= '0' && text[i] <= '9' && digits < 5) {
      number = number * 10 + (text[i] - '0');
      ++digits;
      continue;
    }
    if ((i < text.size() && text[i] != ',') || digits == 0 || number <= last || number > 4096) {
      return "must be increasing numbers from 1 to 4096 like 1,2,4";
    }
    last = number;
    number = digits = 0;
  }
  return "";
}

}  // namespace

std::span<const OptionSpec> bench_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "bench",
       .name = "prompts",
       .kind = OptionKind::kInteger,
       .fallback = "16",
       .min = 1,
       .max = 4096,
       .commands = "bench",
       .help = "Prompts given at once"},
      {.section = "bench",
       .name = "counts",
       .fallback = "1,2,4,8,16",
       .commands = "sweep",
       .help = "Prompts given at once, a point of the curves each",
       .check = &check_counts},
      {.section = "bench",
       .name = "prompt-tokens",
       .kind = OptionKind::kInteger,
       .fallback = "512",
       .min = 1,
       .max = 1 << 24,
       .unit = "tokens",
       .commands = "bench sweep",
       .help = "Length of a prompt whose reading is measured"},
      {.section = "bench",
       .name = "output-tokens",
       .kind = OptionKind::kInteger,
       .fallback = "64",
       .min = 2,
       .max = 1 << 24,
       .unit = "tokens",
       .commands = "bench sweep",
       .help = "Length of an answer"},
      {.section = "bench",
       .name = "decode-prompt-tokens",
       .kind = OptionKind::kInteger,
       .fallback = "32",
       .min = 1,
       .max = 1 << 24,
       .unit = "tokens",
       .commands = "sweep",
       .help = "Length of the prompts whose answers are measured"},
      {.section = "bench",
       .name = "repeats",
       .kind = OptionKind::kInteger,
       .fallback = "3",
       .min = 1,
       .max = 1000,
       .commands = "bench sweep",
       .help = "Runs of each point, after one that does not count; the median of them is reported"},
  };
  return kTable;
}

}  // namespace deepinfer::app
