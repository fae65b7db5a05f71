#include "app/options/tables.h"
#include "base/format.h"
#include "engine/device_name.h"
#include "engine/host_experts_flag.h"

namespace deepinfer::app {
namespace {

std::string check_device(const std::string& value) { return engine::device_error(value); }

std::string check_host_experts(const std::string& value) {
  return engine::host_experts_count(value) ? "" : fmt::format("must be off, auto or a number up to {}",
                                                              engine::kHostExpertsMax);
}

std::string check_size(const std::string& value) {
  return parse_bytes(value).ok() ? "" : "must be a number and a unit, as in 24GiB, 800MB or 1.5T";
}

}  // namespace

std::span<const OptionSpec> model_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "model",
       .name = "model",
       .without = "the bundled model",
       .commands = "run generate serve bench sweep replay python",
       .help = "Folder of a model, or the name of one that was pulled",
       .aliases = "HF_MODEL_DIR"},
      {.section = "model",
       .name = "device",
       .fallback = "auto",
       .commands = "run generate serve bench sweep replay python",
       .help =
           "Where the model runs: cpu, cuda (the first Hopper GPU), cuda:N (GPU N, counted from 0), or auto (a GPU if "
           "one can be used and no backend is named, else the CPU)",
       .check = &check_device},
      {.section = "model",
       .name = "backend",
       .kind = OptionKind::kChoice,
       .without = "fast on a CPU",
       .choices = "fast fast-avx2 plain reference cuda",
       .commands = "run generate serve bench sweep replay python",
       .help = "A CPU's kernels: fast (fast-avx2 leaves AVX-512 aside), plain (any processor), reference (slow and "
               "exact). cuda is another name of --device cuda",
       .aliases = "ACCELERATOR"},
      {.section = "model",
       .name = "threads",
       .kind = OptionKind::kInteger,
       .without = "all cores",
       .min = 1,
       .max = 1024,
       .commands = "run generate serve bench sweep replay python",
       .help = "Threads of the CPU backends"},
      {.section = "model",
       .name = "pin-threads",
       .kind = OptionKind::kSwitch,
       .commands = "run generate serve bench sweep python",
       .help = "Keep each thread of the fast CPU backend on a core of its own: for machines that do nothing else"},
      {.section = "model",
       .name = "host-experts",
       .fallback = "off",
       .commands = "run generate serve bench sweep replay python",
       .help = "Experts of each layer that the CPU computes beside a GPU whose memory does not hold all: a number, or "
               "auto for the one that measured rates favour. It is part of the results' numeric class (docs/cuda.md)",
       .check = &check_host_experts},
      {.section = "model",
       .name = "ram",
       .without = "what is free",
       .commands = "run generate serve bench sweep python",
       .help = "Memory that the program may take, as in 24GiB. Weights beyond it stay on the SSD and are read when "
               "they are "
               "needed; the answers are the same",
       .check = &check_size},
      {.section = "model",
       .name = "context",
       .kind = OptionKind::kInteger,
       .without = "the model's maximum, at most 32768 (run) or 8192",
       .min = 2,
       .max = 1 << 30,
       .unit = "tokens",
       .commands = "run generate serve bench sweep python",
       .help = "Tokens that prompt and answer may have together"},
      {.section = "model",
       .name = "prefill",
       .kind = OptionKind::kChoice,
       .fallback = "tail",
       .choices = "tail full",
       .commands = "run generate bench sweep python",
       .help = "tail: the decoder half of the model reads only a prompt's end; full: all of it",
       .aliases = "YOCO_PREFILL_TRUNCATION_MODE"},
  };
  return kTable;
}

}  // namespace deepinfer::app
