// The stores of computed prompts below the device's memory, as flags say: host memory, SSD, remote.
//
//   KvFlags kv;  bind_kv(*options, &kv);
//   DI_RETURN_IF_ERROR(add_kv_tiers(kv, &engine_options));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer::engine {
struct EngineOptions;
}

namespace deepinfer::app {

class CommandOptions;

struct KvFlags {
  int64_t host_mb = 0;
  std::string ssd;
  double ssd_gb = 0, wait_s = 0;
  std::vector<std::string> remote;
};

void bind_kv(CommandOptions& options, KvFlags* flags);
// Sets the engine's tier if any is asked for. Errors name the store that cannot be opened.
Status add_kv_tiers(const KvFlags& flags, engine::EngineOptions* options);

}  // namespace deepinfer::app
