// Remote stores: their addresses, a folder, one that comes later, one that ends calls in any order. Redis:
// redis_test.cc.
#include "kv/remote_store.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
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
  ThreadedTier tier(make_late_store(open, "later", 3, 0.05), {.away_s = 0.05, .away_max_s = 0.1});
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

// ---- stores in memory -----------------------------------------------------------------------------------------------

// Its calls wait while the gate is closed.
class MemoryStore : public RemoteStore {
 public:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<BlockKey, std::vector<std::byte>> records;
    bool open = true;
    int waiting = 0;
  };
  explicit MemoryStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::string_view name() const override { return "memory"; }
  Result<size_t> get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) override {
    const std::unique_lock lock = enter();
    const auto at = shared_->records.find(key);
    if (at == shared_->records.end()) return Status(Code::kNotFound, "none");
    if (at->second.size() > into.size()) return Status(Code::kResourceExhausted, "too large");
    std::ranges::copy(at->second, into.begin());
    *info = {};
    return at->second.size();
  }
  Status put(const BlockKey& key, std::span<const std::byte> record, const PutInfo&) override {
    const std::unique_lock lock = enter();
    shared_->records[key].assign(record.begin(), record.end());
    return Status();
  }
  Status erase(const BlockKey& key) override {
    const std::unique_lock lock = enter();
    shared_->records.erase(key);
    return Status();
  }
  Status purge(uint64_t) override { return Status(); }
  Status ping() override { return Status(); }
  std::unique_ptr<RemoteStore> clone() const override { return std::make_unique<MemoryStore>(shared_); }

 protected:
  std::unique_lock<std::mutex> enter() {
    std::unique_lock lock(shared_->mutex);
    ++shared_->waiting;
    shared_->changed.notify_all();
    shared_->changed.wait(lock, [this] { return shared_->open; });
    --shared_->waiting;
    return lock;
  }
  const std::shared_ptr<Shared> shared_;
};

// A thread of its own ends calls in an order drawn by chance.
class ScatteringStore : public MemoryStore {
 public:
  explicit ScatteringStore(std::shared_ptr<Shared> shared)
      : MemoryStore(std::move(shared)), thread_([this] { serve(); }) {}
  ~ScatteringStore() override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    came_.notify_all();
    thread_.join();
  }
  std::unique_ptr<RemoteStore> clone() const override { return std::make_unique<ScatteringStore>(shared_); }
  int depth() const override { return 8; }
  bool in_any_order() const override { return true; }
  void begin(RemoteCall& call) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back(&call);
    came_.notify_all();
  }
  void end(RemoteCall& call) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(std::erase(ended_, &call), 1u);
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      came_.wait(lock, [this] { return over_ || !calls_.empty(); });
      if (over_) return;
      std::swap(calls_[rng_() % calls_.size()], calls_.back());
      RemoteCall& call = *calls_.back();
      calls_.pop_back();
      lock.unlock();
      run(call);
      const auto ready = call.ready;
      lock.lock();
      ended_.push_back(&call);
      ready();
    }
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<RemoteCall*> calls_, ended_;
  std::minstd_rand rng_{5};
  bool over_ = false;
  std::thread thread_;
};

void check_scattered(ThreadedTier& tier) {
  WaitingTier waiting(tier);
  std::vector<Tier::Ticket> tickets;
  for (uint32_t i = 0; i < 60; ++i) tickets.push_back(tier.put(key_of(i), record_of(i), {}));
  for (const Tier::Ticket t : tickets) EXPECT_TRUE(waiting.wait(t).ok());
  check_many_gets(tier, 60);
  tier.erase(key_of(3));
  EXPECT_TRUE(waiting.comes([&] {
    return waiting.get(3).code() == Code::kNotFound ? Status() : Status(Code::kInternal, "it is still there");
  }));
}

TEST(ThreadedTiers, TakeCallsThatEndInAnyOrder) {
  for (const int threads : {1, 3}) {
    ThreadedTier tier(std::make_unique<ScatteringStore>(std::make_shared<MemoryStore::Shared>()),
                      {.threads = threads});
    check_scattered(tier);
    for (uint32_t i = 0; i < 30; ++i) tier.put(key_of(i), record_of(i), {});  // are under way at the end
  }
}

// Once it is there, a store that comes later has as many calls on their way as it would have had from the start.
TEST(ThreadedTiers, HaveTheDepthOfAStoreThatComesLater) {
  std::atomic<bool> there = false;
  const auto shared = std::make_shared<MemoryStore::Shared>();
  const auto open = [&]() -> Result<std::unique_ptr<RemoteStore>> {
    if (!there) return Status(Code::kUnavailable, "not yet");
    return std::unique_ptr<RemoteStore>(std::make_unique<ScatteringStore>(shared));
  };
  const std::unique_ptr<RemoteStore> store = make_late_store(open, "later", 2, 0.02);
  EXPECT_EQ(store->depth(), 1);
  EXPECT_FALSE(store->in_any_order());
  ThreadedTier tier(store->clone(), {.away_s = 0.01, .away_max_s = 0.01});
  WaitingTier waiting(tier);
  EXPECT_EQ(waiting.get(1).code(), Code::kUnavailable);
  there = true;
  EXPECT_TRUE(waiting.comes([&] { return waiting.put(1); }));
  check_scattered(tier);
  for (int i = 0; i < 60000 && !store->ping().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(store->depth(), 8);
  EXPECT_TRUE(store->in_any_order());
}

TEST(ThreadedTiers, CancelledPutsDoNotComplete) {
  const auto shared = std::make_shared<MemoryStore::Shared>();
  shared->open = false;
  ThreadedTier tier(std::make_unique<MemoryStore>(shared), {.threads = 1});
  WaitingTier waiting(tier);
  const Tier::Ticket first = tier.put(key_of(1), record_of(1), {});
  {
    std::unique_lock lock(shared->mutex);
    shared->changed.wait(lock, [&] { return shared->waiting == 1; });
  }
  const Tier::Ticket second = tier.put(key_of(2), record_of(2), {}), third = tier.put(key_of(3), record_of(3), {});
  tier.cancel(first);   // under way
  tier.cancel(second);  // in the queue
  {
    const std::lock_guard lock(shared->mutex);
    shared->open = true;
    shared->changed.notify_all();
  }
  EXPECT_TRUE(waiting.wait(third).ok());
  EXPECT_FALSE(waiting.completed(first));
  EXPECT_FALSE(waiting.completed(second));
  EXPECT_EQ(waiting.get(2).code(), Code::kNotFound) << "a put that had not begun was done nevertheless";
  EXPECT_TRUE(waiting.get(3).ok());
}

}  // namespace
}  // namespace deepinfer::kv
