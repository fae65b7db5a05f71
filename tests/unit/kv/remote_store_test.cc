// Remote stores: their addresses, a folder, one that comes later. Redis: redis_test.cc.
#include "kv/remote_store.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "kv/directory_store.h"
#include "kv/record.h"
#include "kv/redis_store.h"
#include "kv/threaded_tier.h"
#include "tests/unit/kv/redis_servers.h"

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;

class Remote : public RedisServers {};

TEST(RemoteStores, UrlsAreChecked) {
  for (const char* good : {"redis://127.0.0.1:6379", "redis://host/prefix", "redis+cluster://a:1/p", "dir:/tmp"})
    EXPECT_TRUE(open_remote_store(good).ok()) << good;
  for (const char* bad : {"", "redis://", "redis://:6379", "redis://a:0", "redis://a:70000", "redis://a:1x", "dir:",
                          "dir:x", "http://a"})
    EXPECT_EQ(open_remote_store(bad).status().code(), Code::kInvalidArgument) << bad;
}

TEST_F(Remote, PasswordFilesAreChecked) {
  const std::string path = dir + "/password";
  const std::string url = "redis://h:1/p?user=me&password_file=" + path;
  EXPECT_FALSE(open_remote_store(url).ok());
  std::ofstream(path) << "secret\n";
  ::chmod(path.c_str(), 0644);
  EXPECT_EQ(open_remote_store(url).status().code(), Code::kInvalidArgument);
  ::chmod(path.c_str(), 0600);
  EXPECT_TRUE(open_remote_store(url).ok());
  std::ofstream(path) << "\n";
  EXPECT_EQ(open_remote_store(url).status().code(), Code::kInvalidArgument);
  for (const char* bad : {"redis://h:1?user=me", "redis://h:1?password=x", "redis://h:1?user="})
    EXPECT_EQ(open_remote_store(bad).status().code(), Code::kInvalidArgument) << bad;
}

// What cannot be opened yet is away, and there as soon as it can be.
TEST_F(Remote, AStoreThatComesLater) {
  std::atomic<int> tries = 0;
  const auto open = [&]() -> Result<std::unique_ptr<RemoteStore>> {
    if (++tries < 3) return Status(Code::kDeadlineExceeded, "not yet");
    return std::unique_ptr<RemoteStore>(std::make_unique<DirectoryStore>(dir + "/later"));
  };
  ThreadedTier tier(make_late_store(open, "later", 3), {.away_s = 0.05, .away_max_s = 0.1});
  WaitingTier waiting(tier);
  EXPECT_EQ(tier.name(), "later");
  EXPECT_EQ(waiting.get(1).code(), Code::kUnavailable);
  EXPECT_TRUE(waiting.comes([&] { return waiting.put(1); }));
  // For all threads at once.
  std::vector<std::vector<std::byte>> buffers(30, std::vector<std::byte>(30000));
  std::vector<Tier::Ticket> tickets;
  for (auto& buffer : buffers) tickets.push_back(tier.get(key_of(1), buffer));
  for (const Tier::Ticket ticket : tickets) EXPECT_TRUE(waiting.wait(ticket).ok());
  EXPECT_EQ(tries, 3);
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
