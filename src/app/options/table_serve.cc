#include "app/options/tables.h"

namespace deepinfer::app {

std::span<const OptionSpec> serve_options() {
  static constexpr OptionSpec kTable[] = {
      {.section = "serve",
       .name = "host",
       .fallback = "127.0.0.1",
       .commands = "serve",
       .help = "Address to listen on"},
      {.section = "serve",
       .name = "port",
       .kind = OptionKind::kInteger,
       .fallback = "8000",
       .min = 0,
       .max = 65535,
       .commands = "serve",
       .help = "Port to listen on; 0: any free one"},
  };
  return kTable;
}

}  // namespace deepinfer::app
