#include "kv/tier_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <thread>

#include "kv/host_tier.h"
#include "kv/record.h"
#include "tests/support/fake_tier.h"

namespace deepinfer::kv {
namespace {

BlockKey key_of(uint8_t i) {
  BlockKey k;
  k.bytes[3] = i;
  return k;
}

std::vector<std::byte> record_of(uint8_t i, size_t payload = 1000) {
  std::vector<std::byte> record(record_bytes(8, payload));
  seal_record(key_of(i), std::vector<int32_t>(8, i), std::vector<std::byte>(payload, std::byte{i}), record);
  return record;
}

struct User {
  explicit User(Tier& t) : tier(t) {}
  Tier::Completion wait(Tier::Ticket ticket) {
    for (int i = 0; i < 30000; ++i) {
      std::array<Tier::Completion, 8> got;
      for (size_t k = 0, n = tier.poll(got); k < n; ++k) done[got[k].ticket] = got[k];
      if (done.contains(ticket)) return done[ticket];
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "no completion";
    return {};
  }
  bool put(uint8_t i, PutInfo info = {}) { return wait(tier.put(key_of(i), record_of(i), info)).status.ok(); }
  bool get(uint8_t i) {
    std::vector<std::byte> buffer(2000);
    const Tier::Completion c = wait(tier.get(key_of(i), buffer));
    if (!c.status.ok()) return false;
    buffer.resize(c.bytes);
    EXPECT_EQ(buffer, record_of(i));
    return true;
  }

  Tier& tier;
  std::map<Tier::Ticket, Tier::Completion> done;
};

TEST(HostTier, KeepsTheRecentlyUsedWithinItsBytes) {
  HostTier host({.bytes_max = 10 * record_of(0).size()});
  User u(host);
  for (uint8_t i = 0; i < 10; ++i) EXPECT_TRUE(u.put(i));
  EXPECT_TRUE(u.get(0));
  for (uint8_t i = 10; i < 19; ++i) EXPECT_TRUE(u.put(i));
  EXPECT_TRUE(u.get(0));
  for (uint8_t i = 1; i < 10; ++i) EXPECT_FALSE(u.get(i));
  EXPECT_EQ(host.stats().evicted, 9);
  EXPECT_LE(host.stats().bytes, 10 * record_of(0).size());
  EXPECT_FALSE(u.wait(host.put(key_of(1), record_of(1, 1 << 20), {})).status.ok());
}

// Blocks and window snapshots of many times their size, one behind the other: it holds the bytes that it counts.
TEST(HostTier, RecordsOfManySizesTakeWhatTheyCount) {
  constexpr size_t kLarge = 12000;
  HostTier host({.bytes_max = 3 * record_of(0, kLarge).size()});
  User u(host);
  for (int i = 0; i < 240; ++i) {
    const auto name = static_cast<uint8_t>(i);
    const std::vector<std::byte> record = record_of(name, i % 8 == 0 ? kLarge : 1000);
    EXPECT_TRUE(u.wait(host.put(key_of(name), record, {})).status.ok());
  }
  uint64_t held = 0;
  for (int i = 0; i < 240; ++i) {
    PutInfo info;
    if (const auto record = host.share(key_of(static_cast<uint8_t>(i)), &info)) held += record->capacity();
  }
  EXPECT_GT(held, 0u);
  EXPECT_EQ(held, host.stats().bytes);
}

TEST(HostTier, TimeAndSpaces) {
  int64_t time = 0;
  HostTier host({.unix_time = [&] { return time; }});
  User u(host);
  u.put(1, {.space = 5, .ttl_s = 10});
  u.put(2, {.space = 6, .ttl_s = 10});
  time = 9;
  EXPECT_TRUE(u.get(1));
  time = 12;
  EXPECT_TRUE(u.get(1));
  EXPECT_FALSE(u.get(2));
  host.purge(6);
  EXPECT_TRUE(u.get(1));
  host.purge(5);
  EXPECT_FALSE(u.get(1));
}

TEST(HostTier, ALentRecordStaysWhatItIs) {
  const size_t bytes = record_of(0).size();
  HostTier host({.bytes_max = 2 * bytes});
  User u(host);
  EXPECT_TRUE(u.put(1));
  const auto lend = [&](uint8_t i) { return u.wait(host.get_lending(key_of(i), {}, {})); };
  const Tier::Completion first = lend(1);
  ASSERT_NE(first.lent, nullptr);
  EXPECT_TRUE(first.checked);
  EXPECT_EQ(first.lent, lend(1).lent) << "the record itself";
  EXPECT_EQ(lend(2).status.code(), Code::kNotFound);
  for (uint8_t i = 0; i < 40; ++i) EXPECT_TRUE(u.put(i % 5));  // evicted, replaced and put again
  host.purge(0);
  for (uint8_t i = 5; i < 9; ++i) EXPECT_TRUE(u.put(i));
  EXPECT_TRUE(std::ranges::equal(*first.lent, record_of(1)));
}

// A bit of the record in memory turns: whoever it is lent to sees a miss, and the record is gone.
TEST(TierStack, ADamagedRecordIsNotLent) {
  const auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  for (const size_t byte : {size_t{0}, size_t{9}, size_t{50}, size_t{700}, record_of(1).size() - 1}) {
    TierStack stack({host});
    User u(stack);
    EXPECT_TRUE(u.put(1));
    PutInfo info;
    const_cast<std::byte&>((*host->share(key_of(1), &info))[byte]) ^= std::byte{2};
    EXPECT_EQ(u.wait(stack.get_lending(key_of(1), {}, {})).status.code(), Code::kNotFound) << byte;
    EXPECT_EQ(stack.level_count(0).damaged, 1);
    EXPECT_FALSE(host->contains(key_of(1)));
  }
}

// The upper level lends and the lower one copies, which brings the record up.
TEST(TierStack, WhatIsBroughtUpIsLentTheNextTime) {
  const auto above = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  FakeTier below({}, 1);
  const auto shared = std::shared_ptr<Tier>(std::shared_ptr<Tier>(), &below);
  EXPECT_TRUE(User(below).put(1));
  TierStack stack({above, shared});
  User u(stack);
  std::vector<std::byte> buffer(record_of(1).size());
  const Tier::Completion copied = u.wait(stack.get_lending(key_of(1), buffer, {}));
  EXPECT_EQ(copied.lent, nullptr);
  EXPECT_TRUE(copied.checked);
  EXPECT_EQ(buffer, record_of(1));
  while (!above->contains(key_of(1))) stack.poll({});
  const Tier::Completion lent = u.wait(stack.get_lending(key_of(1), {}, {}));
  ASSERT_NE(lent.lent, nullptr);
  EXPECT_EQ(lent.bytes, buffer.size());
  EXPECT_TRUE(std::ranges::equal(*lent.lent, buffer));
}

TEST(TierStack, FindsBelowAndBringsUp) {
  auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 3 * record_of(0).size()});
  auto below = std::make_shared<FakeTier>(TierFaults{.delay_max = 3}, 1);
  TierStack stack({host, below});
  User u(stack);
  for (uint8_t i = 0; i < 20; ++i) EXPECT_TRUE(u.put(i));
  EXPECT_EQ(host->stats().records, 3);
  for (uint8_t i = 0; i < 20; ++i) EXPECT_TRUE(u.get(i)) << int{i};
  EXPECT_GE(stack.level_count(1).hits, 17);
  const int64_t before = stack.level_count(1).hits;
  EXPECT_TRUE(u.get(19));
  EXPECT_EQ(stack.level_count(1).hits, before);  // it is in host memory now
  EXPECT_FALSE(u.get(77));
  stack.erase(key_of(19));
  EXPECT_FALSE(u.get(19));
}

TEST(TierStack, KnowsWhatItsLevelsKnow) {
  auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  auto lower = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  auto remote = std::make_shared<FakeTier>(TierFaults{}, 1);  // knows nothing without asking
  for (uint8_t i : {0, 1, 4, 6}) EXPECT_TRUE(User(*host).put(i));
  for (uint8_t i : {1, 2, 3, 5, 6, 9}) EXPECT_TRUE(User(*lower).put(i));
  std::vector<BlockKey> keys;
  for (uint8_t i = 0; i < 10; ++i) keys.push_back(key_of(i));
  const TierStack both({host, lower}), all({host, lower, remote});
  EXPECT_EQ(both.known_prefix(keys).keys, 7u);
  EXPECT_TRUE(both.known_prefix(keys).all);
  EXPECT_EQ(all.known_prefix(keys).keys, 7u);
  EXPECT_FALSE(all.known_prefix(keys).all);
  EXPECT_TRUE(all.known_prefix(std::span(keys).first(7)).all);  // nothing is left to be asked for
  EXPECT_EQ(both.known_prefix(std::span(keys).subspan(7)).keys, 0u);
  EXPECT_TRUE(both.known_prefix(std::span(keys).subspan(7)).all);
}

// A purge by tenant finds what was brought up, too.
TEST(TierStack, WhatIsBroughtUpKeepsItsTenantAndTime) {
  auto above = std::make_shared<HostTier>(HostTierOptions{});
  auto below = std::make_shared<HostTier>(HostTierOptions{});
  User(*below).put(1, {.space = 5, .ttl_s = 10});
  TierStack stack({above, below});
  User u(stack);
  EXPECT_TRUE(u.get(1));
  std::vector<std::byte> buffer(2000);
  const Tier::Completion c = User(*above).wait(above->get(key_of(1), buffer));
  EXPECT_TRUE(c.status.ok());
  EXPECT_EQ(c.info.space, 5u);
  EXPECT_EQ(c.info.ttl_s, 10);
  above->purge(5);
  EXPECT_EQ(above->stats().records, 0);
}

// A level whose writes all fail is told once, and what failed is not counted as written.
TEST(TierStack, AWriteFailureIsToldOnce) {
  class Failing : public FakeTier {
   public:
    Failing() : FakeTier({}, 1) {}
    size_t poll(std::span<Completion> done) override {
      const size_t n = FakeTier::poll(done);
      for (size_t i = 0; i < n && fails; ++i) done[i].status = Status(Code::kIo, "the disk is gone");
      return n;
    }
    bool fails = true;
  };
  const auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  const auto bad = std::make_shared<Failing>();
  std::vector<std::string> told;
  TierStack stack({host, bad}, {.on_trouble = [&told](const std::string& s) { told.push_back(s); }});
  User u(stack);
  uint8_t i = 0;
  for (; i < 3 * kFailuresTold; ++i) EXPECT_TRUE(u.put(i));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("\"fake\" failed: the disk is gone"), std::string::npos) << told[0];
  EXPECT_EQ(stack.level_count(1).put_failures, 3 * kFailuresTold);
  EXPECT_EQ(stack.level_count(1).written_bytes, 0u);
  EXPECT_EQ(stack.level_count(0).written_bytes, 3 * kFailuresTold * record_of(0).size());
  bad->fails = false;
  EXPECT_TRUE(u.put(i++));
  bad->fails = true;
  for (int k = 0; k < kFailuresTold; ++k) EXPECT_TRUE(u.put(i++));
  EXPECT_EQ(told.size(), 2u);
}

