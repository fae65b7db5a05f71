// The SSD tier: what is written is found, also by the next process; what is damaged, erased or old is a miss; kill -9
// loses the tail only.
#include "kv/ssd_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "kv/record.h"

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPayload = 9000;

BlockKey key_of(uint32_t i) {
  BlockKey k;
  std::mt19937 random(i);
  for (uint8_t& b : k.bytes) b = static_cast<uint8_t>(random());
  return k;
}

std::vector<std::byte> record_of(uint32_t i, size_t payload = kPayload) {
  std::mt19937 random(i + 1);
  std::vector<std::byte> bytes(payload);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  const std::vector<int32_t> tokens(128, static_cast<int32_t>(i));
  std::vector<std::byte> record(record_bytes(tokens.size(), payload));
  seal_record(key_of(i), tokens, bytes, record);
  return record;
}

class Ssd : public testing::Test {
 protected:
  void SetUp() override {
    dir = testing::TempDir() + "ssd_tier_" + std::to_string(::getpid());
    fs::remove_all(dir);
    options.bytes_max = 64u << 20;
    options.segment_bytes = 1u << 20;
    options.unix_time = [this] { return time; };
  }
  void TearDown() override {
    tier.reset();
    fs::remove_all(dir);
  }
  void open() {
    tier.reset();
    completed.clear();  // tickets begin again
    Result<std::unique_ptr<SsdTier>> t = SsdTier::open(dir, options);
    ASSERT_TRUE(t.ok()) << t.status().to_string();
    tier = std::move(t).value();
  }
  Tier::Completion wait(Tier::Ticket ticket) {
    for (int i = 0; i < 300000; ++i) {
      std::array<Tier::Completion, 8> done;
      for (size_t k = 0, n = tier->poll(done); k < n; ++k) completed[done[k].ticket] = done[k];
      if (const auto at = completed.find(ticket); at != completed.end()) return at->second;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    ADD_FAILURE() << "ticket " << ticket << " did not complete";
    return {};
  }
  Status put(uint32_t i, PutInfo info = {}) { return wait(tier->put(key_of(i), record_of(i), info)).status; }
  // The record, or nothing; anything but the right bytes fails the test unless damage is expected.
  Code get(uint32_t i, bool may_be_damaged = false) {
    std::vector<std::byte> buffer(record_bytes(128, kPayload));
    const Tier::Completion c = wait(tier->get(key_of(i), buffer));
    if (!c.status.ok()) return c.status.code();
    const std::vector<int32_t> tokens(128, static_cast<int32_t>(i));
    const auto opened = open_record(std::span(buffer).first(c.bytes), key_of(i), tokens);
    if (!opened.ok()) {
      EXPECT_TRUE(may_be_damaged) << i << ": " << opened.status().to_string();
      return Code::kDataLoss;
    }
    EXPECT_EQ(buffer, record_of(i));
    return Code::kOk;
  }

  std::string dir;
  SsdTierOptions options;
  int64_t time = 1000;
  std::unique_ptr<SsdTier> tier;
  std::map<Tier::Ticket, Tier::Completion> completed;
};

TEST_F(Ssd, FindsWhatWasWrittenAlsoAfterARestart) {
  for (const bool ring : {true, false}) {
    options.io_uring = ring;
    open();
    for (uint32_t i = 0; i < 300; ++i) ASSERT_TRUE(put(i).ok());
    EXPECT_EQ(get(1000), Code::kNotFound);
    for (uint32_t i = 0; i < 300; i += 7) EXPECT_EQ(get(i), Code::kOk);
    EXPECT_GT(tier->stats().segments, 2);
    open();
    EXPECT_EQ(tier->stats().recovered, 300);
    EXPECT_EQ(tier->stats().torn, 0);
    for (uint32_t i = 0; i < 300; ++i) EXPECT_EQ(get(i), Code::kOk);
  }
}

TEST_F(Ssd, ChainsAreCounted) {
  open();
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < 100; ++i) {
    keys.push_back(key_of(i));
    if (i == 60) continue;
    ASSERT_TRUE(put(i).ok());
  }
  EXPECT_EQ(tier->count_prefix(keys), 60u);
}

