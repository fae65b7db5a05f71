// Redis behind a tier beside redis-benchmark, at one value size.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "bench/kv/cases.h"
#include "kv/redis_store.h"
#include "kv/threaded_tier.h"
#include "tests/support/child_process.h"

namespace bench::kv {
namespace {

using deepinfer::ChildProcess;

constexpr int kBlocks = 200;  // few enough that redis-benchmark's random writes reach all of them

// Requests a second of redis-benchmark by command.
std::map<std::string, double> redis_benchmark(int port, size_t bytes, int requests, int clients) {
  std::map<std::string, double> out;
  const std::string command =
      fmt::format("redis-benchmark -h 127.0.0.1 -p {} -t set,get -d {} -n {} -r {} -c {} --csv 2>/dev/null", port, bytes,
                  requests, kBlocks, clients);
  std::FILE* f = ::popen(command.c_str(), "r");
  if (f == nullptr) return out;
  std::array<char, 512> line;
  while (std::fgets(line.data(), line.size(), f) != nullptr) {
    char name[16];
    double rate = 0;
    if (std::sscanf(line.data(), "\"%15[A-Z]\",\"%lf\"", name, &rate) == 2) out[name] = rate;
  }
  ::pclose(f);
  return out;
}

}  // namespace

void redis(bool quick) {
  const Folder folder("redis");
  const int port = deepinfer::free_port(50000);
  ChildProcess server({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder.path()});
  RedisStore store({.port = port});
  for (int i = 0; i < 300 && !store.ping().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!store.ping().ok()) {
    fmt::print(stderr, "NO PEER: there is no redis-server, so nothing is measured on Redis\n");
    return;
  }
  Records records;
  const std::vector<std::byte> record(records.sealed(0).begin(), records.sealed(0).end());
  const int requests = quick ? 2000 : 8000;
  ThreadedTier tier(std::make_unique<RedisStore>(RedisOptions{.port = port}), {});
  put_rate(tier, record, kBlocks, 32, [](int i) { return static_cast<uint64_t>(i); });
  std::vector<double> get, put, peer_get, peer_put;
  for (int turn = 0; turn < (quick ? 1 : 5); ++turn) {
    const auto block = [](int i) { return static_cast<uint64_t>(i * 617 % kBlocks); };
    std::map<std::string, double> peer = redis_benchmark(port, record.size(), requests, 8);
    for (const auto& [name, rate] : redis_benchmark(port, record.size(), requests, 50)) peer[name] = std::max(peer[name], rate);
    peer_get.push_back(peer["GET"] * static_cast<double>(record.size()));
    peer_put.push_back(peer["SET"] * static_cast<double>(record.size()));
    put.push_back(put_rate(tier, record, requests, 32, block));
    get.push_back(get_rate(tier, record.size(), requests, 32, block));
  }
  const auto line = [](const char* name, const std::vector<double>& v, const std::vector<double>& ceiling) {
    report({.bench = "kv", .name = name, .value = median(v) / 1e6, .unit = "MB/s", .ceiling = median(ceiling) / 1e6,
            .ceiling_is = "redis-benchmark, the better of 8 and 50 clients", .goal = 0.9, .goal_is_ratio = true});
  };
  line("redis_get", get, peer_get);
  line("redis_put", put, peer_put);
}

}  // namespace bench::kv
