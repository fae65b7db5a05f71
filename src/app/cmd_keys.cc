// deepinfer keys add|list|remove: the API keys of the service.
#include <algorithm>
#include <chrono>
#include <ctime>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/options/command_options.h"
#include "app/run/printer.h"
#include "serve/keys.h"

namespace deepinfer::app {
namespace {

struct KeysFlags {
  std::string action, name, file;
  int64_t concurrent = 0, tokens_per_minute = 0;
};

bool is_good_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-") ==
             std::string::npos;
}

int add_key(const KeysFlags& flags, std::vector<serve::KeyRecord> keys) {
  if (std::ranges::any_of(keys, [&](const auto& k) { return k.name == flags.name; })) {
    return fail(fmt::format("{} has a key named \"{}\" already; remove it first.", flags.file, flags.name));
  }
  if (keys.size() >= serve::kKeysMax)
    return fail(fmt::format("{} has {} keys, which is the limit.", flags.file, keys.size()));
  const std::string secret = serve::make_key();
  if (secret.empty()) return fail("The system gives no random bytes for a key.");
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  keys.push_back({flags.name, serve::hash_key(secret), now.count(), flags.concurrent, flags.tokens_per_minute});
  if (const Status status = serve::write_keys(flags.file, keys); !status.ok()) return fail(status.message());
  fmt::print(stderr, "The key of \"{}\", shown this once (a running service takes it after SIGHUP):\n", flags.name);
  fmt::print("{}\n", secret);
  return kExitOk;
}

int remove_key(const KeysFlags& flags, std::vector<serve::KeyRecord> keys) {
  if (std::erase_if(keys, [&](const auto& k) { return k.name == flags.name; }) == 0) {
    return fail(fmt::format("{} has no key named \"{}\".", flags.file, flags.name));
  }
  if (const Status status = serve::write_keys(flags.file, keys); !status.ok()) return fail(status.message());
  fmt::print(stderr, "Removed \"{}\" (a running service forgets it after SIGHUP).\n", flags.name);
  return kExitOk;
}

int list_keys(const std::vector<serve::KeyRecord>& keys) {
  const auto limit = [](int64_t n) { return n > 0 ? std::to_string(n) : std::string("-"); };
  fmt::print("{:<24} {:<10} {:>10} {:>13}\n", "name", "made", "at once", "tokens/minute");
  for (const serve::KeyRecord& k : keys) {
    fmt::print("{:<24} {:%Y-%m-%d} {:>10} {:>13}\n", without_controls(k.name),
               fmt::gmtime(static_cast<std::time_t>(k.created)), limit(k.concurrent), limit(k.tokens_per_minute));
  }
  return kExitOk;
}

int run_keys(const KeysFlags& flags) {
  if (flags.file.empty())
    return fail("Say which file holds the keys: --keys FILE (or keys in [serve] of a configuration file).");
  Result<std::vector<serve::KeyRecord>> keys = serve::read_keys(flags.file);
  if (!keys.ok()) return fail(keys.status().message());
  if (flags.action == "list") return list_keys(keys.value());
  if (!is_good_name(flags.name)) return fail("A key needs a NAME of 1 to 64 letters, digits and any of . _ @ -");
  return flags.action == "add" ? add_key(flags, std::move(keys).value()) : remove_key(flags, std::move(keys).value());
}

void setup_keys(CLI::App& app, Run* run) {
  auto flags = std::make_shared<KeysFlags>();
  app.add_option("ACTION", flags->action, "add, list or remove")
      ->required()
      ->check(CLI::IsMember({"add", "list", "remove"}));
  app.add_option("NAME", flags->name, "Whose key it is");
  auto options = std::make_shared<CommandOptions>(app, "keys");
  options->bind("keys", &flags->file);
  app.add_option("--concurrent", flags->concurrent, "add: requests that the key may have in work; 0: any number")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app.add_option("--tokens-per-minute", flags->tokens_per_minute,
                 "add: tokens, prompt and answer, that the key may use; 0: any number")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50));
  *run = [flags, options] { return options->run([&] { return run_keys(*flags); }); };
}

const Command kKeys("keys", "Add, list and remove the API keys of the service", &setup_keys);

}  // namespace
}  // namespace deepinfer::app
