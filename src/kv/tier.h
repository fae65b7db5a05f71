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
// Contract for implementations: get and put return at once, and put has copied the record by then; every ticket
// completes exactly once, in any order, unless it was cancelled; poll never waits; a put is visible to get only once
// it has completed; puts of one key: the last one stays. Completion codes: ok; kNotFound (get); kResourceExhausted
// (full, or the record is larger than the buffer); kUnavailable, kIo, kDeadlineExceeded. One thread uses a Tier
// object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "kv/cache_key.h"

namespace deepinfer::kv {

// What a store may know of a record beside its bytes.
struct PutInfo {
  uint64_t space = 0;          // space_of() of the tenant's namespace
  double ttl_s = 7 * 86400.0;  // how long it may stay unread: chat 7 days, agents 3
};

uint64_t space_of(std::string_view tenant);

class Tier {
 public:
  using Ticket = uint64_t;
  struct Completion {
    Ticket ticket = 0;
    Status status;
    size_t bytes = 0;  // get: bytes of the record
    PutInfo info = {};  // get: what it was put with
  };

  virtual ~Tier() = default;
  virtual std::string_view name() const = 0;

  virtual Ticket get(const BlockKey& key, std::span<std::byte> into) = 0;
  virtual Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) = 0;
  // Forgets the key, if it is there.
  virtual void erase(const BlockKey& key) = 0;
  // Completions since the last call, at most done.size(); how many were written.
  virtual size_t poll(std::span<Completion> done) = 0;
  // After this the ticket's buffer is not touched and the ticket does not complete.
  virtual void cancel(Ticket ticket) = 0;
};

}  // namespace deepinfer::kv
