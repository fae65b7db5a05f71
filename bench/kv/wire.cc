// Redis behind a tier beside redis-benchmark, at one value size, and a KV server beside a bare TCP stream and Redis.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "bench/kv/cases.h"
#include "kv/peer_server.h"
#include "kv/peer_tier.h"
#include "kv/peer_wire.h"
#include "kv/redis_store.h"
#include "kv/threaded_tier.h"
#include "tests/support/child_process.h"

namespace bench::kv {
namespace {

using deepinfer::ChildProcess;

constexpr int kBlocks = 200;  // few enough that redis-benchmark's random writes reach all of them
constexpr int kDepth = 32;
constexpr int kRedisPauseUs = 300;  // Redis takes 16 to 30 us for a block, and a poll that comes later finds some more

// Clients of redis-benchmark, and requests that each of them has on its way.
struct RedisLoad {
  int clients, pipelined;
};
constexpr std::array<RedisLoad, 4> kRedisLoads{{{8, 1}, {50, 1}, {2, 4}, {4, 4}}};

// Requests a second by command.
std::map<std::string, double> redis_benchmark(int port, size_t bytes, int requests, const RedisLoad& load) {
  std::map<std::string, double> out;
  const std::string command =
      fmt::format("redis-benchmark -h 127.0.0.1 -p {} -t set,get -d {} -n {} -r {} -c {} -P {} --csv 2>/dev/null", port,
                  bytes, requests, kBlocks, load.clients, load.pipelined);
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

// Bytes a second of blocks that one thread sends, `at_once` with a call, and another receives, over loopback.
// send_bytes: of the sender's socket buffer, 0: the system's own.
double tcp_rate(std::span<const std::byte> block, int count, size_t at_once, int send_bytes) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof a;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&a), size) != 0 || ::listen(listener, 1) != 0) return 0;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&a), &size);
  const int out = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(out, reinterpret_cast<sockaddr*>(&a), size) != 0) return 0;
  if (send_bytes > 0) ::setsockopt(out, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
  const int in = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const double begin = wall_seconds();
  std::thread sender([&] {
    const size_t all = block.size() * static_cast<size_t>(count);
    for (size_t sent = 0; sent < all;) {
      std::vector<iovec> parts;
      for (size_t at = sent; at < all && parts.size() < at_once; at += parts.back().iov_len) {
        const std::span<const std::byte> rest = block.subspan(at % block.size());
        parts.push_back({const_cast<std::byte*>(rest.data()), rest.size()});
      }
      msghdr message = {};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      const ssize_t n = ::sendmsg(out, &message, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
    ::shutdown(out, SHUT_WR);
  });
  std::vector<std::vector<std::byte>> buffers(32, std::vector<std::byte>(block.size()));
  for (int i = 0; i < count; ++i) {
    if (::recv(in, buffers[static_cast<size_t>(i) % 32].data(), block.size(), MSG_WAITALL) <= 0) break;
  }
  const double s = wall_seconds() - begin;
  sender.join();
  ::close(in);
  ::close(out);
  return static_cast<double>(block.size()) * count / s;
}

double best_stream(std::span<const std::byte> block, int count) {
  double best = 0;
  for (const int send_bytes : {0, kPeerSendBytes}) {
    for (const size_t at_once : {1, 32}) best = std::max(best, tcp_rate(block, count, at_once, send_bytes));
  }
  return best;
}

deepinfer::Status wait_put(Tier& tier, uint64_t i, std::span<const std::byte> record) {
  const Tier::Ticket ticket = tier.put(key_of(i), record, {.space = 1});
  std::array<Tier::Completion, 1> done;
  while (tier.poll(done) == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return done[0].ticket == ticket ? done[0].status : deepinfer::Status(deepinfer::Code::kInternal, "another ticket");
}

class RedisServer {
 public:
  RedisServer()
      : port(deepinfer::free_port(50000)),
        server_({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save", "", "--dir",
                 folder_.path()}) {
    RedisStore store({.port = port});
    for (int i = 0; i < 300 && !store.ping().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    there = store.ping().ok();
    if (!there) fmt::print(stderr, "NO PEER: there is no redis-server, so nothing is measured on Redis\n");
  }
  const int port;
  bool there = false;

 private:
  const Folder folder_{"redis"};
  ChildProcess server_;
};

}  // namespace

void kvstore(bool quick) {
  Records records;
  const std::vector<std::byte> record(records.sealed(0).begin(), records.sealed(0).end());
  const auto server = must(PeerServer::start({}));
  const auto peers = must(PeerTier::open({.members = {fmt::format("127.0.0.1:{}", server->port())}, .timeout_s = 10}));
  must(peers->wait_connected(5));
  // Beside a stream and beside Redis, each through its own client, all by turns.
  RedisServer redis_server;
  ThreadedTier redis(std::make_unique<RedisStore>(RedisOptions{.port = redis_server.port}), {});
  const int requests = quick ? 2000 : 8000;
  const auto block = [](int i) { return static_cast<uint64_t>(i * 617 % kBlocks); };
  const auto in_order = [](int i) { return static_cast<uint64_t>(i); };
  put_rate(*peers, record, kBlocks, 32, in_order);
  if (redis_server.there) put_rate(redis, record, kBlocks, 32, in_order);
  Turns get, put, over_redis;
  for (int turn = 0; turn <= (quick ? 1 : 9); ++turn) {
    if (turn > 0) {
      const double get_now = get_rate(*peers, record.size(), requests, kDepth, block);
      get.value(get_now);
      over_redis.value(get_now);
      put.value(put_rate(*peers, record, requests, kDepth, block));
    }
    const double stream = best_stream(record, requests);
    get.ceiling(stream);
    put.ceiling(stream);
    if (redis_server.there) over_redis.ceiling(get_rate(redis, record.size(), requests, kDepth, block, kRedisPauseUs));
  }
  const auto line = [](const char* name, const char* what, double goal) {
    return Line{.bench = "kv", .name = name, .unit = "MB/s", .ceiling_is = what, .goal = goal};
  };
  const char* stream_is = "a TCP stream of the same blocks, the best of 1 and 32 a call, a small and a large buffer";
  get.report(line("kvstore_get", stream_is, 0.8), 1e6);
  put.report(line("kvstore_put", stream_is, 0.8), 1e6);
  if (redis_server.there)
    over_redis.report(line("kvstore_get_over_redis", "Redis behind the same interface", 1), 1e6);
  // A long prefix: one round trip, beside one that asks for a single block.
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; i < 1000; ++i) {
    keys.push_back(key_of(i));
    if (i >= kBlocks) must(wait_put(*peers, i, record));
  }
  std::vector<double> all, one;
  for (int turn = 0; turn < (quick ? 5 : 101); ++turn) {
    double begin = wall_seconds();
    if (peers->count_prefix(keys, 5) != keys.size()) std::exit(1);
    all.push_back((wall_seconds() - begin) * 1e3);
    begin = wall_seconds();
    if (peers->count_prefix(std::span(keys).first(1), 5) != 1) std::exit(1);
    one.push_back((wall_seconds() - begin) * 1e3);
  }
  report({.bench = "kv",
          .name = "lookup_kvstore_1000_blocks",
          .value = median(all),
          .unit = "ms",
          .ceiling = median(one),
          .ceiling_is = "a lookup of one block",
          .goal = 1,
          .higher_is_better = false});
}

void redis(bool quick) {
  RedisServer server;
  if (!server.there) return;
  const int port = server.port;
  Records records;
  const std::vector<std::byte> record(records.sealed(0).begin(), records.sealed(0).end());
  const int requests = quick ? 2000 : 15000;
  ThreadedTier tier(std::make_unique<RedisStore>(RedisOptions{.port = port}), {});
  put_rate(tier, record, kBlocks, 32, [](int i) { return static_cast<uint64_t>(i); });
  // Beside each load; what counts is the one that does best over all turns, not each turn's luckiest.
  struct Beside {
    std::string load;
    Turns get, put;
  };
  std::vector<Beside> beside;
  for (const RedisLoad& l : kRedisLoads) {
    beside.push_back({.load = fmt::format("redis-benchmark with {} clients of {} requests each, the best of {}",
                                          l.clients, l.pipelined, kRedisLoads.size())});
  }
  const auto block = [](int i) { return static_cast<uint64_t>(i * 617 % kBlocks); };
  for (int turn = 0; turn <= (quick ? 1 : 6); ++turn) {
    if (turn > 0) {
      const double put_now = put_rate(tier, record, requests, kDepth, block, kRedisPauseUs);
      const double get_now = get_rate(tier, record.size(), requests, kDepth, block, kRedisPauseUs);
      for (Beside& b : beside) {
        b.put.value(put_now);
        b.get.value(get_now);
      }
    }
    for (size_t i = 0; i < kRedisLoads.size(); ++i) {
      std::map<std::string, double> peer = redis_benchmark(port, record.size(), requests, kRedisLoads[i]);
      beside[i].get.ceiling(peer["GET"] * static_cast<double>(record.size()));
      beside[i].put.ceiling(peer["SET"] * static_cast<double>(record.size()));
    }
  }
  const auto report = [&](const char* name, Turns Beside::* turns) {
    const Beside& b =
        *std::ranges::min_element(beside, {}, [turns](const Beside& one) { return (one.*turns).ratio(); });
    (b.*turns).report(Line{.bench = "kv", .name = name, .unit = "MB/s", .ceiling_is = b.load, .goal = 0.9}, 1e6);
  };
  report("redis_get", &Beside::get);
  report("redis_put", &Beside::put);
}

}  // namespace bench::kv
