// The parts of the option table, one function a file table_<name>.cc (internal to app/options).
#pragma once

#include <span>

#include "app/options/option.h"

namespace deepinfer::app {

std::span<const OptionSpec> model_options();
std::span<const OptionSpec> engine_options();
std::span<const OptionSpec> sampling_options();
std::span<const OptionSpec> output_options();
std::span<const OptionSpec> bench_options();
std::span<const OptionSpec> kv_options();
std::span<const OptionSpec> serve_options();

}  // namespace deepinfer::app
