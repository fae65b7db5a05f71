// Fetches blocks from a tier: many gets at once, time limits, verification. What arrives is right or it is a miss.
//
//   TierReader reader(tier, {.page_bytes = layout.page_stride});
//   reader.fetch(key, tokens, now_s);                       // false: too many in flight, try again later
//   reader.poll(now_s, [&](const TierReader::Arrived& a) {
//     if (a.ok) keep(a.key, a.page, a.owner);                // `page` is valid while anybody holds `owner`
//   });
//
// A get that has not completed after timeout_s is cancelled and is a miss; so are a missing, damaged, foreign or cut
// record and any error of the tier. Each kind is counted; none is an error to a user (design.md 5, decision 2). Limits:
// in_flight_max gets, each with a buffer of one record; those of page_bytes are kept and reused once nobody holds
// their pages. A tier that has the record in memory lends it (Tier::get_lending). One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_key.h"
#include "kv/record_bytes.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct TierReaderOptions {
  size_t page_bytes = 0;
  int block_tokens = kBlockTokens;
  int in_flight_max = 64;
  double timeout_s = 5;
  // Completions of the tier that are not this reader's: puts of a kv/tier_writer.h.
  std::function<void(const Tier::Completion&)> on_other;
};

struct TierReaderCounters {
  int64_t hits = 0, missing = 0, damaged = 0, late = 0, errors = 0;
  int64_t refused = 0;  // fetch() beyond in_flight_max
};

class TierReader {
 public:
  struct Arrived {
    BlockKey key;
    bool ok = false;
    std::span<const std::byte> page;
    std::shared_ptr<const void> owner;
  };

  TierReader(Tier& tier, TierReaderOptions options) : tier_(tier), options_(options), gets_(options.in_flight_max) {}
  ~TierReader();
  TierReader(const TierReader&) = delete;
  TierReader& operator=(const TierReader&) = delete;

  // bytes: that the page has, if not page_bytes.
  bool fetch(const BlockKey& key, std::span<const int32_t> tokens, double now_s, const PutInfo& who = {},
             size_t bytes = 0);
  // Calls `arrived` once for each fetch that has ended since, in the order in which they end.
  void poll(double now_s, const std::function<void(const Arrived&)>& arrived);
  int in_flight() const { return in_flight_; }
  const TierReaderCounters& counters() const { return counters_; }

 private:
  struct Get {
    bool busy = false;
    Tier::Ticket ticket = 0;
    BlockKey key;
    double started_s = 0;
    std::vector<int32_t> tokens;
    size_t page_bytes = 0;
    std::shared_ptr<RecordBytes> buffer;
  };

  void finish(Get& get, const Tier::Completion& done, const std::function<void(const Arrived&)>& arrived);

  Tier& tier_;
  const TierReaderOptions options_;
  std::vector<Get> gets_;
  int in_flight_ = 0;
  TierReaderCounters counters_;
};

}  // namespace deepinfer::kv
