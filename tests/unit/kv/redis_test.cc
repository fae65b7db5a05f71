// Redis behind a tier: away at first, gone for a while, full, behind a password, a cluster whose slots move and whose
// nodes are lost, and servers that lie.
#include "kv/redis_store.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "kv/redis_wire.h"
#include "kv/threaded_tier.h"
#include "tests/unit/kv/redis_servers.h"

namespace deepinfer::kv {
namespace {

constexpr double kPatientS = 300;  // for a machine that is busy

class Redis : public RedisServers {
 protected:
  void SetUp() override {
    if (!redis_is_there()) GTEST_SKIP() << "no Redis (tools/install-deps.sh --tests)";
  }
  // A cluster needs some seconds until it works, which pass while the other tests run.
  static void SetUpTestSuite() {
    if (redis_is_there()) begin_cluster();
  }
  static void TearDownTestSuite() { nodes.reset(); }
  static void begin_cluster() {
    nodes = std::make_unique<RedisHost>("redis_cluster");
    nodes->start_cluster();
  }
  static int cluster_port() {
    if (!nodes) begin_cluster();
    return nodes->wait_for_cluster();
  }
  static bool redis_is_there() { return have("redis-server") && have("redis-cli"); }

  static inline std::unique_ptr<RedisHost> nodes;
};

std::unique_ptr<ThreadedTier> tier_of(RedisOptions o, ThreadedTierOptions t = {.away_s = 0.1, .away_max_s = 0.4}) {
  return std::make_unique<ThreadedTier>(std::make_unique<RedisStore>(std::move(o)), t);
}

RedisOptions patient(int port) {
  return {.port = port, .connect_timeout_s = kPatientS, .command_timeout_s = kPatientS};
}

TEST_F(Redis, IsAStore) {
  RedisStore store(patient(start_redis()));
  check_store(store);
}

TEST_F(Redis, ManyAtOnce) {
  const int port = start_redis();
  const auto tier = tier_of(patient(port));
  WaitingTier waiting(*tier);
  std::vector<Tier::Ticket> tickets;
  for (uint32_t i = 0; i < 300; ++i) {
    const std::vector<std::byte> r = record_of(i);
    tickets.push_back(i % 2 == 0 ? tier->put(key_of(i), r, {.space = 1})
                                 : tier->put_owned(key_of(i), std::make_shared<RecordBytes>(r.begin(), r.end()), {}));
  }
  for (const Tier::Ticket t : tickets) EXPECT_TRUE(waiting.wait(t).ok());
  check_many_gets(*tier, 300);
  tier->erase(key_of(3));
  EXPECT_EQ(waiting.get(3).code(), Code::kNotFound);
}

// Nobody listens when the tier is made: misses, and hits once somebody does.
TEST_F(Redis, IsStartedLater) {
  int port = 0;
  std::unique_ptr<ThreadedTier> tier;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const int candidate = port_for_redis();
    tier = tier_of({.port = candidate});
    WaitingTier waiting(*tier);
    EXPECT_EQ(waiting.get(1).code(), Code::kUnavailable);
    EXPECT_FALSE(waiting.put(1).ok());
    EXPECT_GT(tier->stats().errors, 0);
    port = try_redis(candidate, {});
    if (port > 0) break;
  }
  ASSERT_GT(port, 0);
  WaitingTier waiting(*tier);
  EXPECT_TRUE(waiting.comes([&] { return waiting.put(1); }));
  EXPECT_TRUE(waiting.comes([&] { return waiting.get(1); }));
  // Ends, comes back empty, with questions under way.
  servers.at(port).kill();
  for (uint32_t i = 0; i < 30; ++i) EXPECT_FALSE(waiting.get(1).ok());
  ASSERT_EQ(try_redis(port, {}), port);
  EXPECT_TRUE(waiting.comes([&] { return waiting.put(2); }));
  EXPECT_TRUE(waiting.comes([&] { return waiting.get(2); }));
  EXPECT_EQ(waiting.get(1).code(), Code::kNotFound);
}

// A server that stops answering, dies and comes back: misses and refusals, never a wait beyond the limits.
TEST_F(Redis, GoesAway) {
  const int port = start_redis();
  const auto tier = tier_of({.port = port, .command_timeout_s = 0.2});
  WaitingTier waiting(*tier);
  ASSERT_TRUE(waiting.comes([&] { return waiting.put(1); }));
  ASSERT_TRUE(waiting.comes([&] { return waiting.get(1); }));
  servers.at(port).signal(SIGSTOP);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(waiting.get(1).ok());
  EXPECT_GT(tier->stats().errors, 0);
  servers.at(port).signal(SIGCONT);
  EXPECT_TRUE(waiting.comes([&] { return waiting.get(1); }));
  servers.at(port).kill();
  EXPECT_FALSE(waiting.get(1).ok());
  EXPECT_FALSE(waiting.put(2).ok());
}

TEST_F(Redis, WantsAPassword) {
  const int port = start_redis({"--requirepass", "secret"});
  RedisOptions o = patient(port);
  EXPECT_EQ(RedisStore(o).ping().code(), Code::kFailedPrecondition);
  o.password = "secre";
  const Status wrong = RedisStore(o).ping();
  EXPECT_EQ(wrong.code(), Code::kFailedPrecondition);
  EXPECT_NE(wrong.message().find("does not take the password"), std::string::npos) << wrong.message();
  const auto refused = tier_of(o);
  WaitingTier nothing(*refused);
  for (uint32_t i = 0; i < 20; ++i) EXPECT_FALSE(nothing.get(i).ok());
  o.password = "secret";
  for (const char* user : {"", "default"}) {
    o.user = user;
    RedisStore right(o);
    EXPECT_TRUE(right.ping().ok());
    EXPECT_TRUE(right.put(key_of(1), record_of(1), {}).ok());
    EXPECT_EQ(get(right, 1), Code::kOk);
  }
}

// Writes are refused, reads go on: the store is not away.
TEST_F(Redis, IsFull) {
  const int port = start_redis({"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"});
  const auto tier = tier_of(patient(port));
  WaitingTier waiting(*tier);
  uint32_t written = 0;
  // What connections need counts, too: where they need less, one more fits.
  const auto fill = [&] {
    Status status;
    for (int i = 0; i < 1000 && status.ok(); ++i) status = waiting.put(written++);
    return status;
  };
  const Status status = fill();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.to_string();
  EXPECT_NE(status.message().find("OOM"), std::string::npos) << status.to_string();
  for (uint32_t i = 0; i + 1 < written; ++i) EXPECT_TRUE(waiting.get(i).ok()) << i;
  EXPECT_EQ(fill().code(), Code::kResourceExhausted);
  EXPECT_TRUE(waiting.get(0).ok());
  EXPECT_FALSE(tier->stats().away);
  ASSERT_EQ(redis_cli(port, "config set maxmemory 0"), "OK");
  EXPECT_TRUE(waiting.put(written).ok());
  // A replica refuses writes likewise.
  ASSERT_EQ(redis_cli(port, "config set min-replicas-to-write 1"), "OK");
  EXPECT_EQ(waiting.put(0).code(), Code::kIo);
  EXPECT_TRUE(waiting.get(0).ok());
}

TEST(RedisSlots, AreRedisOwn) {
  EXPECT_EQ(redis_slot("123456789"), 0x31c3 % 16384);
  EXPECT_EQ(redis_slot("a{123456789}b"), 0x31c3 % 16384);
  EXPECT_EQ(redis_slot("{}x"), redis_slot("{}x"));
}

TEST_F(Redis, ClusterIsAStoreAndMovesSlots) {
  const int port = cluster_port();
  RedisOptions o = patient(port);
  EXPECT_EQ(RedisStore({.port = start_redis(), .cluster = true}).ping().code(), Code::kFailedPrecondition);
  o.cluster = true;
  RedisStore store(o);
  for (int i = 0; i < 6000 && !store.put(key_of(0), record_of(0), {}).ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  check_store(store);
  const auto tier = tier_of(o);
  WaitingTier waiting(*tier);
  for (uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(waiting.comes([&] { return waiting.put(i); }));
  const std::string name = "deepinfer:{" + key_of(7).hex() + "}";
  const int slot = redis_slot(name);
  const std::string there = redis_cli(port, fmt::format("-c get {} | wc -c", name));
  ASSERT_GT(std::atoi(there.c_str()), 20000);
  // The slot's node, and another one that it goes to.
  int from = 0, to = 0;
  for (const auto& [p, server] : nodes->servers) {
    const std::string keys = redis_cli(p, fmt::format("cluster getkeysinslot {} 10", slot));
    (keys.empty() ? to : from) = p;
  }
  ASSERT_TRUE(from > 0 && to > 0);
  const std::string from_id = redis_cli(from, "cluster myid"), to_id = redis_cli(to, "cluster myid");
  ASSERT_EQ(redis_cli(to, fmt::format("cluster setslot {} importing {}", slot, from_id)), "OK");
  ASSERT_EQ(redis_cli(from, fmt::format("cluster setslot {} migrating {}", slot, to_id)), "OK");
  EXPECT_TRUE(waiting.get(7).ok()) << "still at the old node";
  ASSERT_EQ(redis_cli(from, fmt::format("migrate 127.0.0.1 {} {} 0 20000", to, name)), "OK");
  EXPECT_TRUE(waiting.get(7).ok()) << "ASK";
  EXPECT_TRUE(waiting.put(7).ok()) << "ASK";
  EXPECT_TRUE(waiting.get(7).ok());
  for (const int p : {to, from}) ASSERT_EQ(redis_cli(p, fmt::format("cluster setslot {} node {}", slot, to_id)), "OK");
  std::vector<Tier::Ticket> tickets;
  std::vector<std::vector<std::byte>> buffers(40, std::vector<std::byte>(30000));
  for (uint32_t i = 0; i < 40; ++i) tickets.push_back(tier->get(key_of(i), buffers[i]));
  for (uint32_t i = 0; i < 40; ++i) EXPECT_TRUE(waiting.wait(tickets[i]).ok()) << i << ", one of them MOVED";
  EXPECT_TRUE(waiting.put(7).ok());
}

TEST_F(Redis, LostClusterNodesAreMissesOfTheirBlocksOnly) {
  const int port = cluster_port();
  const auto tier = tier_of({.port = port, .cluster = true, .command_timeout_s = 0.3});
  WaitingTier waiting(*tier);
  for (uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(waiting.comes([&] { return waiting.put(i); }));
  const int lost = nodes->servers.begin()->first;
  std::vector<bool> here;
  for (uint32_t i = 0; i < 40; ++i) {
    const std::string where = redis_cli(lost, fmt::format("exists deepinfer:{{{}}}", key_of(i).hex()));
    here.push_back(where != "1");
  }
  for (const int signal : {SIGSTOP, SIGKILL}) {
    nodes->servers.at(lost).signal(signal);
    int found = 0;
    for (uint32_t i = 0; i < 40; ++i) {
      if (here[i]) found += waiting.comes([&] { return waiting.get(i); });
      else EXPECT_FALSE(waiting.get(i).ok()) << i;
    }
    EXPECT_EQ(found, std::ranges::count(here, true));
  }
  nodes.reset();  // it is not whole any more
}

// ---- servers that lie -----------------------------------------------------------------------------------------------

// A connection over loopback: ours and the liar's.
struct Wire {
  Wire() {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof a;
    EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&a), size), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&a), &size);
    ours = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(ours, reinterpret_cast<sockaddr*>(&a), size), 0);
    theirs = ::accept(listener, nullptr, nullptr);
    ::close(listener);
  }
  ~Wire() {
    ::close(ours);
    ::close(theirs);
  }
  int ours = -1, theirs = -1;
};

