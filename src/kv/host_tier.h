// KV records in host memory, the first tier below the device.
//
//   HostTier host({.bytes_max = 64ull << 30});
//
// The least recently used records leave when room is needed; a record that has not been read for its time is gone. One
// copy in and one copy out; completions come with the next poll().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include "kv/tier.h"

namespace deepinfer::kv {

struct HostTierOptions {
  uint64_t bytes_max = 1ull << 30;
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
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  void erase(const BlockKey& key) override;
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;

  void purge(uint64_t space);  // 0: all
  HostTierStats stats() const { return stats_; }

 private:
  struct Record {
    BlockKey key;
    std::vector<std::byte> bytes;
    uint64_t space = 0;
    int64_t ttl_s = 0, expires_at = 0;
  };
  using Place = std::list<Record>::iterator;

  int64_t now() const;
  Place drop(Place at);
  Ticket complete(Status status, size_t bytes = 0, const PutInfo& info = {});

  const HostTierOptions options_;
  std::list<Record> records_;  // the most recently used first
  std::list<Record> spare_;    // one buffer to be used again
  std::unordered_map<BlockKey, Place, BlockKeyHash> by_key_;
  std::deque<Completion> completions_;
  Ticket last_ = 0;
  HostTierStats stats_;
};

}  // namespace deepinfer::kv
