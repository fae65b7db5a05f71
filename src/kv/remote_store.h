// A store behind a wire or a mount, as plain blocking calls; kv/threaded_tier.h makes a Tier of it.
//
// Every call ends within the store's own time limit. get: kNotFound is a miss; kUnavailable and kDeadlineExceeded mean
// that the store is away. An object is used by one thread; clone() gives another thread one of its own.
//
// A store with a depth of more than one has so many calls on their way at once:
//
//   RemoteCall a{.kind = RemoteCall::Kind::kGet, .key = k, .into = x}, b{...};
//   store.begin(a); store.begin(b); store.end(a); store.end(b);   // a.status, a.bytes, a.info
//
// They end in the order in which they began, or in any where the store says so: it then calls a call's `ready` as soon
// as its end() does not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kv/cache_key.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct RemoteCall {
  enum class Kind : uint8_t { kGet, kPut, kErase };
  Kind kind = Kind::kGet;
  BlockKey key;
  std::span<std::byte> into;          // kGet
  std::span<const std::byte> record;  // kPut
  PutInfo info;                       // kPut: what it is put with; kGet: what it was put with
  Status status;
  size_t bytes = 0;  // kGet: of the record
  std::function<void()> ready;  // of a store in_any_order(): called once, by begin() or by a thread of the store's
};

class RemoteStore {
 public:
  virtual ~RemoteStore() = default;
  virtual std::string_view name() const = 0;
  // Bytes of the record, and what it was put with; kResourceExhausted if it is larger than `into`.
  virtual Result<size_t> get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) = 0;
  virtual Status put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) = 0;
  virtual Status erase(const BlockKey& key) = 0;
  // Forgets all records of a space, 0: all that this program wrote there.
  virtual Status purge(uint64_t space) = 0;
  // Removes what has passed its time; how many records. Stores that forget by themselves have nothing to do.
  virtual Result<int64_t> sweep() { return int64_t{0}; }
  // Whether it can be reached now.
  virtual Status ping() = 0;
  virtual std::unique_ptr<RemoteStore> clone() const = 0;

  // Objects of this store that are best used at once, each by a thread.
  virtual int threads() const { return 8; }
  virtual int depth() const { return 1; }
  virtual bool in_any_order() const { return false; }
  // A call and its bytes stay where they are until end(), which waits for it. The other functions may be called
  // meanwhile.
  virtual void begin(RemoteCall& call) { run(call); }
  virtual void end(RemoteCall& /*call*/) {}

 protected:
  void run(RemoteCall& call);
};

// "redis://host:port[/prefix][?user=name&password_file=path]", "redis+cluster://" with the same behind it,
// "rados://pool[?config=path]" or "dir:/path". kInvalidArgument names what is wrong; kUnsupported: the store's library
// is not there. A cluster of Ceph that is away is kUnavailable or kDeadlineExceeded.
Result<std::unique_ptr<RemoteStore>> open_remote_store(const std::string& url);

// A store that could not be opened yet: until `open` succeeds every call is kUnavailable, and one call in retry_s tries
// again. `name` and `threads` are those of the store that will be there; its depth and order are known once it is.
using OpenStore = std::function<Result<std::unique_ptr<RemoteStore>>()>;
std::unique_ptr<RemoteStore> make_late_store(OpenStore open, std::string name, int threads, double retry_s = 1);

// Threads, and calls that each of them has on their way.
inline constexpr int kRadosThreads = 2, kRadosDepth = 16;

struct RadosPoolOptions {
  int k = 10, m = 2;                    // data and coding parts
  int groups = 32;                      // placement groups
  std::string failure_domain = "host";  // what holds one part at most: osd, host, rack
};

// Makes an erasure-coded pool for records in a Ceph cluster, with its profile; what is there already stays as it is.
Status make_rados_pool(const std::string& url, const RadosPoolOptions& pool);

}  // namespace deepinfer::kv