std::string strange_answers(std::mt19937& rng) {
  std::string out;
  for (unsigned n = 1 + rng() % 4; n > 0; --n) {
    const std::string body(rng() % 300, static_cast<char>(rng()));
    switch (rng() % 8) {
      case 0: out += "+OK\r\n"; break;
      case 1: out += "$-1\r\n"; break;
      case 2: out += "-ERR what\r\n"; break;
      case 3: out += fmt::format("${}\r\n", rng() % 2 == 0 ? "99999999999999999999" : std::to_string(rng())); break;
      case 4: out += std::string(rng() % 700, 'x'); break;
      default: out += fmt::format("${}\r\n{}\r\n", body.size(), body);
    }
  }
  for (unsigned n = rng() % 3; n > 0 && !out.empty(); --n) out[rng() % out.size()] ^= static_cast<char>(1 << rng() % 8);
  if (rng() % 4 == 0) out.resize(rng() % (out.size() + 1));
  return out;
}

TEST(RedisPipes, SurviveWhatServersSend) {
  std::mt19937 rng(3);
  const int rounds = std::getenv("DEEPINFER_TEST_ALL") != nullptr ? 100000 : 2000;
  int64_t answers = 0;
  for (int i = 0; i < rounds; ++i) {
    const Wire wire;
    const std::string said = strange_answers(rng);
    ASSERT_EQ(::send(wire.theirs, said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
    ::shutdown(wire.theirs, SHUT_WR);
    RedisPipe pipe(wire.ours, 60);
    std::array<std::byte, 200> into;
    std::array<std::byte, 32> trailer;
    for (int k = 0; k < 4; ++k) {
      const bool get = rng() % 2 == 0;
      if (get) pipe.ask_get("a");
      else if (!pipe.ask_set("a", into, trailer, 9)) break;
      const std::optional<RedisAnswer> a = get ? pipe.get_answer(into, trailer) : pipe.set_answer();
      if (!a) break;
      EXPECT_LE(a->bytes, into.size());
      ++answers;
    }
  }
  EXPECT_GT(answers, rounds / 4);
}

// Nobody listens: also while it is left alone it is away, so that its tier waits longer every time.
TEST(RedisStores, ThatAreLeftAloneAreAway) {
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof a;
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&a), size), 0);
  ::getsockname(taken, reinterpret_cast<sockaddr*>(&a), &size);
  for (const bool cluster : {false, true}) {
    RedisStore store({.port = ntohs(a.sin_port), .cluster = cluster, .connect_timeout_s = kPatientS});
    for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(get(store, i), Code::kUnavailable) << i;
  }
  ::close(taken);
}

