// Remote stores: a folder, Redis and a Redis Cluster of three nodes on loopback, alive, stopped and gone.
#include "kv/remote_store.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "kv/directory_store.h"
#include "kv/record.h"
#include "kv/redis_store.h"
#include "kv/threaded_tier.h"
#include "tests/support/child_process.h"
#include "tests/unit/kv/remote_records.h"

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;
using namespace remote_records;

Code get(RemoteStore& store, uint32_t i) {
  std::vector<std::byte> buffer(30000);
  PutInfo info;
  const Result<size_t> n = store.get(key_of(i), buffer, &info);
  if (!n.ok()) return n.status().code();
  buffer.resize(n.value());
  EXPECT_EQ(buffer, record_of(i));
  return Code::kOk;
}

bool have(const char* program) { return std::system(fmt::format("command -v {} >/dev/null", program).c_str()) == 0; }

class Remote : public testing::Test {
 protected:
  void SetUp() override {
    dir = testing::TempDir() + "remote_" + std::to_string(::getpid());
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  void TearDown() override {
    servers.clear();
    fs::remove_all(dir);
  }
  int start_redis(std::vector<std::string> more = {}) {
    // A cluster's bus uses port + 10000, which may be taken: then the server ends, and another port is tried.
    for (int attempt = 0; attempt < 10; ++attempt) {
      if (const int port = try_redis(free_port(50000), more); port > 0) return port;
    }
    ADD_FAILURE() << "redis-server does not start";
    return 0;
  }
  int try_redis(int port, const std::vector<std::string>& more) {
    const std::string home = dir + "/" + std::to_string(port);
    fs::create_directories(home);
    std::vector<std::string> words = {"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save",
                                      "",             "--dir",  home};
    words.insert(words.end(), more.begin(), more.end());
    servers[port] = ChildProcess(words);
    RedisStore store({.port = port});
    for (int i = 0; i < 6000 && servers[port].running(); ++i) {
      if (store.ping().ok()) return port;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    servers.erase(port);
    return 0;
  }
  static void check_store(RemoteStore& store) {
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
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    EXPECT_EQ(get(store, 7), Code::kNotFound);
    EXPECT_TRUE(store.purge(0).ok());
    EXPECT_EQ(get(store, 0), Code::kNotFound);
  }

  std::string dir;
  std::map<int, ChildProcess> servers;
};

TEST(RemoteStores, UrlsAreChecked) {
  for (const char* good : {"redis://127.0.0.1:6379", "redis://host/prefix", "redis+cluster://a:1/p", "dir:/tmp"})
    EXPECT_TRUE(open_remote_store(good).ok()) << good;
  for (const char* bad : {"", "redis://", "redis://:6379", "redis://a:0", "redis://a:70000", "redis://a:1x", "dir:",
                          "dir:x", "http://a"})
    EXPECT_EQ(open_remote_store(bad).status().code(), Code::kInvalidArgument) << bad;
}

TEST_F(Remote, Folder) {
  DirectoryStore store(dir + "/store");
  check_store(store);
  ASSERT_TRUE(store.put(key_of(1), record_of(1), {}).ok());
  const std::string file = dir + "/store/" + key_of(1).hex().substr(0, 2) + "/" + key_of(1).hex() + ".kv";
  fs::resize_file(file, 1000);
  EXPECT_EQ(get(store, 1), Code::kNotFound);
  std::ofstream(dir + "/file") << "x";
  DirectoryStore nowhere(dir + "/file/below");
  EXPECT_FALSE(nowhere.ping().ok());
  EXPECT_FALSE(nowhere.put(key_of(1), record_of(1), {}).ok());
  EXPECT_NE(get(nowhere, 1), Code::kOk);
}

TEST_F(Remote, Redis) {
  if (!have("redis-server")) GTEST_SKIP() << "redis-server is not installed (tools/install-deps.sh --tests)";
  RedisStore store({.port = start_redis(), .connect_timeout_s = 20, .command_timeout_s = 20});
  check_store(store);
}

TEST_F(Remote, RedisCluster) {
  if (!have("redis-server") || !have("redis-cli")) GTEST_SKIP() << "redis is not installed";
  std::string nodes;
  int port = 0;
  for (int i = 0; i < 3; ++i) {
    port = start_redis({"--cluster-enabled", "yes", "--cluster-node-timeout", "60000"});
    nodes += fmt::format(" 127.0.0.1:{}", port);
  }
  const std::string create = "redis-cli --cluster create" + nodes + " --cluster-yes >/dev/null 2>&1";
  ASSERT_EQ(std::system(create.c_str()), 0);
  RedisStore store({.port = port, .cluster = true, .connect_timeout_s = 20, .command_timeout_s = 20});
  for (int i = 0; i < 6000 && !store.put(key_of(0), record_of(0), {}).ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  check_store(store);
}

TEST(RedisSlots, AreRedisOwn) {
  EXPECT_EQ(redis_slot("123456789"), 0x31c3 % 16384);
  EXPECT_EQ(redis_slot("a{123456789}b"), 0x31c3 % 16384);
  EXPECT_EQ(redis_slot("{}x"), redis_slot("{}x"));
}

// A server that stops answering, dies and comes back: misses and refusals, never a wait beyond the limits.
TEST_F(Remote, AStoreThatGoesAway) {
  if (!have("redis-server")) GTEST_SKIP() << "redis-server is not installed (tools/install-deps.sh --tests)";
  const int port = start_redis();
  ThreadedTier tier(std::make_unique<RedisStore>(RedisOptions{.port = port, .command_timeout_s = 0.2}),
                    {.threads = 3, .away_s = 0.3});
  std::map<Tier::Ticket, Tier::Completion> done;
  const auto wait = [&](Tier::Ticket ticket) {
    for (int i = 0; i < 5000 && !done.contains(ticket); ++i) {
      std::array<Tier::Completion, 8> got;
      for (size_t k = 0, n = tier.poll(got); k < n; ++k) done[got[k].ticket] = got[k];
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(done.contains(ticket));
    return done[ticket].status;
  };
  std::vector<std::byte> buffer(30000);
  const auto comes = [&](const auto& ask) {  // within some tries: the machine may be busy
    Status status;
    for (int i = 0; i < 100; ++i) {
      status = wait(ask());
      if (status.ok()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << status.to_string();
    return false;
  };
  ASSERT_TRUE(comes([&] { return tier.put(key_of(1), record_of(1), {}); }));
  ASSERT_TRUE(comes([&] { return tier.get(key_of(1), buffer); }));
  servers.at(port).signal(SIGSTOP);
  int asked = 0, seen_away = 0;  // a machine that stalls may see nothing of 0.3 s
  for (int i = 0; i < 100; ++i) {
    const Status status = wait(tier.get(key_of(1), buffer));
    EXPECT_FALSE(status.ok());
    asked += status.message() != "the store is away";
    seen_away += tier.stats().away;
  }
  EXPECT_GT(asked, 0);
  EXPECT_LT(asked, 100);
  EXPECT_GT(seen_away, 0);
  servers.at(port).signal(SIGCONT);
  EXPECT_TRUE(comes([&] { return tier.get(key_of(1), buffer); }));
  servers.at(port).kill();
  EXPECT_FALSE(wait(tier.get(key_of(1), buffer)).ok());
  EXPECT_FALSE(wait(tier.put(key_of(2), record_of(2), {})).ok());
}

TEST_F(Remote, TierOverAFolder) {
  ThreadedTier tier(std::make_unique<DirectoryStore>(dir), {.threads = 4});
  std::map<Tier::Ticket, Status> done;
  std::vector<std::vector<std::byte>> buffers(50, std::vector<std::byte>(30000));
  const auto poll = [&] {
    std::array<Tier::Completion, 8> got;
    for (size_t k = 0, n = tier.poll(got); k < n; ++k) EXPECT_TRUE(done.emplace(got[k].ticket, got[k].status).second);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (uint32_t i = 0; i < 50; ++i) tier.put(key_of(i), record_of(i), {});
  for (int i = 0; i < 5000 && done.size() < 50; ++i) poll();
  std::vector<Tier::Ticket> cancelled;
  for (uint32_t i = 0; i < 50; ++i) {
    const Tier::Ticket t = tier.get(key_of(i), buffers[i]);
    if (i % 5 != 0) continue;
    tier.cancel(t);
    buffers[i] = std::vector<std::byte>();
    cancelled.push_back(t);
  }
  for (int i = 0; i < 5000 && done.size() < 90; ++i) poll();
  EXPECT_EQ(done.size(), 90u);
  for (const auto& [ticket, status] : done) EXPECT_TRUE(status.ok()) << status.to_string();
  for (const Tier::Ticket t : cancelled) EXPECT_FALSE(done.contains(t));
}

}  // namespace
}  // namespace deepinfer::kv
