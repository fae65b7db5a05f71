// The tier on Ceph beside `rados bench` on the same pool, at one value size. Only with a cluster: DEEPINFER_BENCH_RADOS
// is its store (rados://POOL?config=PATH), as tests/e2e/rados_test.py sets it for the cluster that it starts.
#include <array>
#include <cstdlib>

#include "bench/kv/cases.h"
#include "kv/remote_store.h"
#include "kv/threaded_tier.h"

namespace bench::kv {
namespace {

constexpr int kBlocks = 400, kReads = 2000, kThreads = deepinfer::kv::kRadosThreads;

// Bytes a second; 0: it failed.
double rados_bench(const std::string& url, const std::string& what, size_t bytes, int clients, int seconds) {
  const size_t question = url.find('?'), config = url.find("config=");
  if (question == std::string::npos || config == std::string::npos) return 0;
  const std::string pool = url.substr(8, question - 8), path = url.substr(config + 7);
  const std::string command =
      fmt::format("rados -c {} -p {} bench {} {} -t {} {} 2>/dev/null", path, pool, seconds, what, clients,
                  what == "write" ? fmt::format("-b {} --no-cleanup", bytes) : "");
  std::FILE* f = ::popen(command.c_str(), "r");
  if (f == nullptr) return 0;
  double rate = 0;
  std::array<char, 512> line;
  while (std::fgets(line.data(), line.size(), f) != nullptr) std::sscanf(line.data(), "Bandwidth (MB/sec): %lf", &rate);
  ::pclose(f);
  return rate * (1 << 20);
}

double best_rados_bench(const std::string& url, const std::string& what, size_t bytes, int seconds) {
  return std::max(rados_bench(url, what, bytes, kThreads, seconds),
                  rados_bench(url, what, bytes, kThreads / 2, seconds));
}

}  // namespace

void rados(bool quick) {
  const char* url = std::getenv("DEEPINFER_BENCH_RADOS");
  if (url == nullptr) return;
  Records records;
  const std::vector<std::byte> record(records.sealed(0).begin(), records.sealed(0).end());
  ThreadedTier tier(must(deepinfer::kv::open_remote_store(url)), {.away_s = 0, .away_max_s = 0, .end_wait_s = 60});
  std::vector<double> put, get, peer_put, peer_get;
  const int seconds = quick ? 2 : 5;
  for (int turn = 0; turn < (quick ? 1 : 3); ++turn) {
    // New ones each time, as rados bench writes: to replace an object is more work.
    const auto block = [turn](int i) { return static_cast<uint64_t>(turn * kBlocks + i); };
    peer_put.push_back(best_rados_bench(url, "write", record.size(), seconds));
    put.push_back(put_rate(tier, record, kBlocks, 2 * kThreads, block));
    peer_get.push_back(best_rados_bench(url, "rand", record.size(), seconds));
    // Each several times, as rados bench reads at random what it wrote.
    get.push_back(get_rate(tier, record.size(), kReads, 2 * kThreads, [&](int i) { return block(i * 617 % kBlocks); }));
  }
  const auto line = [](const char* name, const std::vector<double>& v, const std::vector<double>& ceiling) {
    report({.bench = "kv", .name = name, .value = median(v) / 1e6, .unit = "MB/s", .ceiling = median(ceiling) / 1e6,
            .ceiling_is = fmt::format("rados bench on the same pool, the better of {} and {} at once", kThreads / 2,
                                      kThreads),
            .goal = 0.8, .goal_is_ratio = true});
  };
  line("rados_get", get, peer_get);
  line("rados_put", put, peer_put);
}

}  // namespace bench::kv
