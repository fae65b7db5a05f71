// Redis servers of a test on loopback, and tiers over them.
//
//   TEST_F(MyTest, Case) { const int port = start_redis({"--maxmemory", "3mb"}); servers.at(port).signal(SIGSTOP); }
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "kv/redis_store.h"
#include "tests/support/child_process.h"
#include "tests/unit/kv/remote_records.h"

namespace deepinfer::kv {

using remote_records::key_of;
using remote_records::record_of;

inline Code get(RemoteStore& store, uint32_t i) {
  std::vector<std::byte> buffer(30000);
  PutInfo info;
  const Result<size_t> n = store.get(key_of(i), buffer, &info);
  if (!n.ok()) return n.status().code();
  buffer.resize(n.value());
  EXPECT_EQ(buffer, record_of(i));
  return Code::kOk;
}

inline void check_store(RemoteStore& store) {
  EXPECT_TRUE(store.ping().ok());
  for (uint32_t i = 0; i < 40; ++i)
    ASSERT_TRUE(store.put(key_of(i), record_of(i), {.space = 1 + i % 2, .ttl_s = 600}).ok());
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(get(store, i), Code::kOk);
  EXPECT_EQ(get(store, 99), Code::kNotFound);
  std::vector<std::byte> small(100);
  PutInfo info;
  EXPECT_EQ(store.get(key_of(1), small, &info).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(store.erase(key_of(4)).ok());
  EXPECT_TRUE(store.erase(key_of(4)).ok());
  EXPECT_EQ(get(store, 4), Code::kNotFound);
  EXPECT_TRUE(store.purge(2).ok());
  for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(get(store, i), i % 2 == 0 && i != 4 ? Code::kOk : Code::kNotFound) << i;
  bool seen = false;  // a second is soon over on a busy machine
  for (int i = 0; i < 100 && !seen; ++i) {
    ASSERT_TRUE(store.put(key_of(7), record_of(7), {.ttl_s = 1}).ok());
    seen = get(store, 7) == Code::kOk;
  }
  EXPECT_TRUE(seen);
  for (int i = 0; i < 6000 && get(store, 7) == Code::kOk; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(get(store, 7), Code::kNotFound);
  EXPECT_TRUE(store.purge(0).ok());
  EXPECT_EQ(get(store, 0), Code::kNotFound);
}

inline bool have(const char* program) {
  return std::system(fmt::format("command -v {} >/dev/null", program).c_str()) == 0;
}

// What redis-cli says.
inline std::string redis_cli(int port, const std::string& words) {
  std::FILE* f = ::popen(fmt::format("redis-cli -p {} {} 2>/dev/null", port, words).c_str(), "r");
  std::string out;
  for (int c = f == nullptr ? EOF : std::fgetc(f); c != EOF; c = std::fgetc(f)) out += static_cast<char>(c);
  if (f != nullptr) ::pclose(f);
  return out.substr(0, out.find_last_not_of("\r\n") + 1);
}

// Servers with a folder of their own; both are gone at the end.
class RedisHost {
 public:
  explicit RedisHost(const std::string& name) : dir(testing::TempDir() + name + "_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
  }
  ~RedisHost() {
    servers.clear();
    std::filesystem::remove_all(dir);
  }
  // Below the ports that connections to others are given, one of which would keep a server from coming back to its own.
  static int port_for_redis() { return free_port(32768); }
  int start_redis(std::vector<std::string> more = {}) {
    // A cluster's bus uses port + 10000, which may be taken: then the server ends, and another port is tried.
    for (int attempt = 0; attempt < 10; ++attempt) {
      if (const int port = try_redis(port_for_redis(), more); port > 0) return port;
    }
    ADD_FAILURE() << "redis-server does not start";
    return 0;
  }
  int try_redis(int port, const std::vector<std::string>& more) {
    const std::string home = dir + "/" + std::to_string(port);
    std::filesystem::create_directories(home);
    std::vector<std::string> words = {"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save",
                                      "",             "--dir",  home};
    words.insert(words.end(), more.begin(), more.end());
    servers[port] = ChildProcess(words);
    for (int i = 0; i < 6000 && servers[port].running(); ++i) {
      // A new store each time: one that found nobody leaves the port alone for a while.
      const Code code = RedisStore({.port = port}).ping().code();
      if (code == Code::kOk || code == Code::kFailedPrecondition) return port;  // the latter wants a password
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    servers.erase(port);
    return 0;
  }
  // Three nodes that have met and share the slots. They say so two seconds later at the earliest: wait_for_cluster().
  void start_cluster() {
    constexpr int kNodes = 3, kSlots = 16384;
    int first = 0;
    for (int i = 0; i < kNodes; ++i) {
      const int port = start_redis({"--cluster-enabled", "yes", "--cluster-node-timeout", "60000",
                                    "--cluster-require-full-coverage", "no"});
      EXPECT_EQ(redis_cli(port, fmt::format("cluster addslots $(seq {} {})", i * kSlots / kNodes,
                                            (i + 1) * kSlots / kNodes - 1)),
                "OK");
      EXPECT_EQ(redis_cli(port, fmt::format("cluster set-config-epoch {}", i + 1)), "OK");
      if (i == 0) first = port;
      else EXPECT_EQ(redis_cli(port, fmt::format("cluster meet 127.0.0.1 {}", first)), "OK");
    }
  }
  // The port of one of its nodes.
  int wait_for_cluster() {
    for (auto& [port, server] : servers) {
      const auto ready = [&] {
        const std::string info = redis_cli(port, "cluster info");
        return info.find("cluster_state:ok") != std::string::npos &&
               info.find("cluster_slots_assigned:16384") != std::string::npos;
      };
      for (int i = 0; i < 6000 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return servers.rbegin()->first;
  }

  const std::string dir;
  std::map<int, ChildProcess> servers;
};

class RedisServers : public testing::Test, protected RedisHost {
 protected:
  RedisServers() : RedisHost("redis") {}
};

// A tier whose answers are waited for.
class WaitingTier {
 public:
  explicit WaitingTier(Tier& tier) : tier_(tier) {}
  Status wait(Tier::Ticket ticket) {
    std::array<Tier::Completion, 8> got;
    for (int i = 0; i < 600000; ++i) {
      for (size_t k = 0, n = tier_.poll(got); k < n; ++k) done_[got[k].ticket] = got[k].status;
      if (done_.contains(ticket)) break;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_TRUE(done_.contains(ticket));
    return done_[ticket];
  }
  // Of the tickets that came up while others were waited for.
  bool completed(Tier::Ticket ticket) const { return done_.contains(ticket); }
  Status put(uint32_t i) { return wait(tier_.put(key_of(i), record_of(i), {.space = 1})); }
  Status get(uint32_t i) {
    std::vector<std::byte> buffer(record_of(i).size());
    const Status status = wait(tier_.get(key_of(i), buffer));
    if (status.ok()) {
      EXPECT_EQ(buffer, record_of(i));
    }
    return status;
  }
  // Within many tries: the machine may be busy, and a store that was away is left alone for a while.
  bool comes(const std::function<Status()>& ask) {
    Status status;
    for (int i = 0; i < 8000; ++i) {
      status = ask();
      if (status.ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << status.to_string();
    return false;
  }

 private:
  Tier& tier_;
  std::map<Tier::Ticket, Status> done_;
};

// Records 0 .. count - 1 are there: they and ten that are not are asked for at once, some of them with buffers that are
// too small and some taken back, whose buffers stay untouched.
inline void check_many_gets(Tier& tier, uint32_t count) {
  WaitingTier waiting(tier);
  const uint32_t asked = count + 10;
  std::vector<Tier::Ticket> tickets;
  std::vector<std::vector<std::byte>> buffers(asked, std::vector<std::byte>(30000));
  for (uint32_t i = 0; i < asked; ++i)
    tickets.push_back(tier.get(key_of(i), std::span(buffers[i]).first(i % 5 == 4 ? 99 : 30000)));
  for (uint32_t i = 0; i < asked; i += 7) {
    tier.cancel(tickets[i]);
    std::ranges::fill(buffers[i], std::byte{9});
  }
  for (uint32_t i = 0; i < asked; ++i) {
    if (i % 7 == 0) continue;
    const Code code = waiting.wait(tickets[i]).code();
    EXPECT_EQ(code, i >= count ? Code::kNotFound : i % 5 == 4 ? Code::kResourceExhausted : Code::kOk) << i;
    if (code != Code::kOk) continue;
    const std::vector<std::byte> want = record_of(i);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), buffers[i].begin())) << i;
  }
  for (uint32_t i = 0; i < asked; i += 7) EXPECT_EQ(std::ranges::count(buffers[i], std::byte{9}), 30000) << i;
}

}  // namespace deepinfer::kv
