#include "kv/host_store.h"

#include <algorithm>
#include <utility>

#include "kv/record.h"

namespace deepinfer::kv {

bool HostStore::make_room(uint64_t bytes) {
  if (bytes > options_.bytes_max) return false;
  while (bytes_used_ + bytes > options_.bytes_max) {
    int first = kNoEntry;
    for (const auto& [key, id] : by_key_) {
      const Entry& e = entries_[id];
      if (e.pins > 0 || !e.sealed) continue;
      const Entry* f = first == kNoEntry ? nullptr : &entries_[first];
      if (f == nullptr || e.value < f->value || (e.value == f->value && e.order < f->order)) first = id;
    }
    if (first == kNoEntry) return false;
    clock_ = std::max(clock_, entries_[first].value);
    ++counters_.evicted;
    withdraw(first);
  }
  return true;
}

int HostStore::new_entry(size_t bytes, double cost) {
  if (options_.faults.fails(FaultPoint::kHostReserve) || !make_room(bytes)) {
    ++counters_.refused;
    return kNoEntry;
  }
  int id;
  if (unused_.empty()) {
    id = static_cast<int>(entries_.size());
    entries_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Entry& e = entries_[id];
  e = Entry{};
  e.size = bytes;
  e.cost = cost;
  e.order = next_order_++;
  e.pins = 1;
  e.live = true;
  bytes_used_ += bytes;
  ++live_;
  ++counters_.reserved;
  return id;
}

int HostStore::reserve(size_t bytes, double cost) {
  const int id = new_entry(bytes, cost);
  if (id != kNoEntry && options_.keep_bytes) entries_[id].bytes.resize(bytes);
  return id;
}

int HostStore::reserve_parts(size_t bytes, size_t part_bytes) {
  const int id = new_entry(bytes, 1);
  if (id == kNoEntry || !options_.keep_bytes || part_bytes == 0) return id;
  entries_[id].part_bytes = part_bytes;
  entries_[id].parts.resize(bytes / part_bytes);
  return id;
}

void HostStore::put_part(int id, size_t offset, std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  Entry& e = entries_[id];
  if (e.part_bytes == 0) return;
  if (owner == nullptr) {
    auto copy = std::make_shared<const RecordBytes>(bytes.begin(), bytes.end());
    bytes = *copy;
    owner = std::move(copy);
  }
  e.parts[offset / e.part_bytes] = {std::move(owner), bytes};
}

std::span<const std::byte> HostStore::part(int id, size_t offset, size_t bytes) const {
  const Entry& e = entries_[id];
  if (e.part_bytes == 0) return buffer(id).subspan(offset, bytes);
  const std::span<const std::byte> all = e.parts[offset / e.part_bytes].bytes;
  return all.size() < bytes ? std::span<const std::byte>() : all.first(bytes);
}

void HostStore::seal(int id, bool with_checksum) {
  Entry& e = entries_[id];
  if (!e.live) return;
  if (with_checksum) e.checksum = kv_checksum(e.bytes);
  e.sealed = true;
  free_if_unused(id);
}

bool HostStore::verify(int id) {
  Entry& e = entries_[id];
  if (e.sealed && e.checksum == kv_checksum(e.bytes) && !options_.faults.fails(FaultPoint::kHostVerify)) return true;
  ++counters_.damaged;
  return false;
}

void HostStore::publish(int id, const BlockKey& key, double expires_s, uint8_t tag) {
  if (const auto it = by_key_.find(key); it != by_key_.end()) withdraw(it->second);
  Entry& e = entries_[id];
  e.key = key;
  e.published = true;
  e.expires_s = expires_s;
  e.tag = tag;
  use(e);
  by_key_[key] = id;
  --e.pins;
}

int HostStore::find(const BlockKey& key, double now_s) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end() || !entries_[it->second].sealed || entries_[it->second].expires_s <= now_s) {
    ++counters_.misses;
    return kNoEntry;
  }
  const int id = it->second;
  if (!verify(id)) {
    withdraw(id);
    ++counters_.misses;
    return kNoEntry;
  }
  ++counters_.hits;
  use(entries_[id]);
  ++entries_[id].pins;
  return id;
}

void HostStore::unpin(int id) {
  --entries_[id].pins;
  free_if_unused(id);
}

void HostStore::withdraw(int id) {
  Entry& e = entries_[id];
  by_key_.erase(e.key);
  e.published = false;
  free_if_unused(id);
}

void HostStore::free_if_unused(int id) {
  Entry& e = entries_[id];
  // A snapshot that is still being written keeps its buffer until seal(), even if nobody can find it any more.
  if (!e.live || e.published || e.pins > 0 || !e.sealed) return;
  bytes_used_ -= e.size;
  --live_;
  e = Entry{};
  unused_.push_back(id);
}

void HostStore::supersede(const BlockKey& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  ++counters_.superseded;
  withdraw(it->second);
}

int HostStore::expire(double now_s) {
  int n = 0;
  for (auto it = by_key_.begin(); it != by_key_.end();) {
    const int id = (it++)->second;
    if (entries_[id].expires_s > now_s || entries_[id].pins > 0 || !entries_[id].sealed) continue;
    ++counters_.expired;
    ++n;
    withdraw(id);
  }
  return n;
}

}  // namespace deepinfer::kv
