#include "kv/ssd_tier.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/io_buffers.h"
#include "base/io_queue.h"
#include "kv/record.h"
#include "kv/ssd_worker.h"

namespace deepinfer::kv {

uint64_t space_of(std::string_view tenant) {
  const uint64_t h = kv_checksum(std::as_bytes(std::span(tenant)));
  return h == 0 ? 1 : h;  // 0 names every space
}

std::string_view traffic_name(Traffic traffic) { return traffic == Traffic::kAgent ? "agent" : "chat"; }

Result<std::unique_ptr<SsdTier>> SsdTier::open(const std::string& dir, const SsdTierOptions& options) {
  if (options.depth < 4) return make_error(Code::kInvalidArgument, "The SSD cache needs a depth of at least 4.");
  DI_ASSIGN_OR_RETURN(std::unique_ptr<SsdLog> log, SsdLog::open(dir, options));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> io,
                      IoQueue::create({.depth = options.depth, .threads = !options.io_uring, .thread_count = 16}));
  const int wake = ::eventfd(0, EFD_CLOEXEC);
  if (wake < 0) return make_error(Code::kIo, "The SSD cache gets no event descriptor: {}.", std::strerror(errno));
  return std::unique_ptr<SsdTier>(
      new SsdTier(std::make_unique<SsdWorker>(options, std::move(log), std::move(io), wake)));
}

SsdTier::SsdTier(std::unique_ptr<SsdWorker> worker) : worker_(std::move(worker)) {}
SsdTier::~SsdTier() = default;

Tier::Ticket SsdTier::get(const BlockKey& key, std::span<std::byte> into) {
  auto op = std::make_unique<SsdOp>();
  op->kind = SsdOp::Kind::kGet;
  op->key = key;
  op->into = into;
  return worker_->post(std::move(op));
}

Tier::Ticket SsdTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  return worker_->post_put(key, record, info);
}

void SsdTier::erase(const BlockKey& key) {
  auto op = std::make_unique<SsdOp>();
  op->kind = SsdOp::Kind::kErase;
  op->key = key;
  worker_->post(std::move(op));
}

void SsdTier::purge(uint64_t space) {
  auto op = std::make_unique<SsdOp>();
  op->kind = SsdOp::Kind::kPurge;
  op->info.space = space;
  worker_->post(std::move(op));
}

size_t SsdTier::poll(std::span<Completion> done) { return worker_->poll(done); }
void SsdTier::cancel(Ticket ticket) { worker_->cancel(ticket); }
void SsdTier::flush() { worker_->flush(); }

bool SsdTier::contains(const BlockKey& key) const {
  return worker_->with_log([&](SsdLog& log) { return log.contains(key, worker_->unix_time()); });
}

uint64_t SsdTier::record_bytes(const BlockKey& key) const {
  return worker_->with_log([&](SsdLog& log) {
    const auto at = log.entries().find(key);
    return at == log.entries().end() ? 0 : at->second.frame.bytes;
  });
}

size_t SsdTier::count_prefix(std::span<const BlockKey> keys) const {
  return worker_->with_log([&](SsdLog& log) {
    const int64_t now = worker_->unix_time();
    size_t n = 0;
    while (n < keys.size() && log.contains(keys[n], now)) ++n;
    return n;
  });
}

SsdStats SsdTier::stats() const {
  return worker_->with_log([](SsdLog& log) {
    SsdStats s = log.stats;
    s.records = static_cast<int64_t>(log.entries().size());
    s.segment_bytes = log.segment_bytes();
    s.segments = log.segment_count();
    return s;
  });
}

std::vector<SsdRecord> SsdTier::list() const {
  std::vector<SsdRecord> out;
  worker_->with_log([&](SsdLog& log) {
    for (const auto& [key, e] : log.entries())
      out.push_back({key, e.frame.space, e.frame.bytes, e.frame.expires_at, e.used});
  });
  std::ranges::sort(out, {}, &SsdRecord::key);
  return out;
}

int64_t SsdTier::scrub() {
  std::vector<SsdEntry> all;
  worker_->with_log([&](SsdLog& log) {
    for (const auto& [key, e] : log.entries()) all.push_back(e);
  });
  int64_t bad = 0;
  AlignedBuffer buffer;
  for (const SsdEntry& e : all) {
    const size_t bytes = frame_bytes(e.frame.bytes);
    buffer.resize(bytes);
    const ssize_t n = ::pread(e.segment->fd, buffer.data(), bytes, static_cast<off_t>(e.frame.offset));
    const std::span<const std::byte> frame = buffer.first(bytes);
    if (n == static_cast<ssize_t>(bytes) && read_frame_header(frame, e.frame.segment, e.frame.offset).ok() &&
        record_is_whole(frame.subspan(kFrameHeaderBytes, e.frame.bytes)))
      continue;
    bad += worker_->with_log([&](SsdLog& log) {
      const auto at = log.entries().find(e.frame.key);
      const bool still = at != log.entries().end() && at->second.frame.sequence == e.frame.sequence;
      if (still) log.erase(e.frame.key);
      return still;
    });
  }
  return bad;
}

}  // namespace deepinfer::kv