TEST(TierStack, WritesWithoutAnswerAreToldAsFailed) {
  class Silent : public FakeTier {
   public:
    Silent() : FakeTier({}, 1) {}
    size_t poll(std::span<Completion>) override { return 0; }
  };
  std::vector<std::string> told;
  TierStack stack({std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20}), std::make_shared<Silent>()},
                  {.level_timeout_s = 0.01, .on_trouble = [&told](const std::string& s) { told.push_back(s); }});
  User u(stack);
  for (uint8_t i = 0; i < kFailuresTold + 2; ++i) EXPECT_TRUE(u.put(i));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("\"fake\" failed: no answer within 0.01 s"), std::string::npos) << told[0];
  EXPECT_EQ(stack.level_count(1).put_failures, kFailuresTold + 2);
  EXPECT_EQ(stack.level_count(0).put_failures, 0);
}

// A tier that lies, is away or never answers costs a miss of that level only.
TEST(TierStack, ABadLevelHidesNothing) {
  for (const TierFaults& faults : {TierFaults{.flip = 1}, TierFaults{.cut = 1}, TierFaults{.error = 1},
                                   TierFaults{.lost_completion = 1}, TierFaults{.lost_record = 1}}) {
    auto bad = std::make_shared<FakeTier>(faults, 1);
    auto good = std::make_shared<FakeTier>(TierFaults{}, 2);  // answers the first poll, however late that comes
    TierStack stack({bad, good}, {.level_timeout_s = 0.05});
    User u(stack);
    EXPECT_TRUE(u.put(1));
    EXPECT_TRUE(u.get(1));
    EXPECT_FALSE(u.get(2));
  }
}