TEST_F(Ssd, ErasedAndPurgedRecordsStayAway) {
  open();
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(put(i, {.space = space_of(i % 2 == 0 ? "even" : "odd")}).ok());
  tier->erase(key_of(4));
  tier->purge(space_of("odd"));
  tier->flush();
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(get(4), Code::kNotFound);
    EXPECT_EQ(get(5), Code::kNotFound);
    EXPECT_EQ(get(6), Code::kOk);
    EXPECT_EQ(tier->stats().records, 99);
    open();
  }
  ASSERT_TRUE(put(5, {.space = space_of("odd")}).ok());  // a purge is about the past
  EXPECT_EQ(get(5), Code::kOk);
  tier->purge(0);
  tier->flush();
  EXPECT_EQ(tier->stats().records, 0);
}

TEST_F(Ssd, ErasingReachesWhatIsBeingWritten) {
  open();
  std::vector<Tier::Ticket> puts;
  for (uint32_t i = 0; i < 200; ++i) {
    puts.push_back(tier->put(key_of(i), record_of(i), {}));
    if (i % 2 == 1) tier->erase(key_of(i));
    if (i % 4 == 3) puts.push_back(tier->put(key_of(i), record_of(i), {}));  // a put behind it counts
  }
  for (const Tier::Ticket t : puts) EXPECT_TRUE(wait(t).status.ok());
  for (int life = 0; life < 2; ++life) {
    for (uint32_t i = 0; i < 200; ++i) EXPECT_EQ(get(i), i % 4 == 1 ? Code::kNotFound : Code::kOk) << i;
    open();
  }
}

TEST_F(Ssd, RecordsPassTheirTimeUnlessRead) {
  open();
  ASSERT_TRUE(put(1, {.ttl_s = 100}).ok());
  ASSERT_TRUE(put(2, {.ttl_s = 100}).ok());
  time += 90;
  EXPECT_EQ(get(1), Code::kOk);
  time += 20;
  EXPECT_EQ(get(1), Code::kOk);
  EXPECT_EQ(get(2), Code::kNotFound);
  time += 101;
  EXPECT_EQ(get(1), Code::kNotFound);
}

TEST_F(Ssd, KeepsWhatIsReadWhenSpaceEnds) {
  options.bytes_max = 8u << 20;
  open();
  constexpr uint32_t kLoved = 20;
  for (uint32_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(put(i).ok());
    if (i % 10 == 0) get(i);
    if (i % 50 == 0) {
      for (uint32_t k = 0; k < kLoved; ++k) get(k);
    }
    ASSERT_LE(tier->stats().segment_bytes, options.bytes_max + options.segment_bytes);
  }
  for (uint32_t k = 0; k < kLoved; ++k) EXPECT_EQ(get(k), Code::kOk) << k;
  const SsdStats s = tier->stats();
  EXPECT_GT(s.evicted, 1000);
  EXPECT_GT(s.moved, 0);
  open();
  for (uint32_t k = 0; k < kLoved; ++k) EXPECT_EQ(get(k), Code::kOk) << k;
}

TEST_F(Ssd, FaultsAreMissesAndNeverWrong) {
  std::mt19937 random(3);
  std::mutex mutex;
  options.faults.hook = [&](FaultPoint) {
    const std::lock_guard lock(mutex);
    return random() % 4 == 0;
  };
  open();
  int right = 0;
  for (uint32_t i = 0; i < 400; ++i) {
    (void)put(i).ok();
    time += 2;  // a full disk pauses puts
    right += get(i, true) == Code::kOk;
  }
  EXPECT_GT(right, 20);
  options.faults.hook = nullptr;
  open();
  EXPECT_GT(tier->scrub(), 0);  // the torn ones
  right = 0;
  for (uint32_t i = 0; i < 400; ++i) right += get(i) == Code::kOk;
  EXPECT_GT(right, 50);
}

