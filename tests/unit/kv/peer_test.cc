// KV servers of peers: protocol, tokens, members that go, stop or talk nonsense, clients that do.
#include <gtest/gtest.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "kv/peer_server.h"
#include "kv/peer_tier.h"
#include "kv/peer_wire.h"
#include "kv/record.h"
#include "tests/support/child_process.h"
#include "tests/unit/kv/remote_records.h"

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;
using namespace remote_records;

std::unique_ptr<PeerServer> start_server(PeerServerOptions o = {}) {
  auto server = PeerServer::start(o);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(server).value();
}

std::string at(int port) { return "127.0.0.1:" + std::to_string(port); }

// Patient, since the machine may be busy, unless told otherwise.
std::unique_ptr<PeerTier> connect(std::vector<std::string> members, std::string token = "", double timeout_s = 20,
                                  double away_s = 0.1) {
  auto tier = PeerTier::open({.members = std::move(members),
                              .token = std::move(token),
                              .connect_timeout_s = timeout_s,
                              .timeout_s = timeout_s,
                              .away_s = away_s});
  EXPECT_TRUE(tier.ok()) << tier.status().message();
  return std::move(tier).value();
}

Tier::Completion wait_for(Tier& tier, Tier::Ticket ticket) {
  std::array<Tier::Completion, 8> done;
  for (int looks = 0; looks < 150'000; ++looks) {  // 30 s, without those for which the process was stopped
    for (size_t i = 0, n = tier.poll(done); i < n; ++i) {
      if (done[i].ticket == ticket) return done[i];
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ADD_FAILURE() << "a ticket does not complete";
  return {};
}

Code put(Tier& tier, uint32_t i, uint64_t space = 1) {
  return wait_for(tier, tier.put(key_of(i), record_of(i), {.space = space, .ttl_s = 600})).status.code();
}

Code get(Tier& tier, uint32_t i) {
  std::vector<std::byte> buffer(30000);
  const Tier::Completion done = wait_for(tier, tier.get(key_of(i), buffer));
  if (!done.status.ok()) return done.status.code();
  buffer.resize(done.bytes);
  EXPECT_EQ(buffer, record_of(i));
  return Code::kOk;
}

TEST(Peers, EveryDamageOfAHeaderIsFound) {
  std::array<std::byte, kPeerHeaderBytes> bytes;
  const PeerHeader h{.op = PeerOp::kPut, .id = 7, .bytes = 99, .key = key_of(3), .space = 5, .ttl_s = 60};
  encode_peer_header(h, bytes);
  const Result<PeerHeader> back = decode_peer_header(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->id, 7u);
  EXPECT_EQ(back->key, key_of(3));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(decode_peer_header(bytes).ok()) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  encode_peer_header({.bytes = kPeerBodyMax + 1}, bytes);
  EXPECT_FALSE(decode_peer_header(bytes).ok());
}

TEST(Peers, UrlsAreChecked) {
  const Result<PeerTierOptions> two = PeerTier::parse("kvstore://a:1,[::1]:7711");
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->members, (std::vector<std::string>{"a:1", "[::1]:7711"}));
  for (const char* bad : {"", "kvstore://", "kvstore://a", "kvstore://a:0", "kvstore://,a:1", "kvstore://a:1,a:1"})
    EXPECT_EQ(PeerTier::parse(bad).status().code(), Code::kInvalidArgument) << bad;
}

TEST(Peers, StoreAndFind) {
  const auto server = start_server();
  const auto tier = connect({at(server->port())});
  ASSERT_TRUE(tier->wait_connected(60).ok());
  std::vector<BlockKey> chain;
  for (uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(put(*tier, i, 1 + i % 2), Code::kOk);
    chain.push_back(key_of(i));
  }
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(get(*tier, i), Code::kOk);
  EXPECT_EQ(get(*tier, 99), Code::kNotFound);
  EXPECT_EQ(tier->count_prefix(chain, 60), 50u);
  tier->erase(key_of(30));
  EXPECT_EQ(get(*tier, 30), Code::kNotFound);
  EXPECT_EQ(tier->count_prefix(chain, 60), 30u);
  std::vector<std::byte> small(100), large(30000);
  EXPECT_EQ(wait_for(*tier, tier->get(key_of(1), small)).status.code(), Code::kResourceExhausted);
  const Tier::Completion done = wait_for(*tier, tier->get(key_of(2), large));
  EXPECT_EQ(done.info.space, 1u);
  EXPECT_EQ(done.info.ttl_s, 600);
  EXPECT_TRUE(tier->purge(1, 60).ok());
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(get(*tier, i), i % 2 == 1 ? Code::kOk : Code::kNotFound);
  const auto said = tier->describe(60);
  ASSERT_TRUE(said[0].second.ok());
  EXPECT_NE(said[0].second->find("25 blocks"), std::string::npos) << said[0].second.value();
  std::vector<std::byte> damaged = record_of(70);
  damaged[500] ^= std::byte{1};
  EXPECT_EQ(wait_for(*tier, tier->put(key_of(70), damaged, {})).status.code(), Code::kDataLoss);
}

TEST(Peers, ManyAtOnce) {
  const auto server = start_server();
  const auto tier = connect({at(server->port())});
  std::map<Tier::Ticket, uint32_t> open;
  for (uint32_t i = 0; i < 400; ++i) open[tier->put(key_of(i), record_of(i), {.space = 1})] = i;
  std::array<Tier::Completion, 32> done;
  const auto drain = [&](const std::function<void(const Tier::Completion&, uint32_t)>& f) {
    for (int spins = 0; !open.empty() && spins < 100000; ++spins) {
      const size_t n = tier->poll(done);
      for (size_t k = 0; k < n; ++k) {
        f(done[k], open.at(done[k].ticket));
        open.erase(done[k].ticket);
      }
      if (n == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    EXPECT_TRUE(open.empty());
  };
  drain([](const Tier::Completion& c, uint32_t) { EXPECT_TRUE(c.status.ok()) << c.status.message(); });
  std::vector<std::vector<std::byte>> buffers(400, std::vector<std::byte>(record_of(0).size()));
  std::vector<Tier::Ticket> cancelled;
  for (uint32_t i = 0; i < 400; ++i) {
    const Tier::Ticket t = tier->get(key_of(i), buffers[i]);
    i % 7 == 0 ? cancelled.push_back(t) : void(open[t] = i);
  }
  for (size_t k = 0; k < cancelled.size(); ++k) {
    tier->cancel(cancelled[k]);
    std::ranges::fill(buffers[7 * k], std::byte{9});
  }
  drain([&](const Tier::Completion& c, uint32_t i) {
    EXPECT_TRUE(c.status.ok());
    EXPECT_EQ(buffers[i], record_of(i)) << i;
  });
  for (size_t k = 0; k < cancelled.size(); ++k)
    EXPECT_EQ(std::ranges::count(buffers[7 * k], std::byte{9}), static_cast<ptrdiff_t>(buffers[0].size()));
}

TEST(Peers, SsdOutlivesTheServer) {
  const std::string dir = testing::TempDir() + "peer_ssd_" + std::to_string(::getpid());
  PeerServerOptions o{.host_bytes = 100000, .ssd_dir = dir, .ssd = {.bytes_max = 64 << 20, .segment_bytes = 4 << 20}};
  {
    const auto server = start_server(o);
    const auto tier = connect({at(server->port())});
    for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(put(*tier, i), Code::kOk);
    for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(get(*tier, i), Code::kOk) << i;
  }
  {
    const auto server = start_server(o);
    const auto tier = connect({at(server->port())});
    for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(get(*tier, i), Code::kOk) << i;
    EXPECT_GT(server->stats().ssd_hits, 0);
  }
  fs::remove_all(dir);
}

// A put is answered before the device has it, and memory may drop the block at once.
TEST(Peers, WhatTheSsdHasNotWrittenYetIsFound) {
  const std::string dir = testing::TempDir() + "peer_writes_" + std::to_string(::getpid());
  std::atomic<bool> held = true;
  PeerServerOptions o{.host_bytes = 100, .ssd_dir = dir, .ssd = {.bytes_max = 64 << 20, .segment_bytes = 4 << 20}};
  o.ssd.faults.hook = [&held](FaultPoint p) {
    while (p == FaultPoint::kSsdTorn && held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return false;
  };
  {
    const auto server = start_server(o);
    const auto tier = connect({at(server->port())});
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(put(*tier, i), Code::kOk);
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(get(*tier, i), Code::kOk) << i;
    tier->erase(key_of(3));
    EXPECT_EQ(get(*tier, 3), Code::kNotFound);
    held = false;
    for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(get(*tier, i), i == 3 ? Code::kNotFound : Code::kOk) << i;
  }
  fs::remove_all(dir);
}

TEST(Peers, TokensAreChecked) {
  const auto server = start_server({.token = "secret"});
  const auto right = connect({at(server->port())}, "secret"), wrong = connect({at(server->port())}, "secre");
  EXPECT_TRUE(right->wait_connected(60).ok());
  Status status;
  for (int i = 0; i < 100 && status.message().find("token") == std::string::npos; ++i) {
    status = wrong->wait_connected(0.2);
    EXPECT_FALSE(status.ok());
  }
  EXPECT_NE(status.message().find("token"), std::string::npos) << status.message();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(put(*right, 1), Code::kOk);
  EXPECT_NE(get(*wrong, 1), Code::kOk);
  EXPECT_FALSE(connect({at(server->port())})->wait_connected(0.3).ok());
}

TEST(Peers, TheFirstTryEndsTheWaitWhereNobodyListens) {
  const auto nobody = connect({"127.0.0.1:1", "127.0.0.1:2"});  // ports that the system keeps for others
  const Status status = nobody->wait_connected(600, true);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("127.0.0.1:"), std::string::npos) << status.message();
}

TEST(Peers, BlocksMoveOnlyFromMembersThatLeave) {
  const std::vector<std::string> three{"a:1", "b:1", "c:1"}, two{"a:1", "c:1"};
  std::array<int, 3> count = {};
  for (uint32_t i = 0; i < 3000; ++i) {
    const size_t owner = peer_of(three, key_of(i));
    ++count[owner];
    if (owner != 1) {
      EXPECT_EQ(two[peer_of(two, key_of(i))], three[owner]);
    }
  }
  for (const int n : count) EXPECT_NEAR(n, 1000, 150);
}

// A member that is gone, and one that takes connections and says nothing, as a stopped process does.
TEST(Peers, LostMembersAreMissesOfTheirBlocksOnly) {
  auto first = start_server(), second = start_server();
  const int port = second->port();
  const int deaf = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof a;
  ASSERT_EQ(::bind(deaf, reinterpret_cast<sockaddr*>(&a), size), 0);
  ASSERT_EQ(::listen(deaf, 8), 0);
  ::getsockname(deaf, reinterpret_cast<sockaddr*>(&a), &size);
  const std::vector<std::string> members{at(first->port()), at(port), at(ntohs(a.sin_port))};
  auto tier = connect(members, "", 2, 60);  // one wait for each that is lost
  // A machine that stalls for so long makes others look lost, too: then again, with a tier that knows nothing of it.
  const auto check = [&](std::array<bool, 3> here, Code (*ask)(Tier&, uint32_t)) {
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::vector<Code> codes;
      for (uint32_t i = 0; i < 60; ++i) codes.push_back(ask(*tier, i));
      const auto stats = tier->stats();
      const bool stalled = (here[0] && stats[0].away) || (here[1] && stats[1].away);
      if (stalled && attempt < 4) {
        tier = connect(members, "", 2, 60);
        continue;
      }
      for (uint32_t i = 0; i < 60; ++i) EXPECT_EQ(codes[i] == Code::kOk, here[peer_of(members, key_of(i))]) << i;
      return;
    }
  };
  check({true, true, false}, [](Tier& t, uint32_t i) { return put(t, i); });
  check({true, true, false}, get);
  second.reset();
  check({true, false, false}, get);
  EXPECT_TRUE(tier->stats()[1].away);
  second = start_server({.port = port});
  uint32_t of_second = 0;
  while (peer_of(members, key_of(of_second)) != 1) ++of_second;
  const auto again = connect(members, "", 2, 0.1);
  for (int i = 0; i < 1000 && put(*again, of_second) != Code::kOk; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(get(*again, of_second), Code::kOk);
  ::close(deaf);
}

int dial(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in a{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)),
                      .sin_addr = {htonl(INADDR_LOOPBACK)}};
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a), 0);
  const timeval limit{.tv_sec = 0, .tv_usec = 20000};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

