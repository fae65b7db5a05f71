#include "app/kv_tiers.h"

#include "app/options/command_options.h"
#include "engine/engine.h"
#include "kv/host_tier.h"
#include "kv/remote_store.h"
#include "kv/ssd_tier.h"
#include "kv/threaded_tier.h"
#include "kv/tier_stack.h"

namespace deepinfer::app {

void bind_kv(CommandOptions& options, KvFlags* flags) {
  options.bind("kv-host-mb", &flags->host_mb);
  options.bind("kv-ssd", &flags->ssd);
  options.bind("kv-ssd-gb", &flags->ssd_gb);
  options.bind("kv-remote", &flags->remote);
  options.bind("kv-wait", &flags->wait_s);
}

Status add_kv_tiers(const KvFlags& flags, engine::EngineOptions* options) {
  std::vector<std::shared_ptr<kv::Tier>> levels;
  if (flags.host_mb > 0) {
    levels.push_back(std::make_shared<kv::HostTier>(
        kv::HostTierOptions{.bytes_max = static_cast<uint64_t>(flags.host_mb) << 20}));
  }
  if (!flags.ssd.empty()) {
    const auto bytes = static_cast<uint64_t>(flags.ssd_gb * (1ull << 30));
    kv::SsdTierOptions ssd{.bytes_max = bytes};
    ssd.segment_bytes = std::min(ssd.segment_bytes, bytes / 8);
    DI_ASSIGN_OR_RETURN(std::unique_ptr<kv::SsdTier> tier, kv::SsdTier::open(flags.ssd, ssd));
    levels.push_back(std::move(tier));
  }
  for (const std::string& url : flags.remote) {
    DI_ASSIGN_OR_RETURN(std::unique_ptr<kv::RemoteStore> store, kv::open_remote_store(url));
    DI_RETURN_IF_ERROR(store->ping().with_context("The remote KV store cannot be used"));
    levels.push_back(std::make_shared<kv::ThreadedTier>(std::move(store), kv::ThreadedTierOptions()));
  }
  if (levels.empty()) return Status();
  options->tier = std::make_shared<kv::TierStack>(std::move(levels));
  options->tier_wait_s = flags.wait_s;
  return Status();
}

}  // namespace deepinfer::app
