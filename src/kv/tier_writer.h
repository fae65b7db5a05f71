// Writes blocks to a tier: makes the record, keeps its buffer until the put has completed.
//
//   TierWriter writer(tier, {.page_bytes = layout.page_bytes});
//   writer.write(key, tokens, page, {.ttl_s = 3 * 86400});   // false: too many in flight; not written, counted
//   writer.completed(completion);             // what Tier::poll gave; false: not one of these puts
//
// A failed put is counted and forgotten: the block is computed again when somebody wants it. Limits: in_flight_max
// puts, each with a buffer of one record; buffers are reused once no tier holds them. Destroying the writer cancels
// what is in flight. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/record_bytes.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct TierWriterOptions {
  size_t page_bytes = 0;
  size_t windows_bytes = 0;  // of the other kind of record, a snapshot of encoder windows; 0: there is none
  int in_flight_max = 64;
};

struct TierWriterCounters {
  int64_t written = 0, failed = 0;
  int64_t refused = 0;  // write() beyond in_flight_max
};

class TierWriter {
 public:
  TierWriter(Tier& tier, TierWriterOptions options) : tier_(tier), options_(options), puts_(options.in_flight_max) {}
  ~TierWriter();
  TierWriter(const TierWriter&) = delete;
  TierWriter& operator=(const TierWriter&) = delete;

  bool write(const BlockKey& key, std::span<const int32_t> tokens, std::span<const std::byte> page,
             const PutInfo& info);
  bool completed(const Tier::Completion& done);
  int in_flight() const { return in_flight_; }
  const TierWriterCounters& counters() const { return counters_; }

 private:
  struct Put {
    bool busy = false;
    Tier::Ticket ticket = 0;
    std::shared_ptr<RecordBytes> record;
  };

  Tier& tier_;
  const TierWriterOptions options_;
  std::vector<Put> puts_;
  int in_flight_ = 0;
  TierWriterCounters counters_;
};

}  // namespace deepinfer::kv
