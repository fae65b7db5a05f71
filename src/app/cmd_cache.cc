// deepinfer cache ls|stat|purge|verify STORE: what the KV stores below device memory hold; cache explain: why a prompt
// missed.
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/kv_tiers.h"
#include "app/run/cache_explain.h"
#include "app/run/find_model.h"
#include "app/terminal/result.h"
#include "base/format.h"
#include "checkpoint/config.h"
#include "engine/engine.h"
#include "kv/peer_tier.h"
#include "kv/prompt_log.h"
#include "kv/remote_store.h"
#include "kv/ssd_tier.h"

namespace deepinfer::app {
namespace {

constexpr double kPeersWaitS = 5;

struct CacheFlags {
  std::string store, tenant, token_file;
  bool all = false, expired = false;
};

bool is_peers(const std::string& store) { return store.starts_with("kvstore:"); }

bool is_remote(const std::string& store) {
  return store.starts_with("dir:") || store.starts_with("redis:") || store.starts_with("redis+") ||
         store.starts_with("rados:");
}

// A shared folder that is there, or another store.
Result<std::unique_ptr<kv::RemoteStore>> open_remote(const std::string& store) {
  struct stat st = {};
  if (store.starts_with("dir:") && (::stat(store.c_str() + 4, &st) != 0 || !S_ISDIR(st.st_mode)))
    return make_error(Code::kNotFound, "There is no folder {}.", store.substr(4));
  return kv::open_remote_store(store);
}

Result<std::unique_ptr<kv::PeerTier>> open_peers(const CacheFlags& flags) {
  DI_ASSIGN_OR_RETURN(kv::PeerTierOptions options, kv::PeerTier::parse(flags.store));
  DI_ASSIGN_OR_RETURN(options.token, read_kv_token(flags.token_file));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<kv::PeerTier> peers, kv::PeerTier::open(options));
  DI_RETURN_IF_ERROR(peers->wait_connected(kPeersWaitS, true));
  return peers;
}

int stat_peers(const CacheFlags& flags) {
  const auto peers = open_peers(flags);
  if (!peers.ok()) return fail(peers.status().message());
  std::string text;
  bool all = true;
  for (const auto& [name, said] : peers.value()->describe(kPeersWaitS)) {
    all &= said.ok();
    text += fmt::format("{}\n{}", name, said.ok() ? said.value() : said.status().message() + "\n");
  }
  return print_result(text, all ? kExitOk : kExitFailure);
}

// A folder of --kv-ssd that is there; nothing is made by looking at it.
Result<std::unique_ptr<kv::SsdTier>> open_ssd(const std::string& dir) {
  if (is_remote(dir) || is_peers(dir))
    return make_error(Code::kInvalidArgument,
                      "{} is a remote store; only folders of --kv-ssd can be listed and verified.", dir);
  struct stat st = {};
  if (::stat((dir + "/lock").c_str(), &st) != 0)
    return make_error(Code::kNotFound,
                      "{} is no folder of an SSD cache (--kv-ssd), nor a remote store (dir:, redis:, kvstore:).", dir);
  return kv::SsdTier::open(dir, {.bytes_max = 1ull << 62});
}

std::string time_left(int64_t expires_at) {
  const int64_t s = expires_at - static_cast<int64_t>(std::time(nullptr));
  if (s <= 0) return "expired";
  return s < 3600 ? fmt::format("{} min", s / 60) : fmt::format("{:.1f} h", static_cast<double>(s) / 3600);
}

int list(const CacheFlags& flags) {
  const auto ssd = open_ssd(flags.store);
  if (!ssd.ok()) return fail(ssd.status().message());
  std::string text = fmt::format("{:32}  {:>10}  {:>9}  tenant's space\n", "key", "bytes", "lives");
  for (const kv::SsdRecord& r : ssd.value()->list()) {
    text += fmt::format("{:32}  {:>10}  {:>9}  {:016x}\n", r.key.hex(), r.bytes, time_left(r.expires_at), r.space);
  }
  return print_result(text);
}

int stat(const CacheFlags& flags) {
  if (is_peers(flags.store)) return stat_peers(flags);
  if (is_remote(flags.store)) {
    const auto store = open_remote(flags.store);
    if (!store.ok()) return fail(store.status().message());
    const Status status = store.value()->ping();
    if (!status.ok()) return fail(status.message());
    return print_result(fmt::format("{} answers.\n", flags.store));
  }
  const auto ssd = open_ssd(flags.store);
  if (!ssd.ok()) return fail(ssd.status().message());
  const kv::SsdStats s = ssd.value()->stats();
  std::map<uint64_t, std::pair<int64_t, uint64_t>> spaces;
  for (const kv::SsdRecord& r : ssd.value()->list()) {
    ++spaces[r.space].first;
    spaces[r.space].second += r.bytes;
  }
  std::string text = fmt::format("{} blocks, {} in {} segments of {}\n{} frames at the end of the log were not whole\n",
                                 s.records, format_bytes(s.bytes), s.segments, format_bytes(s.segment_bytes), s.torn);
  for (const auto& [space, sum] : spaces)
    text += fmt::format("  space {:016x}{}: {} blocks, {}\n", space, space == kv::space_of("") ? " (no tenant)" : "",
                        sum.first, format_bytes(sum.second));
  return print_result(text);
}

int purge(const CacheFlags& flags) {
  const bool by_tenant = !flags.tenant.empty();
  if (flags.all + flags.expired + by_tenant != 1)
    return fail("Say what is to be forgotten: --tenant NAME, --expired or --all.");
  const uint64_t space = by_tenant ? kv::space_of(flags.tenant) : 0;
  if (is_peers(flags.store)) {
    if (flags.expired) return fail("A KV server forgets what has expired by itself.");
    const auto peers = open_peers(flags);
    if (!peers.ok()) return fail(peers.status().message());
    const Status status = peers.value()->purge(space, kPeersWaitS);
    return status.ok() ? kExitOk : fail(status.message());
  }
  if (is_remote(flags.store)) {
    if (flags.expired && flags.store.starts_with("redis")) return fail("Redis forgets what has expired by itself.");
    const auto store = open_remote(flags.store);
    if (!store.ok()) return fail(store.status().message());
    if (flags.expired) {
      const Result<int64_t> swept = store.value()->sweep();
      if (!swept.ok()) return fail(swept.status().message());
      return print_result(fmt::format("{} blocks removed.\n", swept.value()));
    }
    const Status status = store.value()->purge(space);
    return status.ok() ? kExitOk : fail(status.message());
  }
  const auto ssd = open_ssd(flags.store);
  if (!ssd.ok()) return fail(ssd.status().message());
  const int64_t before = ssd.value()->stats().records;
  if (!flags.expired) ssd.value()->purge(space);
  ssd.value()->flush();
  const int64_t removed = before - ssd.value()->stats().records;
  return print_result(fmt::format("{} blocks removed.\n", removed));
}

int verify(const CacheFlags& flags) {
  const auto ssd = open_ssd(flags.store);
  if (!ssd.ok()) return fail(ssd.status().message());
  const int64_t records = ssd.value()->stats().records, bad = ssd.value()->scrub();
  const std::string text = fmt::format("{} blocks read; {} were damaged and are forgotten.\n", records, bad);
  return print_result(text, bad > 0 ? kExitFailure : kExitOk);
}

struct ExplainFlags {
  std::string request, log, model;
  std::optional<int> keep;
};

// What serve uses for the model if it is not told otherwise.
int keep_of(const std::string& model) {
  const Result<std::string> dir = find_model(model);
  const auto config =
      dir.ok() ? checkpoint::ModelConfig::load(dir.value()) : Result<checkpoint::ModelConfig>(dir.status());
  const int64_t window = config.ok() ? config->sliding_window : checkpoint::ModelConfig().sliding_window;
  return static_cast<int>(window) + engine::EngineOptions().keep_extra;
}

int explain(const ExplainFlags& flags) {
  const Result<std::vector<kv::LoggedPrompt>> prompts = kv::PromptLog::read(flags.log);
  if (!prompts.ok()) return fail(prompts.status().message());
  if (prompts->empty()) return fail(fmt::format("{} holds no prompts.", flags.log));
  size_t at = prompts->size() - 1;
  if (flags.request != "last") {
    const auto named = std::ranges::find(prompts.value(), flags.request,
                                         [](const kv::LoggedPrompt& p) { return std::to_string(p.number); });
    if (named == prompts->end()) {
      return fail(fmt::format("{} has no request {}; it holds {} to {}.", flags.log, flags.request,
                              prompts->front().number, prompts->back().number));
    }
    at = static_cast<size_t>(named - prompts->begin());
  }
  std::optional<text::Tokenizer> tokenizer;
  const Result<std::string> file = find_tokenizer(flags.model);
  if (!flags.model.empty() && !file.ok()) return fail(file.status().message());
  if (file.ok()) {
    if (Result<text::Tokenizer> loaded = text::Tokenizer::load(file.value()); loaded.ok()) tokenizer = loaded.value();
  }
  const int keep = flags.keep ? *flags.keep : keep_of(flags.model);
  const std::string text = explain_prompt(prompts.value(), at, {.keep = keep}, tokenizer ? &*tokenizer : nullptr);
  return print_result(text);
}

struct PoolFlags {
  std::string url;
  kv::RadosPoolOptions pool;
};

void add_init_rados(CLI::App& app, Run* run) {
  auto flags = std::make_shared<PoolFlags>();
  CLI::App* sub = app.add_subcommand("init-rados", "Make an erasure-coded pool for blocks in a Ceph cluster");
  sub->add_option("POOL", flags->url, "rados://POOL[?config=PATH][&user=NAME]")->required();
  sub->add_option("--k", flags->pool.k, "Data parts of a block")->capture_default_str();
  sub->add_option("--m", flags->pool.m, "Coding parts: so many may be lost")->capture_default_str();
  sub->add_option("--groups", flags->pool.groups, "Placement groups")->capture_default_str();
  sub->add_option("--failure-domain", flags->pool.failure_domain, "What holds one part at most: osd, host, rack")
      ->capture_default_str();
  sub->callback([flags, run] {
    *run = [flags] {
      const Status status = kv::make_rados_pool(flags->url, flags->pool);
      return status.ok() ? kExitOk : fail(status.message());
    };
  });
}

void add_explain(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* sub = app.add_subcommand("explain", "Say why a prompt was not served from the cache");
  sub->add_option("REQUEST", flags->request, "Its number in the log, or \"last\"")->default_val("last");
  sub->add_option("--log", flags->log, "The file of --kv-log of the service")->required();
  sub->add_option("--model", flags->model,
                  "Model of the service, whose tokenizer turns tokens into text (default: the bundled one)");
  sub->add_option("--keep", flags->keep, "Prompt rows at the end that always run (default: the model's window and 12)")
      ->check(CLI::Range(0, 1 << 20));
  sub->callback([flags, run] { *run = [flags] { return explain(*flags); }; });
}

void setup_cache(CLI::App& app, Run* run) {
  auto flags = std::make_shared<CacheFlags>();
  app.require_subcommand(1);
  const auto add = [&](const char* name, const char* help, int (*act)(const CacheFlags&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->add_option("store", flags->store, "Folder of --kv-ssd, or a store of --kv-remote")->required();
    sub->add_option("--kv-token-file", flags->token_file, "File with the secret of KV servers");
    sub->callback([flags, act, run] { *run = [flags, act] { return act(*flags); }; });
    return sub;
  };
  add("ls", "List the blocks of an SSD cache", &list);
  add("stat", "Sums by tenant, and whether a remote store answers", &stat);
  CLI::App* p = add("purge", "Forget blocks", &purge);
  p->add_option("--tenant", flags->tenant, "Only those of one tenant");
  p->add_flag("--expired", flags->expired, "Only those that have passed their time");
  p->add_flag("--all", flags->all, "All");
  add_explain(app, run);
  add_init_rados(app, run);
  add("verify", "Read all blocks of an SSD cache, and forget damaged ones", &verify);
}

const Command kCache("cache", "Look into the stores of computed prompts", &setup_cache);

}  // namespace
}  // namespace deepinfer::app
