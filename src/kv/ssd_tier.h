// KV records on a local SSD: append-only segments, written and read past the page cache, an index in memory.
//
//   DI_ASSIGN_OR_RETURN(auto ssd, SsdTier::open("/data/kv", {.bytes_max = 500ull << 30}));
//   Tier::Ticket t = ssd->put(key, record, {.space = tenant_hash, .ttl_s = 3 * 86400});
//
// A thread of its own does all file work, so that no call of the Tier interface waits. Segments: kv/ssd_format.h.
// Crash safety: a record counts once its frame is whole on disk; after kill -9 only what was in flight is gone. After a
// loss of power what was written since the last sealed segment may be gone as well; nothing wrong is ever served, since
// readers verify every record (kv/record.h).
// Space: whole segments go, first those whose records have all passed their time, then the one with the least that was
// read again since it was written; what was read again moves to the end of the log, at most half of a segment.
// A folder belongs to one process (a lock file). bytes_max counts whole segments.
//
// Errors of single operations: kv/tier.h. A full disk refuses puts for a second and keeps serving gets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kv/faults.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct SsdTierOptions {
  uint64_t bytes_max = 64ull << 30;
  uint64_t space_bytes_max = 0;             // records of one tenant; more are refused until some have left; 0: no limit
  uint64_t segment_bytes = 256ull << 20;    // at most bytes_max / 4
  int depth = 128;                          // reads and writes in flight
  uint64_t pending_bytes_max = 256ull << 20;  // of operations that wait for their turn; more puts are refused
  bool direct = true;                       // O_DIRECT where the file system has it
  bool io_uring = true;
  Faults faults;
  std::function<int64_t()> unix_time;       // seconds; empty: the system's clock
  std::function<void()> on_completion;      // there is something to poll; called by the tier's thread
};

struct SsdStats {
  int64_t records = 0;
  uint64_t bytes = 0;          // of live records
  uint64_t segment_bytes = 0;  // of all segments
  int segments = 0;
  int64_t gets = 0, hits = 0, puts = 0, refused = 0, errors = 0;
  int64_t expired = 0, evicted = 0, moved = 0;  // records
  int64_t recovered = 0, torn = 0;              // at the start: records found, frames that were not whole
  uint64_t read_bytes = 0, written_bytes = 0;
};

struct SsdRecord {
  BlockKey key;
  uint64_t space = 0, bytes = 0;
  int64_t expires_at = 0;
  bool used = false;  // read since it was written
};

class SsdWorker;

class SsdTier : public Tier {
 public:
  // Makes the folder if it is missing and reads what is there. kFailedPrecondition: another process uses it.
  static Result<std::unique_ptr<SsdTier>> open(const std::string& dir, const SsdTierOptions& options);
  ~SsdTier() override;

  std::string_view name() const override { return "ssd"; }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override;
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Known known_prefix(std::span<const BlockKey> keys) const override { return {count_prefix(keys), true}; }
  void erase(const BlockKey& key) override;
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;

  bool contains(const BlockKey& key) const;         // any thread
  uint64_t record_bytes(const BlockKey& key) const;  // 0: it is not here; any thread
  // How many of the chain's first keys are here. Any thread.
  size_t count_prefix(std::span<const BlockKey> keys) const;
  // Forgets all records of a space; 0: all. Survives a restart.
  void purge(uint64_t space);
  SsdStats stats() const;
  std::vector<SsdRecord> list() const;  // ascending by key
  // Reads every record and drops those whose checksum does not fit; how many. Waits.
  int64_t scrub();
  // Waits until every put so far is on disk.
  void flush();

 private:
  explicit SsdTier(std::unique_ptr<SsdWorker> worker);
  std::unique_ptr<SsdWorker> worker_;
};

}  // namespace deepinfer::kv
