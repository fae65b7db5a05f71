// The tier on Ceph beside `rados bench` on the same pool, at one value size. Only with a cluster: DEEPINFER_BENCH_RADOS
// is its store (rados://POOL?config=PATH), as tests/e2e/rados_test.py sets it for the cluster that it starts.
#include <array>
#include <cstdlib>

#include "bench/kv/cases.h"
#include "kv/remote_store.h"
#include "kv/threaded_tier.h"

namespace bench::kv {
namespace {

using deepinfer::kv::kRadosDepth, deepinfer::kv::kRadosThreads;
constexpr int kBlocks = 400, kReads = 2000, kInFlight = kRadosThreads * kRadosDepth, kDepth = 2 * kInFlight;
constexpr int kPauseUs = 1000;  // a block takes tens of milliseconds

// Bytes a second; 0: it failed. What it writes is rounded up to whole stripes, and counted so.
double rados_bench(const std::string& url, const std::string& what, size_t bytes, int in_flight, int seconds) {
  const size_t question = url.find('?'), config = url.find("config=");
  if (question == std::string::npos || config == std::string::npos) return 0;
  const std::string pool = url.substr(8, question - 8), path = url.substr(config + 7);
  const std::string command =
      fmt::format("exec timeout -k 1 {} rados -c {} -p {} bench {} {} -t {} {} 2>/dev/null", seconds + 30, path, pool,
                  seconds, what, in_flight, what == "write" ? fmt::format("-b {} --no-cleanup", bytes) : "");
  std::FILE* f = ::popen(command.c_str(), "r");
  if (f == nullptr) return 0;
  double rate = 0;
  std::array<char, 512> line;
  while (std::fgets(line.data(), line.size(), f) != nullptr) std::sscanf(line.data(), "Bandwidth (MB/sec): %lf", &rate);
  ::pclose(f);
  return rate * (1 << 20);
}

double best_rados_bench(const std::string& url, const std::string& what, size_t bytes, int seconds) {
  return std::max(rados_bench(url, what, bytes, kInFlight, seconds),
                  rados_bench(url, what, bytes, kInFlight / 2, seconds));
}

}  // namespace

void rados(bool quick) {
  const char* url = std::getenv("DEEPINFER_BENCH_RADOS");
  if (url == nullptr) return;
  Records records;
  const std::vector<std::byte> record(records.sealed(0).begin(), records.sealed(0).end());
  ThreadedTier tier(must(deepinfer::kv::open_remote_store(url)), {.away_s = 0, .away_max_s = 0, .end_wait_s = 60});
  Turns put, get;
  const int seconds = quick ? 2 : 3;
  for (int turn = 0; turn <= (quick ? 1 : 4); ++turn) {
    if (turn > 0) {
      // New ones each time, as rados bench writes: to replace an object is more work. Each is read several times, as
      // rados bench reads at random what it wrote; the better of two runs, as for rados bench.
      const auto block = [turn](int i) { return static_cast<uint64_t>(turn * kBlocks + i); };
      const auto read = [&] {
        return get_rate(tier, record.size(), kReads, kDepth, [&](int i) { return block(i * 617 % kBlocks); }, kPauseUs);
      };
      put.value(put_rate(tier, record, kBlocks, kDepth, block, kPauseUs));
      get.value(std::max(read(), read()));
    }
    put.ceiling(best_rados_bench(url, "write", record.size(), seconds));
    get.ceiling(best_rados_bench(url, "rand", record.size(), seconds));
  }
  const auto line = [](const char* name) {
    return Line{.bench = "kv",
                .name = name,
                .unit = "MB/s",
                .ceiling_is = fmt::format("rados bench on the same pool, the better of {} and {} at once", kInFlight / 2,
                                          kInFlight),
                .goal = 0.8};
  };
  get.report(line("rados_get"), 1e6);
  put.report(line("rados_put"), 1e6);
}

}  // namespace bench::kv
