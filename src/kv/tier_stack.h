// Several tiers as one, the nearest first: host memory, local SSD, remote store.
//
//   TierStack stack({host, ssd, remote});
//
// get() asks level by level and gives the first record whose checksum fits; what was found below is put into the levels
// above it. put() writes to every level and completes with the last of them; it succeeds if one level has it. A level
// that does not answer within a level_timeout_s counts as a miss of that level, so that a slow remote store costs a
// bounded time. Counted a level, tenant and kind of traffic (counts()), for at most kSpacesCounted tenants; those that
// come later are counted together as space 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/tier.h"

namespace deepinfer::kv {

inline constexpr size_t kSpacesCounted = 1024;

// Of one level, all tenants and traffic together.
struct TierLevelStats {
  std::string_view name;
  int64_t gets = 0, hits = 0, damaged = 0, late = 0, errors = 0;
  int64_t puts = 0, put_failures = 0;
  uint64_t read_bytes = 0, written_bytes = 0;
  double read_seconds = 0;  // of hits, from question to answer
};

struct TierStackOptions {
  double level_timeout_s = 2;
  int puts_max = 256;  // in flight; more are refused
  // Called by poll() with a sentence when kFailuresTold writes of a level in a row failed or had no answer in time:
  // once, until the level writes again.
  std::function<void(const std::string&)> on_trouble;
};

inline constexpr int kFailuresTold = 16;

class TierStack : public Tier {
 public:
  explicit TierStack(std::vector<std::shared_ptr<Tier>> levels, TierStackOptions options = {});
  ~TierStack() override;

  std::string_view name() const override { return "stack"; }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override { return get_for(key, into, {}); }
  Ticket get_for(const BlockKey& key, std::span<std::byte> into, const PutInfo& who) override {
    return start_get({.key = key, .into = into, .counts = counts_of(who)});
  }
  Ticket get_lending(const BlockKey& key, std::span<std::byte> into, const PutInfo& who) override {
    return start_get({.key = key, .into = into, .lending = true, .who = who, .counts = counts_of(who)});
  }
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Ticket put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record, const PutInfo& info) override;
  Known known_prefix(std::span<const BlockKey> keys) const override;
  void erase(const BlockKey& key) override;
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;

  std::vector<TierCount> counts() const override;
  TierCount level_count(size_t level) const;  // all tenants and traffic together
  // The levels' sums as of the last poll; from any thread.
  std::vector<TierLevelStats> published() const;

 private:
  struct Get {
    BlockKey key;
    std::span<std::byte> into;
    bool lending = false;
    PutInfo who = {};  // of one that takes a lent record
    size_t level = 0;
    Ticket below = 0;  // of the level
    double asked_s = 0;
    std::vector<TierCount>* counts = nullptr;  // of the asker, a level each
  };
  struct Put {
    int open = 0;  // levels that have not answered
    bool ok = false;
    bool silent = false;  // a promotion: nobody waits
    double begun_s = 0;
    uint64_t bytes = 0;
    Status status;
    std::vector<TierCount>* counts = nullptr;
  };

  static double now();
  std::vector<TierCount>* counts_of(const PutInfo& who);
  Ticket start_get(Get get);
  void ask(Ticket ticket, Get& get);
  using PutLevel = std::function<Ticket(Tier& level)>;
  Ticket put_to(size_t levels, size_t bytes, const PutInfo& info, bool silent, const PutLevel& put);
  void end_get(Ticket ticket, Completion done);
  void level_answered(size_t level, const Completion& done);
  void put_answered(size_t level, Put& put, const Status& status);
  void get_answered(size_t level, Ticket ticket, Get& get, const Completion& done);
  void give_up_late(double now_s);
  void publish();

  const TierStackOptions options_;
  std::vector<std::shared_ptr<Tier>> levels_;
  std::map<std::pair<uint64_t, Traffic>, std::vector<TierCount>> counts_;
  mutable std::mutex published_mutex_;
  std::vector<TierLevelStats> published_;
  bool counted_ = false;  // since the last publish()
  std::unordered_map<Ticket, Get> gets_;
  std::unordered_map<Ticket, Put> puts_;
  std::vector<std::unordered_map<Ticket, Ticket>> ours_;  // a level's ticket -> ours
  std::vector<int> failed_puts_;  // of a level, in a row
  std::deque<Completion> completions_;
  Ticket last_ = 0;
};

}  // namespace deepinfer::kv
