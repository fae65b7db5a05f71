// A store of KV records below device memory: host, local SSD, remote. Asynchronous get and put by key; the caller
// polls.
//
//   Tier::Ticket t = tier.get(key, buffer);  // buffer stays valid until the completion, or until cancel(t) returned
//   std::array<Tier::Completion, 32> done;
//   for (size_t i = 0, n = tier.poll(done); i < n; ++i) on_done(done[i].ticket, done[i].status, done[i].bytes);
//
// What is stored is a sealed record (kv/record.h): it carries its key, its tokens and a checksum, and whoever reads it
// opens it with the key and tokens that it wants. A tier may lose, delay or damage records; the reader sees a miss,
// never wrong KV.
//
// Contract for implementations: get and put return at once, and put has copied the record by then, put_owned may keep
// it instead; every ticket completes exactly once, in any order, unless it was cancelled; poll never waits; a put is
// visible to get only once it has completed; puts of one key: the last one stays. Completion codes: ok; kNotFound
// (get); kResourceExhausted (full, or the record is larger than the buffer); kUnavailable, kIo, kDeadlineExceeded. One
// thread uses a Tier object.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/cache_key.h"
#include "kv/record_bytes.h"

namespace deepinfer::kv {

enum class Traffic : uint8_t { kChat, kAgent };
inline constexpr int kTraffics = 2;
std::string_view traffic_name(Traffic traffic);  // "chat", "agent"

// What a store may know of a record beside its bytes, and of who asks for one.
struct PutInfo {
  uint64_t space = 0;          // space_of() of the tenant's namespace
  double ttl_s = 7 * 86400.0;  // how long it may stay unread: chat 7 days, agents 3
  Traffic traffic = Traffic::kChat;
};

uint64_t space_of(std::string_view tenant);

// What a tier did for one tenant and kind of traffic since the start.
struct TierCount {
  // Upper ends of the classes of read latency, in seconds; one more class is behind them.
  static constexpr std::array<double, 7> kLatencies = {1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1};

  std::string_view tier;
  uint64_t space = 0;
  Traffic traffic = Traffic::kChat;
  int64_t gets = 0, hits = 0, damaged = 0, late = 0, errors = 0;  // the rest of gets: misses, and what is under way
  int64_t puts = 0, put_failures = 0;
  uint64_t read_bytes = 0, written_bytes = 0;
  double read_seconds = 0;  // of hits, from question to answer
  std::array<int64_t, kLatencies.size() + 1> latency = {};  // hits a class

  int64_t misses() const { return gets - hits - damaged - late - errors; }
};

class Tier {
 public:
  using Ticket = uint64_t;
  struct Completion {
    Ticket ticket = 0;
    Status status;
    size_t bytes = 0;  // get: bytes of the record
    PutInfo info = {};  // get: what it was put with
    bool checked = false;  // get: the record's checksum was compared with these bytes
    std::shared_ptr<const RecordBytes> lent = {};  // get_lending: the record, where it is not in the buffer
  };

  virtual ~Tier() = default;
  virtual std::string_view name() const = 0;

  virtual Ticket get(const BlockKey& key, std::span<std::byte> into) = 0;
  // The same, counted for `who`.
  virtual Ticket get_for(const BlockKey& key, std::span<std::byte> into, const PutInfo& /*who*/) {
    return get(key, into);
  }
  // The same; a tier that has the record in memory may lend it instead of copying it (Completion::lent). Nobody changes
  // it as long as anybody holds it.
  virtual Ticket get_lending(const BlockKey& key, std::span<std::byte> into, const PutInfo& who) {
    return get_for(key, into, who);
  }
  virtual Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) = 0;
  // The same without a copy where the tier can do without: nobody changes the record as long as the tier holds it.
  virtual Ticket put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record, const PutInfo& info) {
    return put(key, *record, info);
  }
  // How many of the chain's first keys are here, as far as that is known without waiting. Nothing is promised: what is
  // counted may be gone when it is asked for.
  struct Known {
    size_t keys = 0;
    bool all = false;  // the next key is not here either
  };
  virtual Known known_prefix(std::span<const BlockKey> /*keys*/) const { return {}; }
  // Forgets the key, if it is there.
  virtual void erase(const BlockKey& key) = 0;
  // Completions since the last call, at most done.size(); how many were written.
  virtual size_t poll(std::span<Completion> done) = 0;
  // After this the ticket's buffer is not touched and the ticket does not complete.
  virtual void cancel(Ticket ticket) = 0;
  // Counters by tier, tenant and traffic, ascending; none where nobody counts.
  virtual std::vector<TierCount> counts() const { return {}; }
};

}  // namespace deepinfer::kv
