#include "app/kv_tiers.h"

#include <sys/stat.h>

#include <cstdio>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "app/options/command_options.h"
#include "app/run/printer.h"
#include "base/file.h"
#include "base/format.h"
#include "base/memory.h"
#include "engine/engine.h"
#include "kv/encrypted_tier.h"
#include "kv/host_tier.h"
#include "kv/peer_tier.h"
#include "kv/prompt_log.h"
#include "kv/remote_store.h"
#include "kv/ssd_tier.h"
#include "kv/threaded_tier.h"
#include "kv/tier_stack.h"

namespace deepinfer::app {

namespace {

constexpr size_t kTokenBytesMax = 4096;
constexpr double kPeersWaitS = 2, kDayS = 86400;
constexpr uint64_t kLogBytes = 64u << 20;
constexpr double kRadosEndS = 60;

// A store's own words may be in it.
void tell(const std::string& sentence) { fmt::print(stderr, "deepinfer: {}\n", without_controls(sentence)); }

// Stores that are away are said and are misses until they are there: they come and go like this program.
Status go_on_without(const std::string& url, Status status) {
  if (status.code() != Code::kUnavailable && status.code() != Code::kDeadlineExceeded) return status;
  tell(fmt::format("{} is away, so prompts are computed until it is there: {}", url, status.message()));
  return Status();
}

Result<std::shared_ptr<kv::Tier>> open_remote(const std::string& url, const std::string& token_file) {
  if (url.starts_with("kvstore:")) {
    DI_ASSIGN_OR_RETURN(kv::PeerTierOptions options, kv::PeerTier::parse(url));
    DI_ASSIGN_OR_RETURN(options.token, read_kv_token(token_file));
    DI_ASSIGN_OR_RETURN(std::unique_ptr<kv::PeerTier> peers, kv::PeerTier::open(options));
    DI_RETURN_IF_ERROR(go_on_without(url, peers->wait_connected(kPeersWaitS, true)));
    return std::shared_ptr<kv::Tier>(std::move(peers));
  }
  const bool rados = url.starts_with("rados:");
  Result<std::unique_ptr<kv::RemoteStore>> store = kv::open_remote_store(url);
  if (rados && !store.ok()) {
    DI_RETURN_IF_ERROR(go_on_without(url, store.status()));
    store = kv::make_late_store([url] { return kv::open_remote_store(url); }, "rados", kv::kRadosThreads);
  } else {
    DI_RETURN_IF_ERROR(store.status());
    DI_RETURN_IF_ERROR(
        go_on_without(url, store.value()->ping()).with_context("The remote KV store cannot be used"));
  }
  kv::ThreadedTierOptions options;
  // Its calls all end by themselves, and its library does not outlive the end of the program.
  if (rados) options.end_wait_s = kRadosEndS;
  return std::shared_ptr<kv::Tier>(std::make_shared<kv::ThreadedTier>(std::move(store.value()), options));
}

Status log_prompts(const std::string& path, engine::EngineOptions* options) {
  if (path.empty()) return Status();
  DI_ASSIGN_OR_RETURN(std::unique_ptr<kv::PromptLog> opened, kv::PromptLog::open(path, kLogBytes));
  options->on_answered = [log = std::shared_ptr<kv::PromptLog>(std::move(opened))](const engine::Request& r,
                                                                                  const engine::Usage& usage) {
    if (!r.cache) return;
    log->append({.unix_time = std::time(nullptr),
                 .tenant = r.tenant,
                 .traffic = r.traffic,
                 .cached = usage.cached_tokens,
                 .tokens = r.prompt});
  };
  return Status();
}

}  // namespace

Result<std::string> read_kv_token(const std::string& path) {
  if (path.empty()) return std::string();
  DI_ASSIGN_OR_RETURN(std::string text, read_file(path, kTokenBytesMax));
  struct stat st = {};
  if (::stat(path.c_str(), &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH | S_IWGRP | S_IWOTH)) != 0)
    return make_error(Code::kInvalidArgument, "{} can be read by others; chmod 600 {}.", path, path);
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  if (begin == std::string::npos || end - begin + 1 < 16)
    return make_error(Code::kInvalidArgument, "{} has no secret of at least 16 characters.", path);
  return text.substr(begin, end - begin + 1);
}