TEST(TierStack, CancelledGetsDoNotComplete) {
  auto below = std::make_shared<FakeTier>(TierFaults{.delay_max = 5}, 1);
  TierStack stack({below});
  User u(stack);
  u.put(1);
  std::vector<std::byte> buffer(2000);
  const Tier::Ticket t = stack.get(key_of(1), buffer);
  stack.cancel(t);
  EXPECT_TRUE(u.get(1));
  EXPECT_FALSE(u.done.contains(t));
  EXPECT_EQ(below->jobs(), 0u);
}

TEST(HostTier, ATenantReplacesItsOwnBeyondItsShare) {
  const size_t each = record_of(0).size();
  HostTier host({.bytes_max = 20 * each, .space_bytes_max = 4 * each});
  User u(host);
  EXPECT_TRUE(u.put(100, {.space = 2}));
  for (uint8_t i = 0; i < 4; ++i) EXPECT_TRUE(u.put(i, {.space = 1}));
  EXPECT_TRUE(u.get(0));
  for (uint8_t i = 4; i < 7; ++i) EXPECT_TRUE(u.put(i, {.space = 1}));
  for (uint8_t i = 0; i < 7; ++i) EXPECT_EQ(u.get(i), i == 0 || i > 3) << int{i};
  EXPECT_TRUE(u.get(100));
  EXPECT_TRUE(u.put(5, {.space = 1}));  // the same again takes no more
  EXPECT_EQ(host.stats().records, 5);
  EXPECT_EQ(host.stats().bytes, 5 * each);
  host.purge(1);
  EXPECT_TRUE(u.put(1, {.space = 1}));
  EXPECT_EQ(host.stats().records, 2);
}

