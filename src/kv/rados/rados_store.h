// Records as objects of a Ceph RADOS pool, best an erasure-coded one. A shared object of its own, built where librados
// is found, and reached through kv/rados_entry.h.
//
//   DI_ASSIGN_OR_RETURN(auto store, RadosStore::open({.pool = "kv", .config = "/etc/ceph/ceph.conf"}));
//   DI_RETURN_IF_ERROR(RadosStore::make_pool(options, {.k = 10, .m = 2}));       // `deepinfer cache init-rados`
//
// An object is a record; its tenant and time are an attribute "deepinfer" (kv/stored_record.h), written along with it,
// so that it is whole or not there. RADOS forgets nothing by itself: purge and sweep() do. A read moves an object's end
// of life when half of its time has passed.
// Every call has a time limit, set in librados itself, which would else wait for ever for a cluster that is away. Too
// many lost parts are such a wait: kDeadlineExceeded, a miss. Calls end in any order, so that one of them does not hold
// others up.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "kv/remote_store.h"

namespace deepinfer::kv {

struct RadosOptions {
  std::string pool;
  std::string config;          // a ceph.conf; empty: Ceph's own places
  std::string user = "admin";  // without "client."
  double timeout_s = 2;
};

class RadosStore : public RemoteStore {
 public:
  // "rados://POOL[?config=PATH][&user=NAME]"
  static Result<RadosOptions> parse(const std::string& url);
  static Result<std::unique_ptr<RadosStore>> open(const RadosOptions& options);
  // Makes the profile and the pool; what is there already stays as it is. Reads go on with k parts left.
  static Status make_pool(const RadosOptions& options, const RadosPoolOptions& pool);
  ~RadosStore() override;

  std::string_view name() const override { return "rados"; }
  Result<size_t> get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) override;
  Status put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Status erase(const BlockKey& key) override;
  Status purge(uint64_t space) override;
  Status ping() override;
  std::unique_ptr<RemoteStore> clone() const override;
  // A block waits for many disks, so that many of them at once pay.
  int threads() const override { return kRadosThreads; }
  int depth() const override { return kRadosDepth; }
  bool in_any_order() const override { return true; }
  void begin(RemoteCall& call) override;
  void end(RemoteCall& call) override;
  Result<int64_t> sweep() override;

 private:
  struct Cluster;
  struct Asked;  // a call that has begun
  RadosStore(RadosOptions options, std::shared_ptr<Cluster> cluster, void* io);
  static Result<std::shared_ptr<Cluster>> connect(const RadosOptions& options);
  int ask(Asked& asked);
  Result<size_t> found(const Asked& asked, int error, PutInfo* info);
  Result<int64_t> remove_if(bool expired, uint64_t space);

  const RadosOptions options_;
  std::shared_ptr<Cluster> cluster_;
  void* io_ = nullptr;  // rados_ioctx_t
  std::unordered_map<const RemoteCall*, std::unique_ptr<Asked>> asked_;
};

}  // namespace deepinfer::kv
