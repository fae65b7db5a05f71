#include "kv/host_tier.h"

#include <algorithm>
#include <ctime>

namespace deepinfer::kv {

int64_t HostTier::now() const {
  return options_.unix_time ? options_.unix_time() : static_cast<int64_t>(std::time(nullptr));
}

Tier::Ticket HostTier::complete(Status status, size_t bytes, const PutInfo& info) {
  completions_.push_back({++last_, std::move(status), bytes, info});
  return last_;
}

HostTier::Place HostTier::drop(Place at) {
  stats_.bytes -= at->bytes.size();
  --stats_.records;
  by_key_.erase(at->key);
  const Place next = std::next(at);
  spare_.clear();
  spare_.splice(spare_.begin(), records_, at);
  return next;
}

Tier::Ticket HostTier::get(const BlockKey& key, std::span<std::byte> into) {
  const auto at = by_key_.find(key);
  if (at != by_key_.end() && at->second->expires_at <= now()) {
    ++stats_.expired;
    drop(at->second);
  } else if (at != by_key_.end()) {
    Record& r = *at->second;
    if (r.bytes.size() > into.size())
      return complete(Status(Code::kResourceExhausted, "the record is larger than the buffer"));
    std::ranges::copy(r.bytes, into.begin());
    r.expires_at = now() + r.ttl_s;
    records_.splice(records_.begin(), records_, at->second);
    ++stats_.hits;
    return complete(Status(), r.bytes.size(), {.space = r.space, .ttl_s = static_cast<double>(r.ttl_s)});
  }
  ++stats_.misses;
  return complete(Status(Code::kNotFound, "no such record in host memory"));
}

Tier::Ticket HostTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  if (record.size() > options_.bytes_max) {
    ++stats_.refused;
    return complete(Status(Code::kResourceExhausted, "the record is larger than the tier"));
  }
  if (const auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  while (stats_.bytes + record.size() > options_.bytes_max) {
    drop(std::prev(records_.end()));
    ++stats_.evicted;
  }
  if (spare_.empty()) spare_.emplace_back();
  records_.splice(records_.begin(), spare_);
  Record& r = records_.front();
  r.key = key;
  r.bytes.assign(record.begin(), record.end());
  r.space = info.space;
  r.ttl_s = static_cast<int64_t>(std::clamp(info.ttl_s, 1.0, 4e9));
  r.expires_at = now() + r.ttl_s;
  by_key_[key] = records_.begin();
  stats_.bytes += record.size();
  ++stats_.records;
  return complete(Status());
}

void HostTier::erase(const BlockKey& key) {
  if (const auto at = by_key_.find(key); at != by_key_.end()) drop(at->second);
}

size_t HostTier::poll(std::span<Completion> done) {
  size_t n = 0;
  for (; n < done.size() && !completions_.empty(); completions_.pop_front())
    done[n++] = std::move(completions_.front());
  return n;
}

void HostTier::cancel(Ticket ticket) {
  std::erase_if(completions_, [ticket](const Completion& c) { return c.ticket == ticket; });
}

void HostTier::purge(uint64_t space) {
  for (Place at = records_.begin(); at != records_.end();) {
    if (space == 0 || at->space == space) {
      at = drop(at);
    } else {
      ++at;
    }
  }
}

}  // namespace deepinfer::kv