Status check_memory(std::string_view option, int64_t mb) {
  const MemoryRoom room = available_memory();
  const uint64_t wanted = static_cast<uint64_t>(mb) << 20;
  if (wanted <= room.bytes) return Status();
  return make_error(Code::kInvalidArgument, "{} {} would be {}, but only {} are {}; give less.", option, mb,
                    format_bytes(wanted), format_bytes(room.bytes), room.limited_by);
}

kv::SsdTierOptions ssd_options(double gb, double tenant_gb) {
  kv::SsdTierOptions o{.bytes_max = static_cast<uint64_t>(gb * (1ull << 30)),
                       .space_bytes_max = static_cast<uint64_t>(tenant_gb * (1ull << 30))};
  o.segment_bytes = std::min(o.segment_bytes, o.bytes_max / 8);
  return o;
}

void bind_kv(CommandOptions& options, KvFlags* flags) {
  options.bind("kv-host-mb", &flags->host_mb);
  options.bind("kv-ssd", &flags->ssd);
  options.bind("kv-ssd-gb", &flags->ssd_gb);
  options.bind("snapshot-ssd", &flags->snapshots);
  options.bind("kv-remote", &flags->remote);
  options.bind("kv-tenant-gb", &flags->tenant_gb);
  options.bind("kv-key-file", &flags->key_file);
  options.bind("kv-ttl-chat", &flags->chat_days);
  options.bind("kv-ttl-agent", &flags->agent_days);
  options.bind("kv-log", &flags->log);
  options.bind("kv-token-file", &flags->token_file);
  options.bind("kv-wait", &flags->wait_s);
}

Status add_kv_tiers(const KvFlags& flags, engine::EngineOptions* options) {
  options->ttl_s[static_cast<size_t>(kv::Traffic::kChat)] = flags.chat_days * kDayS;
  options->ttl_s[static_cast<size_t>(kv::Traffic::kAgent)] = flags.agent_days * kDayS;
  DI_RETURN_IF_ERROR(log_prompts(flags.log, options));
  std::optional<kv::EncryptionKey> key;
  if (!flags.key_file.empty()) {
    DI_ASSIGN_OR_RETURN(key, kv::read_encryption_key(flags.key_file));
  }
  const auto sealed = [&key](std::shared_ptr<kv::Tier> tier) -> std::shared_ptr<kv::Tier> {
    if (!key) return tier;
    return std::make_shared<kv::EncryptedTier>(std::move(tier), *key);
  };
  std::vector<std::shared_ptr<kv::Tier>> levels;
  if (flags.host_mb > 0) {
    DI_RETURN_IF_ERROR(check_memory("--kv-host-mb", flags.host_mb));
    levels.push_back(std::make_shared<kv::HostTier>(
        kv::HostTierOptions{.bytes_max = static_cast<uint64_t>(flags.host_mb) << 20,
                            .space_bytes_max = static_cast<uint64_t>(flags.tenant_gb * (1ull << 30))}));
  }
  if (!flags.ssd.empty()) {
    DI_ASSIGN_OR_RETURN(std::unique_ptr<kv::SsdTier> tier,
                        kv::SsdTier::open(flags.ssd, ssd_options(flags.ssd_gb, flags.tenant_gb)));
    levels.push_back(sealed(std::move(tier)));
  }
  for (const std::string& url : flags.remote) {
    DI_ASSIGN_OR_RETURN(std::shared_ptr<kv::Tier> tier, open_remote(url, flags.token_file));
    levels.push_back(sealed(std::move(tier)));
  }
  if (levels.empty()) {
    if (!flags.snapshots) return Status();
    return Status(Code::kInvalidArgument,
                  "--snapshot-ssd needs a tier to write to; give --kv-ssd, --kv-remote or --kv-host-mb as well.");
  }
  options->tier = std::make_shared<kv::TierStack>(std::move(levels), kv::TierStackOptions{.on_trouble = &tell});
  options->tier_wait_s = flags.wait_s;
  options->tier_snapshots = flags.snapshots;
  return Status();
}

}  // namespace deepinfer::app
