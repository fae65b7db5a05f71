// deepinfer serve [MODEL]: the HTTP service and its page.
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/engine_flags.h"
#include "app/options/command_options.h"
#include "app/run/find_model.h"
#include "app/run/printer.h"
#include "app/terminal/result.h"
#include "app/terminal/signals.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "ops/ops.h"
#include "kv/tier_stack.h"
#include "serve/keys.h"
#include "serve/server.h"
#include "serve/service.h"

namespace deepinfer::app {
namespace {

constexpr double kGrammarTimeoutS = 2;

struct ServeFlags {
  std::string model, model_option, host;
  EngineFlags engine;
  int port = 0;
  std::vector<std::string> listen;
  serve::ServeConfig config;
  serve::ServeLimits limits;
  std::string sampling_policy, usage_chunk;
  int64_t header_kb = 0, body_mb = 0, stored_mb = 0, stored_disk_mb = 0, image_mb = 0;
  double stored_days = 0;

  void apply_limits() {
    limits.header_bytes_max = static_cast<size_t>(header_kb) << 10;
    limits.body_bytes_max = static_cast<size_t>(body_mb) << 20;
    config.limits.replace(limits);
  }
};

uint64_t random_seed() {
  uint64_t seed = 0;
  return ::getrandom(&seed, sizeof seed, 0) == sizeof seed ? seed : 1;
}

Status check_addresses(ServeFlags& flags) {
  const bool v6 = flags.host.find(':') != std::string::npos;
  flags.config.listen = {fmt::format("{}{}{}:{}", v6 ? "[" : "", flags.host, v6 ? "]" : "", flags.port)};
  flags.config.listen.insert(flags.config.listen.end(), flags.listen.begin(), flags.listen.end());
  for (const std::string& text : flags.config.listen) {
    DI_ASSIGN_OR_RETURN(const serve::Address address, serve::parse_address(text));
    if (address.loopback || !flags.config.keys_file.empty()) continue;
    return make_error(
        Code::kInvalidArgument,
        "{} can be reached from other machines, and without API keys everybody there could use the service. Make "
        "keys with deepinfer keys add NAME --keys FILE and start with --keys FILE.",
        text);
  }
  return Status();
}

void print_start(const ServeFlags& flags, const std::string& model, const serve::Server& server) {
  fmt::print(stderr, "Serving {} as \"{}\":\n", without_controls(model), without_controls(flags.config.model_name));
  for (const std::string& address : server.addresses()) {
    const bool page = flags.config.page && address.starts_with("http");
    fmt::print(stderr, "  {}{}\n", without_controls(address), page ? "/" : "");
  }
  if (flags.config.keys_file.empty()) {
    fmt::print(stderr, "No API key is needed, so the service answers to this machine only. ");
  } else {
    const auto keys = serve::read_keys(flags.config.keys_file);
    const std::string file = without_controls(flags.config.keys_file);
    fmt::print(stderr, "Requests need an API key of {}. ", file);
    if (keys.ok() && keys.value().empty())
      fmt::print(stderr, "It has none yet: deepinfer keys add NAME --keys {}, then SIGHUP. ", file);
  }
  fmt::print(stderr, "Ctrl-C ends the service.\n");
}

void reload(ServeFlags& flags, CommandOptions& options, serve::Service& service) {
  Status status = options.reload();
  if (status.ok()) {
    flags.apply_limits();
    status = service.gate->reload();
  }
  fmt::print(stderr, "{}\n", status.ok() ? std::string("Limits, keys and log were opened again.")
                                        : fmt::format("Nothing was changed: {}", without_controls(status.message())));
}

int serve_model(ServeFlags& flags, CommandOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  if (!flags.model_option.empty()) flags.model = flags.model_option;
  if (const Status status = check_addresses(flags); !status.ok()) return fail(status);
  if (flags.config.tls.certificate.empty() != flags.config.tls.key.empty()) {
    return fail("TLS needs both --tls-certificate and --tls-key.");
  }
  flags.apply_limits();
  flags.config.policies.deepseek_sampling = flags.sampling_policy == "deepseek";
  flags.config.policies.separate_usage = flags.usage_chunk == "separate";
  flags.config.responses.bytes_max = static_cast<size_t>(flags.stored_mb) << 20;
  flags.config.responses.age_max_s = static_cast<int64_t>(flags.stored_days * 86400);
  flags.config.response_archive = {.bytes_max = flags.stored_disk_mb << 20,
                                   .age_max_s = flags.config.responses.age_max_s};
  flags.config.images.bytes_max = static_cast<size_t>(flags.image_mb) << 20;
  const Result<std::string> dir = find_model(flags.model);
  if (!dir.ok()) return fail(dir.status());
  flags.config.bundled_model = is_bundled_model(dir.value());
  Signals signals;
  if (flags.engine.run.threads == 0) flags.engine.run.threads = std::max(1, available_cores() - 1);
  Result<ModelParts> parts = load_parts(dir.value(), flags.engine.run, &signals.stop_flag());
  if (!parts.ok()) return fail(parts.status());
  const Result<std::unique_ptr<Watch>> watch = Watch::open(flags.engine.watch);
  if (!watch.ok()) return fail(watch.status());
  std::shared_ptr<kv::TierStack> tiers;
  Result<std::unique_ptr<engine::Engine>> made = make_engine(flags.engine, parts.value(),
                                                             {.seed = random_seed(),
                                                              .observer = watch.value()->observer(),
                                                              .waiting_max = flags.limits.requests_max,
                                                              .tiers = &tiers});
  if (!made.ok()) return fail(made.status());
  engine::Engine& engine = *made.value();
  watch.value()->begin(engine.info());
  if (tiers) {
    for (const kv::TierLevelStats& level : tiers->published()) flags.config.kv_tiers.emplace_back(level.name);
    tiers.reset();  // the engine's, and ends with it
  }
  flags.config.grammar = flags.engine.grammar(kGrammarTimeoutS);
  auto service =
      serve::Service::create(flags.config, serve::make_engine_backend(std::move(made).value()), parts->tokenizer);
  if (!service.ok()) return fail(service.status());
  serve::Router router;
  service.value()->add_routes(router);
  auto server = serve::Server::start(flags.config, router, service.value()->hooks());
  if (!server.ok()) return fail(server.status());
  service.value()->set_server(server.value().get());
  print_start(flags, dir.value(), *server.value());
  {
    const Ticker ticker(*watch.value(), engine);
    while (signals.wait() == Signals::kReload) reload(flags, options, *service.value());
  }
  fmt::print(stderr, "Ending: responses in work have up to {:g} s (Ctrl-C again: none).\n",
             flags.limits.drain_timeout_s);
  service.value()->draining = true;
  server.value()->drain(flags.limits.drain_timeout_s);
  server.value()->stop();
  service.value()->set_server(nullptr);
  service.value()->stop();
  service.value().reset();  // its last steps are traced, too
  const Status traced = watch.value()->close();
  return traced.ok() ? kExitOk : fail(traced);
}

void setup_serve(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ServeFlags>();
  app.add_option("model", flags->model, "Folder or name of a model; default: the bundled model");
  auto options = std::make_shared<CommandOptions>(app, "serve");
  serve::ServeConfig& c = flags->config;
  options->bind("model", &flags->model_option);
  bind_engine(*options, &flags->engine);
  options->bind("host", &flags->host);
  options->bind("port", &flags->port);
  options->bind("listen", &flags->listen);
  options->bind("model-name", &c.model_name);
  options->bind("model-alias", &c.model_aliases);
  options->bind("any-model", &c.accept_any_model);
  options->bind("io-threads", &c.io_threads);
  options->bind("page", &c.page);
  options->bind("access-log", &c.access_log);
  options->bind("keys", &c.keys_file);
  options->bind("cors-origin", &c.cors_origins);
  options->bind("tls-certificate", &c.tls.certificate);
  options->bind("tls-key", &c.tls.key);
  options->bind("store-responses", &c.store_responses);
  options->bind("stored-mb", &flags->stored_mb);
  options->bind("stored-days", &flags->stored_days);
  options->bind("stored-disk-mb", &flags->stored_disk_mb);
  options->bind("state-dir", &c.state_dir);
  options->bind("image-fetch", &c.images.fetch);
  options->bind("image-allow-host", &c.images.rules.allow_hosts);
  options->bind("image-timeout", &c.images.timeout_s);
  options->bind("image-mb", &flags->image_mb);
  options->bind("image-side", &c.images.side_max);
  options->bind("default-thinking", &c.policies.thinking);
  options->bind("sampling-policy", &flags->sampling_policy);
  options->bind("forced-tool-with-thinking", &c.policies.forced_tool_with_thinking);
  options->bind("usage-chunk", &flags->usage_chunk);
  options->bind("messages-prefill", &c.policies.messages_prefill);
  options->bind("drop-billing-line", &c.policies.drop_billing_line);
  options->bind("require-reasoning", &c.policies.require_reasoning);
  options->bind("seal-keys", &c.seal_keys_file);
  options->bind("max-header-kb", &flags->header_kb);
  options->bind("max-body-mb", &flags->body_mb);
  options->bind("max-connections", &flags->limits.connections_max);
  options->bind("max-requests", &flags->limits.requests_max);
  options->bind("request-timeout", &flags->limits.request_timeout_s);
  options->bind("header-timeout", &flags->limits.header_timeout_s);
  options->bind("body-timeout", &flags->limits.body_timeout_s);
  options->bind("idle-timeout", &flags->limits.idle_timeout_s);
  options->bind("write-timeout", &flags->limits.write_timeout_s);
  options->bind("drain-timeout", &flags->limits.drain_timeout_s);
  *run = [flags, options] { return options->run([&] { return serve_model(*flags, *options); }); };
}

const Command kServe("serve", "Serve the model over HTTP, with a chat page", &setup_serve);

}  // namespace
}  // namespace deepinfer::app
