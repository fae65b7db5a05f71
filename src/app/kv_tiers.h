// The stores of computed prompts below the device's memory, as flags say: host memory, SSD, remote.
//
//   KvFlags kv;  bind_kv(*options, &kv);
//   DI_RETURN_IF_ERROR(add_kv_tiers(kv, &engine_options));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::engine {
struct EngineOptions;
}
namespace deepinfer::kv {
struct SsdTierOptions;
}

namespace deepinfer::app {

class CommandOptions;

struct KvFlags {
  int64_t host_mb = 0;
  bool snapshots = false;
  std::string ssd, token_file, log, key_file;
  double ssd_gb = 0, tenant_gb = 0, wait_s = 0, chat_days = 7, agent_days = 3;
  std::vector<std::string> remote;
};

// The secret in a file of --kv-token-file, without the white space around it; empty: no file. Errors say why it cannot
// be read, or that others may read it.
Result<std::string> read_kv_token(const std::string& path);

// Whether so much memory is there now; the error names the option.
Status check_memory(std::string_view option, int64_t mb);

kv::SsdTierOptions ssd_options(double gb, double tenant_gb);

void bind_kv(CommandOptions& options, KvFlags* flags);
// Sets the engine's tier if any is asked for, times to live, and the log of prompts. KV servers that are
// away, and later a tier that writes nothing, are said on stderr. Errors name the store that cannot be opened.
Status add_kv_tiers(const KvFlags& flags, engine::EngineOptions* options);

}  // namespace deepinfer::app