TEST(TierStack, CountsByTenantTrafficAndLevel) {
  const auto host = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  const auto below = std::make_shared<HostTier>(HostTierOptions{.bytes_max = 1 << 20});
  TierStack stack({host, below});
  User u(stack);
  const PutInfo agent{.space = 7, .traffic = Traffic::kAgent}, chat{.space = 7}, other{.space = 9};
  EXPECT_TRUE(u.put(1, agent));
  EXPECT_TRUE(u.put(2, chat));
  host->erase(key_of(2));
  std::vector<std::byte> buffer(2000);
  for (const auto& [i, who] : {std::pair(1, agent), std::pair(2, chat), std::pair(3, chat), std::pair(3, other)}) {
    const Tier::Completion c = u.wait(stack.get_for(key_of(static_cast<uint8_t>(i)), buffer, who));
    EXPECT_EQ(c.status.ok(), i < 3);
    EXPECT_EQ(c.checked, i < 3);
  }
  const std::vector<TierCount> counts = stack.counts();
  ASSERT_EQ(counts.size(), 6u);  // 2 levels; 7 with chat, 7 with agent, 9 with chat
  const auto of = [&](size_t level, uint64_t space, Traffic traffic) {
    for (size_t i = 0; i < 3; ++i) {
      const TierCount& c = counts[3 * level + i];
      if (c.space == space && c.traffic == traffic) return c;
    }
    return TierCount{};
  };
  EXPECT_EQ(of(0, 7, Traffic::kAgent).hits, 1);
  EXPECT_EQ(of(0, 7, Traffic::kAgent).read_bytes, record_of(1).size());
  EXPECT_EQ(of(1, 7, Traffic::kAgent).gets, 0);
  EXPECT_EQ(of(0, 7, Traffic::kChat).misses(), 2);
  EXPECT_EQ(of(1, 7, Traffic::kChat).hits, 1);
  EXPECT_EQ(of(1, 7, Traffic::kChat).misses(), 1);
  EXPECT_EQ(of(0, 9, Traffic::kChat).misses(), 1);
  EXPECT_EQ(of(1, 7, Traffic::kChat).puts, 1);
  int64_t timed = 0;
  for (const int64_t n : of(1, 7, Traffic::kChat).latency) timed += n;
  EXPECT_EQ(timed, 1);
  EXPECT_EQ(stack.level_count(0).gets, 4);
}

}  // namespace
}  // namespace deepinfer::kv