void append(std::vector<std::byte>* out, PeerHeader h, std::span<const std::byte> body, bool sum) {
  h.bytes = static_cast<uint32_t>(body.size());
  if (sum) h.body_sum = kv_checksum(body);
  std::array<std::byte, kPeerHeaderBytes> head;
  encode_peer_header(h, head);
  out->insert(out->end(), head.begin(), head.end());
  out->insert(out->end(), body.begin(), body.end());
}

// Frames that are right but for a few bytes, cut or cut off, with lengths and counts that lie.
std::vector<std::byte> strange_frames(std::mt19937& rng, bool of_server) {
  std::vector<std::byte> out;
  if (!of_server || rng() % 4 != 0)
    append(&out, {.op = of_server ? PeerOp::kChallenge : PeerOp::kAuth}, std::vector<std::byte>(of_server ? 32 : 0),
           true);
  if (of_server) append(&out, {.op = PeerOp::kDone}, {}, true);
  for (unsigned n = rng() % 6; n > 0; --n) {
    const auto op = static_cast<PeerOp>(1 + rng() % 10);
    std::vector<std::byte> body = rng() % 3 == 0 ? record_of(rng() % 9) : std::vector<std::byte>(rng() % 200);
    append(&out,
           {.op = op,
            .status = static_cast<Code>(rng() % 11),
            .id = rng() % 40,
            .count = static_cast<uint32_t>(rng() % 9),
            .key = key_of(rng() % 9),
            .ttl_s = static_cast<uint32_t>(rng())},
           body, rng() % 4 != 0);
  }
  for (unsigned n = rng() % 3; n > 0 && !out.empty(); --n)
    out[rng() % out.size()] ^= static_cast<std::byte>(1 << rng() % 8);
  if (rng() % 3 == 0) out.resize(rng() % (out.size() + 1));
  return out;
}

