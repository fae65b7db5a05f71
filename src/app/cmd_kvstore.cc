// deepinfer kvstore: this machine's memory and SSD as a KV server for its peers.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/kv_tiers.h"
#include "app/options/command_options.h"
#include "app/terminal/signals.h"
#include "base/format.h"
#include "kv/peer_server.h"
#include "kv/ssd_tier.h"

namespace deepinfer::app {
namespace {

struct KvstoreFlags {
  std::string listen, ssd, token_file;
  int64_t memory_mb = 0;
  double ssd_gb = 0, tenant_gb = 0;
};

Result<kv::PeerServerOptions> server_options(const KvstoreFlags& flags) {
  kv::PeerServerOptions o;
  const size_t colon = flags.listen.rfind(':');
  const auto bad = [&flags](std::string_view what) {
    return make_error(Code::kInvalidArgument, "--listen-kv {} {}; give ADDRESS:PORT.", flags.listen, what);
  };
  if (colon == std::string::npos) return bad("has no port");
  const std::string port = flags.listen.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) > 65535)
    return bad("has no port between 0 and 65535");
  o.port = std::stoi(port);
  o.host = flags.listen.substr(0, colon);
  if (o.host.starts_with('[') && o.host.ends_with(']')) o.host = o.host.substr(1, o.host.size() - 2);
  DI_ASSIGN_OR_RETURN(o.token, read_kv_token(flags.token_file));
  if (o.token.empty() && !o.host.starts_with("127.") && o.host != "::1") {
    return make_error(
        Code::kInvalidArgument,
        "{} can be reached from other machines, and without a secret everybody there could read and write "
        "blocks. Give all of them one file with a secret: --kv-token-file FILE.",
        flags.listen);
  }
  o.tenant_bytes = static_cast<uint64_t>(flags.tenant_gb * (1ull << 30));
  o.host_bytes = static_cast<uint64_t>(flags.memory_mb) << 20;
  o.ssd_dir = flags.ssd;
  o.ssd = ssd_options(flags.ssd_gb, flags.tenant_gb);
  return o;
}

int serve(const KvstoreFlags& flags) {
  Signals signals;
  const Result<kv::PeerServerOptions> options = server_options(flags);
  if (!options.ok()) return fail(options.status().message());
  if (const Status room = check_memory("--memory-mb", flags.memory_mb); !room.ok()) return fail(room.message());
  const auto server = kv::PeerServer::start(options.value());
  if (!server.ok()) return fail(server.status().message());
  const size_t colon = flags.listen.rfind(':');
  fmt::print(stderr, "Blocks at kvstore://{}:{}, {} of memory{}. Ctrl-C ends the server.\n",
             flags.listen.substr(0, colon), server.value()->port(), format_bytes(options->host_bytes),
             flags.ssd.empty() ? "" : fmt::format(" and up to {} GiB in {}", flags.ssd_gb, flags.ssd));
  while (signals.wait() != Signals::kStop) {
  }
  return kExitOk;
}

void setup_kvstore(CLI::App& app, Run* run) {
  auto flags = std::make_shared<KvstoreFlags>();
  auto options = std::make_shared<CommandOptions>(app, "kvstore");
  options->bind("listen-kv", &flags->listen);
  options->bind("memory-mb", &flags->memory_mb);
  options->bind("kv-ssd", &flags->ssd);
  options->bind("kv-ssd-gb", &flags->ssd_gb);
  options->bind("kv-tenant-gb", &flags->tenant_gb);
  options->bind("kv-token-file", &flags->token_file);
  *run = [flags, options] { return options->run([&] { return serve(*flags); }); };
}

const Command kKvstore("kvstore", "Serve this machine's memory and SSD to peers as a store of computed prompts",
                       &setup_kvstore);

}  // namespace
}  // namespace deepinfer::app
