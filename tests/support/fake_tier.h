// A kv::Tier in memory that delays, loses, damages and swaps records as it is told.
//
//   FakeTier tier({.flip = 0.1, .delay_max = 8}, seed);      // delays in calls of poll()
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "kv/tier.h"

namespace deepinfer::kv {

struct TierFaults {
  double lost_completion = 0, lost_record = 0, flip = 0, cut = 0, swapped = 0, error = 0;
  int delay_max = 0;  // polls
};

class FakeTier : public Tier {
 public:
  FakeTier(TierFaults faults, unsigned seed) : faults_(faults), rng_(seed) {}

  std::string_view name() const override { return "fake"; }
  Ticket get(const BlockKey& key, std::span<std::byte> into) override {
    Job job{.ticket = ++last_, .due = polls_ + 1 + pick(faults_.delay_max), .into = into};
    auto at = records_.find(key);
    if (at != records_.end() && chance(faults_.swapped)) at = records_.begin();
    if (at == records_.end() || chance(faults_.lost_record)) {
      job.status = make_error(Code::kNotFound, "no such record");
    } else if (chance(faults_.error)) {
      job.status = make_error(Code::kUnavailable, "the peer is away");
    } else {
      job.bytes = at->second;
      if (chance(faults_.flip)) job.bytes[rng_() % job.bytes.size()] ^= static_cast<std::byte>(1 << rng_() % 8);
      if (chance(faults_.cut)) job.bytes.resize(rng_() % job.bytes.size());
    }
    if (chance(faults_.lost_completion)) job.due = INT64_MAX;
    jobs_[job.ticket] = std::move(job);
    return last_;
  }
  Ticket put(const BlockKey& key, std::span<const std::byte> record, const PutInfo&) override {
    const Ticket ticket = ++last_;
    jobs_[ticket] = {.ticket = ticket,
                     .due = polls_ + 1 + pick(faults_.delay_max),
                     .key = key,
                     .bytes = {record.begin(), record.end()},
                     .is_put = true};
    return ticket;
  }
  void erase(const BlockKey& key) override { records_.erase(key); }
  size_t poll(std::span<Completion> done) override {
    ++polls_;
    size_t n = 0;
    for (auto it = jobs_.begin(); it != jobs_.end() && n < done.size();) {
      Job& j = it->second;
      if (j.due > polls_) {
        ++it;
        continue;
      }
      if (j.is_put && j.status.ok()) records_[j.key] = j.bytes;
      else if (j.status.ok()) std::ranges::copy(j.bytes, j.into.begin());
      done[n++] = {.ticket = j.ticket, .status = j.status, .bytes = j.bytes.size()};
      it = jobs_.erase(it);
    }
    return n;
  }
  void cancel(Ticket ticket) override { jobs_.erase(ticket); }
  size_t jobs() const { return jobs_.size(); }

 private:
  struct Job {
    Ticket ticket = 0;
    int64_t due = 0;
    BlockKey key;
    std::vector<std::byte> bytes;
    std::span<std::byte> into;
    Status status;
    bool is_put = false;
  };
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(rng_) < p; }
  int pick(int max) { return max == 0 ? 0 : static_cast<int>(rng_() % static_cast<unsigned>(max)); }

  const TierFaults faults_;
  std::mt19937 rng_;
  int64_t polls_ = 0;
  Ticket last_ = 0;
  std::map<Ticket, Job> jobs_;
  std::map<BlockKey, std::vector<std::byte>> records_;
};

}  // namespace deepinfer::kv