TEST_F(Ssd, ScrubDropsWhatChangedOnDisk) {
  open();
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(put(i).ok());
  EXPECT_EQ(tier->scrub(), 0);
  const std::string path = dir + "/00000001.kv";
  const int fd = ::open(path.c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  const char x = 77;
  ASSERT_EQ(::pwrite(fd, &x, 1, 3 * 12288 + 5000), 1);
  ::fsync(fd);
  ::close(fd);
  EXPECT_EQ(tier->scrub(), 1);
  EXPECT_EQ(tier->stats().records, 19);
}

TEST_F(Ssd, TenantsHaveTheirShares) {
  options.space_bytes_max = 5 * record_of(0).size();
  open();
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(put(i, {.space = 1}).code(), i < 5 ? Code::kOk : Code::kResourceExhausted);
  EXPECT_TRUE(put(20, {.space = 2}).ok()) << "one tenant's share holds up another";
  tier->erase(key_of(2));
  tier->flush();
  EXPECT_TRUE(put(6, {.space = 1}).ok());
  open();
  EXPECT_EQ(put(7, {.space = 1}).code(), Code::kResourceExhausted);
  tier->purge(1);
  tier->flush();
  EXPECT_TRUE(put(7, {.space = 1}).ok());
}

TEST_F(Ssd, OneProcessAFolder) {
  open();
  const Result<std::unique_ptr<SsdTier>> second = SsdTier::open(dir, options);
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
}

TEST_F(Ssd, CancelledGetsTouchNothing) {
  open();
  ASSERT_TRUE(put(1).ok());
  for (int i = 0; i < 500; ++i) {
    auto buffer = std::make_unique<std::vector<std::byte>>(record_bytes(128, kPayload));
    const Tier::Ticket t = tier->get(key_of(1), *buffer);
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i));
    tier->cancel(t);
    buffer.reset();
    EXPECT_FALSE(completed.contains(t));
  }
  EXPECT_EQ(get(1), Code::kOk);
}

// Records that lie one behind the other are read together: each is still found, missed, cut, cancelled and damaged by
// itself.
TEST_F(Ssd, ManyGetsAtOnceAreAnsweredOneByOne) {
  constexpr uint32_t kRecords = 200;
  std::mt19937 random(7);
  std::vector<size_t> payload(kRecords);
  for (size_t& bytes : payload) bytes = random() % 60000;
  for (const bool ring : {true, false}) {
    options.io_uring = ring;
    open();
    for (uint32_t i = 0; i < kRecords; ++i) tier->put(key_of(i), record_of(i, payload[i]), {});
    tier->flush();
    for (const bool backwards : {false, true}) {
      std::vector<std::vector<std::byte>> buffers(kRecords);
      std::vector<Tier::Ticket> tickets(kRecords);
      for (uint32_t k = 0; k < kRecords; ++k) {
        const uint32_t i = backwards ? kRecords - 1 - k : k;
        buffers[i].resize(record_bytes(128, payload[i]) - (i % 50 == 49));  // too small for the record
        tickets[i] = tier->get(key_of(i % 50 == 48 ? 5000 + i : i), buffers[i]);
      }
      for (uint32_t i = 0; i < kRecords; i += 10) tier->cancel(tickets[i]);
      for (uint32_t i = 0; i < kRecords; ++i) {
        SCOPED_TRACE(i);
        if (i % 10 == 0) continue;
        const Tier::Completion c = wait(tickets[i]);
        const Code wanted = i % 50 == 48 ? Code::kNotFound : i % 50 == 49 ? Code::kResourceExhausted : Code::kOk;
        ASSERT_EQ(c.status.code(), wanted) << c.status.to_string();
        EXPECT_EQ(wanted == Code::kOk, buffers[i] == record_of(i, payload[i]));
      }
      for (uint32_t i = 0; i < kRecords; i += 10) EXPECT_FALSE(completed.contains(tickets[i]));
    }
  }
}

