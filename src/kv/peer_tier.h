// KV servers of peers (kv/peer_server.h) as a Tier: every block lives on one member, chosen by rendezvous hashing.
//
//   DI_ASSIGN_OR_RETURN(auto peers, PeerTier::open({.members = {"10.0.0.5:7711", "10.0.0.6:7711"}, .token = secret}));
//   size_t blocks = peers->count_prefix(keys, 0.1);            // how much of a chain is there: one round trip
//
// A thread of its own moves all bytes, so that no call of the Tier interface waits: gets that are there at once go out
// as one frame, records come straight into the caller's buffer, writes go out while others are answered.
// There is no replication: a member that is lost, slow or stopped is a miss of its blocks. A get that is not answered
// within timeout_s completes with kDeadlineExceeded; a member that answers nothing for so long, or breaks the protocol,
// is left alone for away_s, doubled at each failure up to away_max_s, and its operations end at once with kUnavailable.
// Whoever waits for a block meanwhile computes it (sched/tiers.h).
//
// Limits: queue_bytes_max of writes a member that are not sent, more are refused; 16 MiB of buffers kept for later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/tier.h"

namespace deepinfer::kv {

struct PeerTierOptions {
  std::vector<std::string> members;  // host:port; the same names on every machine
  std::string token;
  double connect_timeout_s = 1, timeout_s = 1;
  double away_s = 1, away_max_s = 30;
  uint64_t queue_bytes_max = 64ull << 20;
};

struct PeerMemberStats {
  std::string name;
  bool connected = false, away = false;
  int64_t gets = 0, hits = 0, late = 0, puts = 0, refused = 0, failures = 0;  // failures: of the connection
};

// Which member has the key: the one with the largest hash of name and key. A name that comes or goes moves only its own
// blocks.
size_t peer_of(std::span<const std::string> members, const BlockKey& key);

class PeerTier : public Tier {
 public:
  // "kvstore://host:port,host:port"; the token comes apart. kInvalidArgument names what is wrong.
  static Result<PeerTierOptions> parse(const std::string& url);
  static Result<std::unique_ptr<PeerTier>> open(const PeerTierOptions& options);
  ~PeerTier() override;

  std::string_view name() const override { return "kvstore"; }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override;
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) override;
  Ticket put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record, const PutInfo& info) override;
  void erase(const BlockKey& key) override;
  size_t poll(std::span<Completion> done) override;
  void cancel(Ticket ticket) override;

  // These wait, at most timeout_s. Any thread.
  // How many of the chain's first blocks are there; those of members that do not answer are not.
  size_t count_prefix(std::span<const BlockKey> keys, double timeout_s);
  // Whether any member answers, with first_try only until each has been tried once; the error names what is wrong with
  // one: kFailedPrecondition if it wants another token, else kUnavailable or kDeadlineExceeded.
  Status wait_connected(double timeout_s, bool first_try = false);
  Status purge(uint64_t space, double timeout_s);  // on every member; 0: all
  // What every member says about itself.
  std::vector<std::pair<std::string, Result<std::string>>> describe(double timeout_s);
  std::vector<PeerMemberStats> stats() const;

 private:
  struct Impl;
  explicit PeerTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::kv
