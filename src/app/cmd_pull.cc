// deepinfer pull REPO[@REVISION]: fetches a model from a Hugging Face hub into the local cache.
#include <csignal>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/environment.h"
#include "app/terminal/interrupt.h"
#include "app/terminal/progress_bar.h"
#include "app/terminal/result.h"
#include "checkpoint/hub.h"

namespace deepinfer::app {
namespace {

using namespace std::chrono_literals;

struct PullFlags {
  std::string model;
  int connections = 8;
  int retries = 5;
  int range_mib = 64;
  bool verify = false;
};

int pull_model(const PullFlags& flags) {
  if (hub_is_offline()) return fail("HF_HUB_OFFLINE is set, so that nothing is fetched. Unset it to pull.");
  checkpoint::HubConfig config = hub_config_from_environment();
  config.connections = flags.connections;
  config.retries = flags.retries;
  config.range_bytes = static_cast<uint64_t>(flags.range_mib) << 20;
  config.verify = flags.verify;
  const Result<checkpoint::ModelId> id = checkpoint::ModelId::parse(flags.model);
  if (!id.ok()) return fail(id.status().message());
  std::signal(SIGPIPE, SIG_IGN);  // a TLS connection that the peer closed is a failed write, too
  const Interrupt interrupt;
  ProgressBar bar(id.value().to_string(), 0ms);
  const auto on_progress = [&](const checkpoint::PullProgress& p) {
    bar.update(p.bytes, p.bytes_total, fmt::format("{} of {} files", p.files, p.files_total));
  };
  const Result<std::string> dir = checkpoint::pull(config, id.value(), on_progress, &interrupt.flag());
  bar.finish();
  if (dir.status().code() == Code::kCancelled) {
    fail(dir.status().message());
    return kExitInterrupted;
  }
  if (!dir.ok()) return fail(dir.status().message());
  return print_result(dir.value() + "\n");
}

void setup_pull(CLI::App& app, Run* run) {
  auto flags = std::make_shared<PullFlags>();
  app.add_option("model", flags->model, "ORGANISATION/NAME or ORGANISATION/NAME@REVISION")->required();
  app.add_option("--connections", flags->connections, "Requests at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->take_last();
  app.add_option("--retries", flags->retries, "Attempts in a row without progress before giving up")
      ->check(CLI::Range(0, 100))
      ->capture_default_str()
      ->take_last();
  app.add_option("--range-mib", flags->range_mib, "Size of one request in MiB")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->take_last();
  app.add_flag("--verify", flags->verify, "Check the digests of files that are in the cache already, too");
  app.footer(
      "Prints the model's folder. An interrupted pull goes on where it stopped. Reads HF_ENDPOINT, HF_TOKEN, HF_HOME,\n"
      "HF_HUB_CACHE and the proxy variables; files lie in the cache layout of huggingface_hub.");
  *run = [flags] { return pull_model(*flags); };
}

const Command kPull("pull", "Fetch a model from a Hugging Face hub into the local cache", &setup_pull);

}  // namespace
}  // namespace deepinfer::app
