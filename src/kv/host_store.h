// Host memory for KV that leaves the device: window snapshots (design.md 6) and spilled sequences, under one byte
// budget.
//
//   HostStore store({.bytes_max = 8ull << 30});
//   int id = store.reserve(snapshot_bytes);             // kNoEntry: no room, counted
//   store.publish(id, key, now_s + 600);                // a snapshot: to be found by others once it is sealed
//   ... copy the bytes from the device to store.buffer(id) ...
//   store.seal(id);                                     // complete: the checksum is taken here
//   int hit = store.find(key, now_s);                   // verified and pinned, or kNoEntry
//   ... copy back ...  store.unpin(hit);
//
// An entry that was never published (a spill) belongs to who reserved it, is never evicted and ends with its last
// unpin(). Its bytes may also be parts that others hold in memory already and nobody changes any more:
//
//   int id = store.reserve_parts(blocks * page_bytes, page_bytes);   // counted, nothing is allocated
//   store.put_part(id, 3 * page_bytes, page, owner);                 // kept by reference; without an owner copied
//   store.part(id, 3 * page_bytes, page_bytes);                      // as buffer(id).subspan(..) of other entries
//
// Published entries are evicted when room is needed: lowest value first (greedy dual, as in kv/prefix_index.h,
// with `cost` = rows that it saves, per byte), ties by age; never while pinned or being written. A checksum that does
// not fit makes find() a miss and verify() false, and is counted.
//
// Not thread-safe: seal() belongs to the owner's thread too. With keep_bytes = false only the accounting is done
// (simulator).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kv/cache_key.h"
#include "kv/faults.h"
#include "kv/record_bytes.h"

namespace deepinfer::kv {

inline constexpr int kNoEntry = -1;

struct HostStoreOptions {
  uint64_t bytes_max = 0;
  bool keep_bytes = true;
  Faults faults;
};

struct HostCounters {
  int64_t reserved = 0, refused = 0;  // refused: no room within bytes_max
  int64_t hits = 0, misses = 0;
  int64_t evicted = 0, expired = 0, superseded = 0, damaged = 0;
};

class HostStore {
 public:
  explicit HostStore(HostStoreOptions options) : options_(std::move(options)) {}

  // An entry that the caller owns (one pin) and may write.
  int reserve(size_t bytes, double cost = 1);
  std::span<std::byte> buffer(int id) { return entries_[id].bytes; }
  std::span<const std::byte> buffer(int id) const { return entries_[id].bytes; }
  // An entry of parts of one size; `bytes` is a multiple of it. buffer() of it is empty.
  int reserve_parts(size_t bytes, size_t part_bytes);
  void put_part(int id, size_t offset, std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  // Of either kind of entry, at the beginning of a part; empty: the part was never put.
  std::span<const std::byte> part(int id, size_t offset, size_t bytes) const;
  // Without a checksum the entry cannot be verified later: for bytes that were checked just now.
  void seal(int id, bool with_checksum = true);
  bool sealed(int id) const { return entries_[id].sealed; }
  // Whether the sealed bytes are still what they were.
  bool verify(int id);

  // Gives the entry, with its pin, to the store under `key`; an older one of that key goes. `tag` is the caller's.
  void publish(int id, const BlockKey& key, double expires_s, uint8_t tag = 0);
  uint8_t tag(int id) const { return entries_[id].tag; }
  int find(const BlockKey& key, double now_s);
  bool contains(const BlockKey& key) const { return by_key_.contains(key); }
  void pin(int id) { ++entries_[id].pins; }
  void unpin(int id);
  // A newer snapshot serves what this one served.
  void supersede(const BlockKey& key);
  int expire(double now_s);

  uint64_t bytes_used() const { return bytes_used_; }
  int size() const { return live_; }
  // Entries that are not published: spills, and what somebody still pins or writes.
  int owned() const { return live_ - static_cast<int>(by_key_.size()); }
  const HostCounters& counters() const { return counters_; }

 private:
  struct Part {
    std::shared_ptr<const void> owner;
    std::span<const std::byte> bytes;
  };
  struct Entry {
    RecordBytes bytes;
    std::vector<Part> parts;
    size_t part_bytes = 0;  // 0: it has none
    uint64_t size = 0;
    BlockKey key;
    uint64_t checksum = 0;
    uint64_t order = 0;
    double cost = 0, value = 0, expires_s = 0;
    int pins = 0;
    uint8_t tag = 0;
    bool live = false, sealed = false, published = false;
  };

  int new_entry(size_t bytes, double cost);  // without its bytes
  bool make_room(uint64_t bytes);
  void withdraw(int id);  // no longer found; freed as soon as nobody uses it
  void free_if_unused(int id);
  void use(Entry& e) { e.value = clock_ + e.cost / static_cast<double>(e.size + 1); }

  const HostStoreOptions options_;
  std::vector<Entry> entries_;
  std::vector<int> unused_;
  std::map<BlockKey, int> by_key_;
  uint64_t bytes_used_ = 0, next_order_ = 0;
  double clock_ = 0;
  int live_ = 0;
  HostCounters counters_;
};

}  // namespace deepinfer::kv
