// A RemoteStore as a Tier: some threads, each with a connection of its own.
//
//   DI_ASSIGN_OR_RETURN(auto store, open_remote_store("redis://10.0.0.5:6379"));
//   ThreadedTier tier(std::move(store), {});
//
// A store that is away is asked again after away_s, then after twice as long each time up to away_max_s, until it
// answers; until then its gets are misses and its puts are refused at once, so that it costs nothing. Limits:
// queue_bytes_max of puts that wait, more are refused, and of buffers that are kept for later records.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kv/remote_store.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct ThreadedTierOptions {
  int threads = 0;  // 0: as many as the store says
  uint64_t queue_bytes_max = 64ull << 20;
  int queue_max = 1024;  // gets that wait
  double away_s = 1, away_max_s = 30;
  double end_wait_s = 3;  // for calls under way at the end; a store that may hang is then left alone
};

struct ThreadedTierStats {
  int64_t gets = 0, hits = 0, puts = 0, refused = 0, errors = 0;
  bool away = false;
};

class ThreadedTier : public Tier {
 public:
  ThreadedTier(std::unique_ptr<RemoteStore> store, const ThreadedTierOptions& options);
  ~ThreadedTier() override;

  std::string_view name() const override { return name_; }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override;
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Ticket put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record, const PutInfo& info) override;
  void erase(const BlockKey& key) override;
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;
  ThreadedTierStats stats() const;

 private:
  struct Impl;
  const std::string name_;
  std::shared_ptr<Impl> impl_;
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer::kv
