// Host memory: budget, order of eviction, checksums, ownership of spills, snapshots that are still being written.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kv/host_store.h"

namespace deepinfer::kv {
namespace {

BlockKey key(uint8_t n) { return {.bytes = {n}}; }

int snapshot(HostStore& s, uint8_t n, size_t bytes, double cost = 1, double expires_s = 1e9) {
  const int id = s.reserve(bytes, cost);
  if (id == kNoEntry) return id;
  s.publish(id, key(n), expires_s);
  for (std::byte& b : s.buffer(id)) b = std::byte{n};
  s.seal(id);
  return id;
}

TEST(HostStore, AnEntryIsFoundOnlyOnceSealed) {
  HostStore s({.bytes_max = 100});
  const int id = s.reserve(40);
  s.publish(id, key(1), 10);
  EXPECT_EQ(s.find(key(1), 0), kNoEntry);
  s.seal(id);
  EXPECT_EQ(s.find(key(1), 0), id);
  s.unpin(id);
  EXPECT_EQ(s.find(key(1), 10), kNoEntry) << "its time is over";
  EXPECT_EQ(s.expire(10), 1);
  EXPECT_EQ(s.bytes_used(), 0u);
}

TEST(HostStore, ADamagedEntryIsAMiss) {
  HostStore s({.bytes_max = 100});
  const int id = snapshot(s, 1, 40);
  for (size_t at : {size_t{0}, size_t{17}, size_t{39}}) {
    s.buffer(id)[at] ^= std::byte{1};
    EXPECT_FALSE(s.verify(id));
    s.buffer(id)[at] ^= std::byte{1};
    EXPECT_TRUE(s.verify(id));
  }
  s.buffer(id)[5] ^= std::byte{128};
  EXPECT_EQ(s.find(key(1), 0), kNoEntry);
  EXPECT_EQ(s.counters().damaged, 4);
  EXPECT_EQ(s.size(), 0) << "it is gone, not tried again";
}

TEST(HostStore, PartsAreKeptByReferenceOrCopied) {
  HostStore s({.bytes_max = 100});
  EXPECT_EQ(s.reserve_parts(120, 40), kNoEntry);
  const int id = s.reserve_parts(80, 40);
  EXPECT_EQ(s.bytes_used(), 80u);
  EXPECT_TRUE(s.part(id, 40, 40).empty()) << "it was never put";
  const auto lent = std::make_shared<const std::vector<std::byte>>(50, std::byte{7});
  s.put_part(id, 40, std::span(*lent).subspan(5, 40), lent);
  EXPECT_EQ(s.part(id, 40, 40).data(), lent->data() + 5);
  EXPECT_EQ(lent.use_count(), 2);
  std::vector<std::byte> page(40, std::byte{9});
  s.put_part(id, 0, page, nullptr);
  page.assign(40, std::byte{1});
  EXPECT_EQ(s.part(id, 0, 40)[39], std::byte{9});
  EXPECT_TRUE(s.part(id, 0, 41).empty()) << "more than was put";
  s.seal(id, false);
  s.unpin(id);
  EXPECT_EQ(lent.use_count(), 1);
  EXPECT_EQ(s.bytes_used(), 0u);
  const int plain = s.reserve(60);
  s.buffer(plain)[59] = std::byte{3};
  EXPECT_EQ(std::as_const(s).part(plain, 40, 20)[19], std::byte{3});
}

TEST(HostStore, EvictsByRowsSavedPerByteThenAge) {
  HostStore s({.bytes_max = 100});
  snapshot(s, 1, 40, 1);
  snapshot(s, 2, 40, 5);
  snapshot(s, 3, 40, 1);  // 1 leaves: the cheaper one
  EXPECT_FALSE(s.contains(key(1)));
  EXPECT_TRUE(s.contains(key(2)));
  snapshot(s, 4, 40, 1);
  EXPECT_FALSE(s.contains(key(3)));
  EXPECT_TRUE(s.contains(key(2)));
  EXPECT_EQ(s.counters().evicted, 2);
  EXPECT_EQ(s.reserve(101), kNoEntry);
  EXPECT_EQ(s.counters().refused, 1);
}

TEST(HostStore, PinnedAndOwnedEntriesStay) {
  HostStore s({.bytes_max = 100});
  const int spill = s.reserve(40);  // never published
  s.seal(spill);
  const int shot = snapshot(s, 1, 40);
  EXPECT_EQ(s.find(key(1), 0), shot);
  EXPECT_EQ(s.reserve(40), kNoEntry) << "one is owned, one is pinned";
  EXPECT_EQ(s.owned(), 1);
  s.unpin(shot);
  const int next = s.reserve(40);
  EXPECT_NE(next, kNoEntry);
  EXPECT_FALSE(s.contains(key(1)));
  s.unpin(spill);
  EXPECT_EQ(s.bytes_used(), 40u);
  s.unpin(next);
  EXPECT_EQ(s.bytes_used(), 40u) << "its bytes are still being written";
  s.seal(next);
  EXPECT_EQ(s.bytes_used(), 0u);
}

TEST(HostStore, SupersededAndReplacedEntriesGoWhenNobodyReadsThem) {
  HostStore s({.bytes_max = 1000});
  const int first = snapshot(s, 1, 40);
  EXPECT_EQ(s.find(key(1), 0), first);
  const int second = snapshot(s, 1, 40);
  EXPECT_NE(first, second);
  EXPECT_EQ(s.buffer(first).size(), 40u) << "still being read";
  s.unpin(first);
  EXPECT_EQ(s.bytes_used(), 40u);
  s.supersede(key(1));
  s.supersede(key(9));
  EXPECT_EQ(s.counters().superseded, 1);
  EXPECT_EQ(s.bytes_used(), 0u);
}

TEST(HostStore, CountsWithoutBytes) {
  HostStore s({.bytes_max = 1ull << 40, .keep_bytes = false});
  const int id = snapshot(s, 1, 1ull << 39);
  EXPECT_EQ(s.find(key(1), 0), id);
  EXPECT_EQ(s.bytes_used(), 1ull << 39);
}

TEST(HostStore, Faults) {
  FaultPoint fail = FaultPoint::kHostReserve;
  HostStoreOptions o{.bytes_max = 100};
  o.faults.hook = [&](FaultPoint p) { return p == fail; };
  HostStore s(o);
  EXPECT_EQ(s.reserve(1), kNoEntry);
  fail = FaultPoint::kHostVerify;
  snapshot(s, 1, 10);
  EXPECT_EQ(s.find(key(1), 0), kNoEntry);
}

}  // namespace
}  // namespace deepinfer::kv
