#include "kv/host_tier.h"

#include <algorithm>
#include <ctime>

#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr size_t kFirstBytes = 4096;

}  // namespace

int64_t HostTier::now() const {
  return options_.unix_time ? options_.unix_time() : static_cast<int64_t>(std::time(nullptr));
}

Tier::Ticket HostTier::complete(Status status) {
  completions_.push_back({++last_, std::move(status)});
  return last_;
}

HostTier::Place HostTier::drop(Place at) {
  stats_.bytes -= at->bytes->size();
  --stats_.records;
  const auto space = spaces_.find(at->space);
  space->second.bytes -= at->bytes->size();
  space->second.order.erase(at->in_space);
  if (space->second.order.empty()) spaces_.erase(space);
  by_key_.erase(at->key);
  const Place next = std::next(at);
  if (at->bytes.use_count() > 1) at->bytes.reset();
  spare_.clear();
  spare_.splice(spare_.begin(), records_, at);
  return next;
}

HostTier::Record* HostTier::find(const BlockKey& key) {
  const auto at = by_key_.find(key);
  const int64_t t = now();
  if (at == by_key_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  if (at->second->expires_at <= t) {
    ++stats_.expired;
    ++stats_.misses;
    drop(at->second);
    return nullptr;
  }
  Record& r = *at->second;
  r.expires_at = t + r.ttl_s;
  ++stats_.hits;
  return &r;
}

void HostTier::move_to_front(Record& r) {
  records_.splice(records_.begin(), records_, r.place);
  std::pmr::list<BlockKey>& own = spaces_.at(r.space).order;
  own.splice(own.begin(), own, r.in_space);
}

bool HostTier::contains(const BlockKey& key) const {
  const auto at = by_key_.find(key);
  return at != by_key_.end() && at->second->expires_at > now();
}

Tier::Known HostTier::known_prefix(std::span<const BlockKey> keys) const {
  const auto end = std::ranges::find_if_not(keys, [this](const BlockKey& key) { return contains(key); });
  return {static_cast<size_t>(end - keys.begin()), true};
}

Tier::Ticket HostTier::get(const BlockKey& key, std::span<std::byte> into) {
  Record* r = find(key);
  if (r != nullptr && r->bytes->size() > into.size())
    return complete(Status(Code::kResourceExhausted, "the record is larger than the buffer"));
  return start_read(r, into);
}

Tier::Ticket HostTier::get_lending(const BlockKey& key, std::span<std::byte> /*into*/, const PutInfo& /*who*/) {
  return start_read(find(key), {});
}

Tier::Ticket HostTier::start_read(Record* r, std::span<std::byte> into) {
  if (r == nullptr) return complete(Status(Code::kNotFound, "no such record in host memory"));
  move_to_front(*r);
  reads_.push_back({++last_, r->bytes, into, {.space = r->space, .ttl_s = static_cast<double>(r->ttl_s)}});
  return last_;
}

void HostTier::read_next() {
  Read read = std::move(reads_.front());
  reads_.pop_front();
  if (!reads_.empty()) {  // on its way from memory while this one is read
    const RecordBytes& next = *reads_.front().bytes;
    for (size_t i = 0; i < std::min(kFirstBytes, next.size()); i += 64) __builtin_prefetch(next.data() + i);
  }
  Completion done{.ticket = read.ticket, .bytes = read.bytes->size(), .info = read.info};
  if (read.into.empty()) {
    done.checked = record_is_whole(*read.bytes);
    done.lent = std::move(read.bytes);
  } else {
    done.checked = copy_record(*read.bytes, read.into);
  }
  completions_.push_back(std::move(done));
}

std::shared_ptr<const RecordBytes> HostTier::share(const BlockKey& key, PutInfo* info) {
  Record* r = find(key);
  if (r == nullptr) return nullptr;
  move_to_front(*r);
  *info = {.space = r->space, .ttl_s = static_cast<double>(r->ttl_s)};
  return r->bytes;
}

// A new entry in front, for a record of so many bytes; the caller gives it the bytes.
Status HostTier::make_room(const BlockKey& key, size_t bytes, const PutInfo& info) {
  const uint64_t share = options_.space_bytes_max == 0 ? options_.bytes_max : options_.space_bytes_max;
  if (bytes > std::min(options_.bytes_max, share)) {
    ++stats_.refused;
    return Status(Code::kResourceExhausted, "the record is larger than the tier");
  }
  if (const auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  for (auto own = spaces_.find(info.space); own != spaces_.end() && own->second.bytes + bytes > share;
       own = spaces_.find(info.space)) {
    drop(by_key_.at(own->second.order.back()));
    ++stats_.evicted;
  }
  while (stats_.bytes + bytes > options_.bytes_max) {
    drop(std::prev(records_.end()));
    ++stats_.evicted;
  }
  if (spare_.empty()) spare_.emplace_back();
  records_.splice(records_.begin(), spare_);
  by_key_[key] = records_.begin();
  Space& space = spaces_.try_emplace(info.space, &memory_).first->second;
  space.bytes += bytes;
  space.order.push_front(key);
  Record& r = records_.front();
  r.key = key;
  r.space = info.space;
  r.ttl_s = static_cast<int64_t>(std::clamp(info.ttl_s, 1.0, 4e9));
  r.expires_at = now() + r.ttl_s;
  r.place = records_.begin();
  r.in_space = space.order.begin();
  stats_.bytes += bytes;
  ++stats_.records;
  return Status();
}

Status HostTier::put_shared(const BlockKey& key, std::shared_ptr<RecordBytes> record, const PutInfo& info) {
  DI_RETURN_IF_ERROR(make_room(key, record->size(), info));
  records_.front().bytes = std::move(record);
  return Status();
}

Tier::Ticket HostTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  if (Status status = make_room(key, record.size(), info); !status.ok()) return complete(std::move(status));
  Record& r = records_.front();
  // What held a larger record would go on to hold bytes that nobody counts.
  if (!r.bytes || r.bytes->capacity() > record.size()) r.bytes = std::make_shared<RecordBytes>();
  r.bytes->assign(record.begin(), record.end());
  return complete(Status());
}

void HostTier::erase(const BlockKey& key) {
  if (const auto at = by_key_.find(key); at != by_key_.end()) drop(at->second);
}

size_t HostTier::poll(std::span<Completion> done) {
  while (!reads_.empty() && completions_.size() < done.size()) read_next();
  size_t n = 0;
  for (; n < done.size() && !completions_.empty(); completions_.pop_front())
    done[n++] = std::move(completions_.front());
  return n;
}

void HostTier::cancel(Ticket ticket) {
  std::erase_if(reads_, [ticket](const Read& r) { return r.ticket == ticket; });
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
