// KV records in host memory, the first tier below the device.
//
//   HostTier host({.bytes_max = 64ull << 30});
//
// The least recently used records leave when room is needed; a record that has not been read for its time is gone. One
// copy in and one copy out, which poll() makes and checks on the way; completions come with it. get_lending() gives the
// record itself, checked by poll(). Who sends records on takes and gives them without a copy: share(), put_shared(). A
// tenant (PutInfo::space) that has its share of the memory replaces its own least recently used records.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "kv/record_bytes.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct HostTierOptions {
  uint64_t bytes_max = 1ull << 30;
  uint64_t space_bytes_max = 0;          // of one tenant; 0: no limit but bytes_max
  std::function<int64_t()> unix_time;  // seconds; empty: the system's clock
};

struct HostTierStats {
  int64_t records = 0, hits = 0, misses = 0, evicted = 0, expired = 0, refused = 0;
  uint64_t bytes = 0;
};

class HostTier : public Tier {
 public:
  explicit HostTier(HostTierOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "host"; }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override;
  Ticket get_lending(const BlockKey& key, std::span<std::byte> into, const PutInfo& who) override;
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Known known_prefix(std::span<const BlockKey> keys) const override;
  void erase(const BlockKey& key) override;
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;

  // The record itself, valid as long as it is held; null: a miss.
  std::shared_ptr<const RecordBytes> share(const BlockKey& key, PutInfo* info);
  // As put(), at once. The record must not change any more.
  Status put_shared(const BlockKey& key, std::shared_ptr<RecordBytes> record, const PutInfo& info);
  bool contains(const BlockKey& key) const;
  void purge(uint64_t space);  // 0: all
  HostTierStats stats() const { return stats_; }

 private:
  struct Record;
  using Place = std::pmr::list<Record>::iterator;
  struct Record {
    BlockKey key;
    std::shared_ptr<RecordBytes> bytes;
    uint64_t space = 0;
    int64_t ttl_s = 0, expires_at = 0;
    Place place;
    std::pmr::list<BlockKey>::iterator in_space;
  };
  struct Read {
    Ticket ticket = 0;
    std::shared_ptr<const RecordBytes> bytes;
    std::span<std::byte> into;  // empty: lent
    PutInfo info;
  };
  struct Space {
    explicit Space(std::pmr::memory_resource* memory) : order(memory) {}
    uint64_t bytes = 0;
    std::pmr::list<BlockKey> order;  // the most recently used first
  };

  int64_t now() const;
  Place drop(Place at);
  Record* find(const BlockKey& key);  // null: a miss
  Ticket start_read(Record* r, std::span<std::byte> into);
  void read_next();
  void move_to_front(Record& record);
  Status make_room(const BlockKey& key, size_t bytes, const PutInfo& info);
  Ticket complete(Status status);

  const HostTierOptions options_;
  // Entries lie together: strewn among the records' bytes, each would cost a lookup a page of its own.
  std::pmr::unsynchronized_pool_resource memory_;
  std::pmr::list<Record> records_{&memory_};  // the most recently used first
  std::pmr::list<Record> spare_{&memory_};    // one to be used again, with its buffer if nobody else holds it
  std::pmr::unordered_map<BlockKey, Place, BlockKeyHash> by_key_{&memory_};
  std::unordered_map<uint64_t, Space> spaces_;  // looked up, never walked
  std::deque<Read> reads_;  // to be copied by poll(), one after another
  std::deque<Completion> completions_;
  Ticket last_ = 0;
  HostTierStats stats_;
};

}  // namespace deepinfer::kv