TEST_F(Ssd, DamagedFilesOfAFolderAreSurvived) {
  open();
  for (uint32_t i = 0; i < 300; ++i) ASSERT_TRUE(put(i).ok());
  tier.reset();
  fs::resize_file(dir + "/00000001.kv", 500000);
  fs::resize_file(dir + "/00000002.idx", 100);
  std::ofstream(dir + "/000000ff.kv") << "not a segment";
  std::ofstream(dir + "/notes.txt") << "hello";
  open();
  EXPECT_GT(tier->stats().records, 200);
  for (uint32_t i = 0; i < 300; ++i) get(i);
}

// Puts records until it is killed, a few at once, and tells the number of each that has completed.
[[noreturn]] void put_and_tell(const std::string& dir, const SsdTierOptions& options, uint32_t next, int pipe) {
  constexpr size_t kOpen = 32;
  constexpr uint32_t kPutsMax = 600;
  Result<std::unique_ptr<SsdTier>> t = SsdTier::open(dir, options);
  if (!t.ok()) ::_exit(1);
  std::map<Tier::Ticket, uint32_t> puts;
  for (uint32_t i = next;;) {
    if (puts.size() < kOpen && i < next + kPutsMax) {
      puts[t.value()->put(key_of(i), record_of(i), {})] = i;
      ++i;
    }
    std::array<Tier::Completion, 8> done;
    for (size_t k = 0, n = t.value()->poll(done); k < n; ++k) {
      if (done[k].status.ok()) (void)!::write(pipe, &puts[done[k].ticket], sizeof(uint32_t));
      puts.erase(done[k].ticket);
    }
  }
}

// What the child has told by the moment at which it is killed.
std::vector<uint32_t> killed_child_told(const std::string& dir, const SsdTierOptions& options, uint32_t next,
                                        std::mt19937& random) {
  std::vector<uint32_t> told;
  int fds[2];
  if (::pipe(fds) != 0) return told;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    put_and_tell(dir, options, next, fds[1]);
  }
  ::close(fds[1]);
  uint32_t i = 0;
  const auto hear = [&] {
    if (::read(fds[0], &i, sizeof i) != sizeof i) return false;
    told.push_back(i);
    return true;
  };
  if (random() % 2 == 0) { EXPECT_TRUE(hear()); }  // else the kill may come while the folder is opened
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  while (hear()) {
  }
  ::close(fds[0]);
  return told;
}

TEST_F(Ssd, KillNineLosesNothingThatWasCompleted) {
  const int rounds = std::getenv("DEEPINFER_TEST_ALL") != nullptr ? 1000 : 25;
  constexpr int kRoundsAFolder = 40;  // so that nothing leaves for want of space
  options.bytes_max = 512u << 20;
  std::mt19937 random(8);
  uint32_t next = 0;
  std::vector<uint32_t> told;
  size_t total = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<uint32_t> now = killed_child_told(dir, options, next, random);
    total += now.size();
    told.insert(told.end(), now.begin(), now.end());
    for (const uint32_t i : now) next = std::max(next, i + 1);
    next += 50;  // what was written and not told is left alone
    open();
    for (const uint32_t i : now) ASSERT_EQ(get(i), Code::kOk) << i << " after round " << round;
    const bool last = round % kRoundsAFolder == kRoundsAFolder - 1 || round + 1 == rounds;
    for (size_t k = 0; !last && k < 10 && !told.empty(); ++k)
      ASSERT_EQ(get(told[random() % told.size()]), Code::kOk) << "after round " << round;
    if (!last) {
      tier.reset();
      continue;
    }
    for (const uint32_t i : told) ASSERT_EQ(get(i), Code::kOk) << i << " after round " << round;
    ASSERT_EQ(tier->stats().evicted, 0);
    tier.reset();
    fs::remove_all(dir);
    told.clear();
    next = 0;
  }
  EXPECT_GT(total, static_cast<size_t>(rounds) / 2);
  std::printf("%d kills, %zu completed records\n", rounds, total);
}

}  // namespace
}  // namespace deepinfer::kv