// One byte now and then keeps no call under way for ever.
TEST(RedisPipes, EndAnswersThatTrickle) {
  const Wire wire;
  std::atomic<bool> over = false;
  std::thread slow([&] {
    const std::string begin = "$100000\r\n";
    (void)!::send(wire.theirs, begin.data(), begin.size(), MSG_NOSIGNAL);
    while (!over) {
      (void)!::send(wire.theirs, "x", 1, MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const timeval limit{.tv_sec = 0, .tv_usec = 50000};
  ::setsockopt(wire.ours, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  RedisPipe pipe(wire.ours, 0.05);
  std::vector<std::byte> into(100000);
  std::array<std::byte, 32> trailer;
  pipe.ask_get("a");
  EXPECT_FALSE(pipe.get_answer(into, trailer));
  EXPECT_EQ(errno, EAGAIN);
  over = true;
  slow.join();
}

// Listens, and says the same to everybody who asks: once, or without end.
class Liar {
 public:
  explicit Liar(std::string said, bool endless = false) {
    sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof a;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&a), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &size);
    port = ntohs(a.sin_port);
    thread_ = std::thread([this, said = std::move(said), endless] {
      for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(fd)) {
        std::array<char, 512> asked;
        const std::string more(1 << 16, 'x');
        if (::recv(fd, asked.data(), asked.size(), 0) <= 0) continue;
        (void)!::send(fd, said.data(), said.size(), MSG_NOSIGNAL);
        while (endless && ::send(fd, more.data(), more.size(), MSG_NOSIGNAL) > 0) {
        }
        while (::recv(fd, asked.data(), asked.size(), 0) > 0) {  // until we are left
        }
      }
    });
  }
  ~Liar() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  int port = 0;

 private:
  const int listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  std::thread thread_;
};

// They are found out by what they say: the time limit is far away.
TEST(RedisStores, BoundTheAnswersOfServersThatLie) {
  std::string nested = "*1000\r\n";
  for (int i = 0; i < 1000; ++i) nested += "*100000\r\n";
  const std::string huge = "*2000000000\r\n";
  for (const std::string& said : {huge, "*2\r\n$1\r\n0\r\n" + huge, nested}) {
    const Liar liar(said);
    RedisStore store({.port = liar.port, .connect_timeout_s = 600, .command_timeout_s = 600});
    const Status status = store.purge(0);
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.to_string();
    EXPECT_NE(status.message().find(std::strerror(EPROTO)), std::string::npos) << status.to_string();
  }
  const Liar endless("$2000000000\r\n", true);
  RedisStore store({.port = endless.port, .connect_timeout_s = 600, .command_timeout_s = 600});
  EXPECT_NE(store.ping().message().find(std::strerror(EPROTO)), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::kv