TEST(Peers, APutWithoutABodyIsRefused) {
  const auto server = start_server();
  const int fd = dial(server->port());
  std::vector<std::byte> out;
  append(&out, {.op = PeerOp::kAuth}, {}, true);
  append(&out, {.op = PeerOp::kPut, .id = 7, .key = key_of(1)}, {}, true);
  append(&out, {.op = PeerOp::kErase, .id = 8, .count = 0}, {}, true);
  append(&out, {.op = PeerOp::kPut, .id = 9, .key = key_of(1)}, {}, true);
  ASSERT_EQ(::send(fd, out.data(), out.size(), MSG_NOSIGNAL), static_cast<ssize_t>(out.size()));
  std::vector<std::byte> in(kPeerHeaderBytes + kPeerChallengeBytes + 4 * kPeerHeaderBytes);
  for (size_t n = 0; n < in.size();) {
    const ssize_t got = ::recv(fd, in.data() + n, in.size() - n, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    ASSERT_GT(got, 0);
    n += static_cast<size_t>(got);
  }
  ::close(fd);
  for (const auto& [at, id] : {std::pair(3, 7u), std::pair(1, 9u)}) {
    const auto head = std::span(in).last(static_cast<size_t>(at) * kPeerHeaderBytes).first<kPeerHeaderBytes>();
    const Result<PeerHeader> h = decode_peer_header(head);
    ASSERT_TRUE(h.ok());
    EXPECT_EQ(h->id, id);
    EXPECT_EQ(h->status, Code::kDataLoss);
  }
}

TEST(Peers, ServersSurviveWhatClientsSend) {
  const auto server = start_server({.host_bytes = 1 << 20});
  std::mt19937 rng(11);
  const int rounds = std::getenv("DEEPINFER_TEST_ALL") != nullptr ? 100000 : 300;
  for (int i = 0; i < rounds; ++i) {
    const int fd = dial(server->port());
    const std::vector<std::byte> bytes = strange_frames(rng, false);
    (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    std::array<std::byte, 4096> answer;
    if (rng() % 4 == 0) (void)!::recv(fd, answer.data(), answer.size(), 0);
    ::close(fd);
  }
  const auto tier = connect({at(server->port())});
  EXPECT_EQ(put(*tier, 5), Code::kOk);
  EXPECT_EQ(get(*tier, 5), Code::kOk);
  EXPECT_GT(server->stats().bad_frames, 0);
}

TEST(Peers, ClientsSurviveWhatServersSend) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof a;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&a), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&a), &size);
  std::thread liar([&] {
    std::mt19937 rng(12);
    for (int fd = ::accept(listener, nullptr, nullptr); fd >= 0; fd = ::accept(listener, nullptr, nullptr)) {
      const std::vector<std::byte> bytes = strange_frames(rng, true);
      (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(rng() % 8));
      ::close(fd);
    }
  });
  {
    const auto opened = PeerTier::open({.members = {at(ntohs(a.sin_port))},
                                        .connect_timeout_s = 0.05,
                                        .timeout_s = 0.05,
                                        .away_s = 0.001,
                                        .away_max_s = 0.002});
    ASSERT_TRUE(opened.ok());
    PeerTier& tier = *opened.value();
    std::vector<std::byte> buffer(30000);
    for (uint32_t i = 0; i < 200; ++i) {
      const Tier::Completion done = wait_for(tier, tier.get(key_of(i % 9), buffer));
      if (done.status.code() == Code::kUnavailable) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (!done.status.ok()) continue;  // else the reader finds what is wrong with it
      EXPECT_LE(done.bytes, buffer.size());
      if (i % 10 == 0) (void)tier.count_prefix(std::array{key_of(1)}, 0.01);
    }
    EXPECT_GT(tier.stats()[0].failures, 0);
  }
  ::shutdown(listener, SHUT_RDWR);
  ::close(listener);
  liar.join();
}

}  // namespace
}  // namespace deepinfer::kv
