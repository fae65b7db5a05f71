#include "kv/ssd_tier.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>

#include "base/io_queue.h"
#include "kv/record.h"
#include "kv/ssd_log.h"

namespace deepinfer::kv {
namespace {

constexpr uint64_t kWakeTag = 0;
constexpr int64_t kFullPauseS = 1, kExpirePauseS = 60;
constexpr size_t kBuffersKept = 256;

constexpr std::string_view kNoSpace = "no space on the device of the SSD cache";

enum class OpKind : uint8_t { kGet, kPut, kErase, kPurge, kMoveRead, kMoveWrite };

struct Op {
  OpKind kind = OpKind::kGet;
  Tier::Ticket ticket = 0;
  BlockKey key;
  std::span<std::byte> into;  // gets: the caller's
  PutInfo info;
  FrameHeader header;
  AlignedBuffer buffer;
  SsdLog::Place place;
  std::shared_ptr<SsdSegment> victim;  // of a move
  size_t written_bytes = 0;            // asked of the device
};

}  // namespace

uint64_t space_of(std::string_view tenant) {
  const uint64_t h = kv_checksum(std::as_bytes(std::span(tenant)));
  return h == 0 ? 1 : h;  // 0 names every space
}

std::string_view traffic_name(Traffic traffic) { return traffic == Traffic::kAgent ? "agent" : "chat"; }

struct SsdTier::Impl {
  Impl(const SsdTierOptions& o, std::unique_ptr<SsdLog> l, std::unique_ptr<IoQueue> q, int wake)
      : options(o),
        log(std::move(l)),
        io(std::move(q)),
        wake_fd(wake),
        thread([this] { loop(); }),
        sealer([this] { seal(); }) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    wake();
    thread.join();
    seals_ready.notify_all();
    sealer.join();
    wake();  // the read that waits for it must end before the queue can
    io.reset();
    ::close(wake_fd);
  }

  int64_t unix_time() const {
    return options.unix_time ? options.unix_time() : static_cast<int64_t>(std::time(nullptr));
  }
  void wake() const {
    const uint64_t one = 1;
    (void)!::write(wake_fd, &one, sizeof one);
  }
  Ticket post(std::unique_ptr<Op> op) {
    const std::lock_guard lock(mutex);
    const Ticket t = op->ticket = ++last_ticket;
    commands.push_back(std::move(op));
    ++unstarted;
    if (waiting) wake();
    return t;
  }

  void seal();  // the sealer's
  // The worker's.
  void loop();
  void begin_ready();
  bool begin(std::unique_ptr<Op>& op);  // false: no room for it now
  void begin_get(std::unique_ptr<Op>& op);
  void begin_put(std::unique_ptr<Op>& op);
  void make_room();
  void finish(std::unique_ptr<Op> op, const IoQueue::Done& done);
  void finish_get(Op& op, const IoQueue::Done& done);
  void finish_write(Op& op, const IoQueue::Done& done);
  void finish_move_read(std::unique_ptr<Op> op, const IoQueue::Done& done);
  void move_ended(const std::shared_ptr<SsdSegment>& victim);
  void complete(Ticket ticket, Status status, size_t bytes = 0, const PutInfo& info = {});
  void start(std::unique_ptr<Op> op, bool write, size_t bytes);
  void watch_wake();
  AlignedBuffer take_buffer(size_t bytes);
  void give_buffer(AlignedBuffer b);

  const SsdTierOptions options;
  std::unique_ptr<SsdLog> log;  // under mutex
  std::unique_ptr<IoQueue> io;  // the worker's
  const int wake_fd;

  mutable std::mutex mutex;
  std::condition_variable idle, seals_ready;
  std::deque<std::unique_ptr<Op>> commands;
  std::deque<Completion> completions;
  std::vector<Ticket> cancelled;  // gets whose completion is dropped
  std::vector<AlignedBuffer> buffers;  // to be used again
  Ticket last_ticket = 0;
  uint64_t pending_bytes = 0;   // of puts
  int unstarted = 0;            // operations of callers
  bool ending = false, waiting = false;
  // Held while a record is copied to a caller's buffer.
  std::mutex copy_mutex;

  std::deque<std::unique_ptr<Op>> ready;
  std::vector<std::unique_ptr<Op>> running;  // tag - 1 is the place
  std::vector<size_t> free_places;
  size_t busy = 0;
  uint64_t wake_value = 0;
  bool wake_watched = false;
  int64_t full_until = 0, next_expiry = 0;
  std::vector<std::pair<std::shared_ptr<SsdSegment>, int>> moves;  // victims and their moves in work
  std::thread thread, sealer;  // last: they use all others
};

void SsdTier::Impl::seal() {
  std::unique_lock lock(mutex);
  while (true) {
    seals_ready.wait(lock, [this] { return ending || log->has_seals(); });
    if (!log->has_seals()) return;
    const SsdLog::Seal seal = log->take_seal();
    lock.unlock();
    const bool ok = seal.write();
    lock.lock();
    log->sealed(seal, ok);
  }
}

void SsdTier::Impl::loop() {
  std::array<IoQueue::Done, 32> done;
  while (true) {
    {
      const std::lock_guard lock(mutex);
      for (; !commands.empty(); commands.pop_front()) ready.push_back(std::move(commands.front()));
      if (const int64_t now = unix_time(); now >= next_expiry) {
        log->expire(now);
        next_expiry = now + kExpirePauseS;
      }
      if (log->has_seals()) seals_ready.notify_one();
      if (ending && ready.empty() && busy == 0) break;
      waiting = true;
    }
    begin_ready();
    watch_wake();
    io->submit();
    const size_t n = io->wait(done);
    {
      const std::lock_guard lock(mutex);
      waiting = false;
    }
    for (size_t i = 0; i < n; ++i) {
      if (done[i].tag == kWakeTag) {
        wake_watched = false;
        continue;
      }
      const size_t place = done[i].tag - 1;
      free_places.push_back(place);
      --busy;
      finish(std::move(running[place]), done[i]);
    }
  }
}

void SsdTier::Impl::begin_ready() {
  int started = 0;
  while (!ready.empty()) {
    const bool posted = ready.front()->kind != OpKind::kMoveRead;
    if (!begin(ready.front())) break;
    ready.pop_front();
    started += posted;
  }
  const std::lock_guard lock(mutex);
  unstarted -= started;
  if (unstarted == 0 && pending_bytes == 0) idle.notify_all();
}

// The wake-up is itself a read in flight, so that one wait covers both.
void SsdTier::Impl::watch_wake() {
  if (wake_watched) return;
  wake_watched = io->read(wake_fd, std::as_writable_bytes(std::span(&wake_value, 1)), 0, kWakeTag);
}

AlignedBuffer SsdTier::Impl::take_buffer(size_t bytes) {
  AlignedBuffer b;
  {
    const std::lock_guard lock(mutex);
    if (!buffers.empty()) {
      b = std::move(buffers.back());
      buffers.pop_back();
    }
  }
  b.resize(bytes);
  return b;
}

void SsdTier::Impl::give_buffer(AlignedBuffer b) {
  const std::lock_guard lock(mutex);
  if (b.size() > 0 && buffers.size() < kBuffersKept) buffers.push_back(std::move(b));
}

void SsdTier::Impl::complete(Ticket ticket, Status status, size_t bytes, const PutInfo& info) {
  {
    const std::lock_guard lock(mutex);
    if (const auto at = std::ranges::find(cancelled, ticket); at != cancelled.end()) {
      cancelled.erase(at);
      return;
    }
    completions.push_back({ticket, std::move(status), bytes, info});
  }
  if (options.on_completion) options.on_completion();
}

bool SsdTier::Impl::begin(std::unique_ptr<Op>& op) {
  if (io->in_flight() + 2 > options.depth) return false;  // one is for the wake-up
  switch (op->kind) {
    case OpKind::kGet: begin_get(op); return true;
    case OpKind::kPut: begin_put(op); return true;
    case OpKind::kMoveRead: {
      const size_t bytes = frame_bytes(op->header.bytes);
      op->buffer = take_buffer(bytes);
      start(std::move(op), false, bytes);
      return true;
    }
    case OpKind::kErase: {
      const std::lock_guard lock(mutex);
      log->erase(op->key);
      return true;
    }
    case OpKind::kPurge: {
      const std::lock_guard lock(mutex);
      log->erase_space(op->info.space);
      return true;
    }
    case OpKind::kMoveWrite: break;  // begun by the end of its read
  }
  return true;
}

void SsdTier::Impl::start(std::unique_ptr<Op> op, bool write, size_t bytes) {
  size_t place = running.size();
  if (free_places.empty()) {
    running.emplace_back();
  } else {
    place = free_places.back();
    free_places.pop_back();
  }
  const int fd = op->place.segment->fd;
  const std::span<std::byte> data = op->buffer.first(bytes);
  const uint64_t offset = op->place.offset, tag = place + 1;
  running[place] = std::move(op);
  ++busy;
  if (write) {
    running[place]->written_bytes = bytes;
    io->write(fd, data, offset, tag);
  } else {
    io->read(fd, data, offset, tag);
  }
}

void SsdTier::Impl::begin_get(std::unique_ptr<Op>& op) {
  Status status;
  {
    const std::lock_guard lock(mutex);
    ++log->stats.gets;
    if (std::ranges::find(cancelled, op->ticket) != cancelled.end()) {
      std::erase(cancelled, op->ticket);
      return;
    }
    const SsdEntry* e = log->find(op->key, unix_time());
    if (e == nullptr) {
      status = Status(Code::kNotFound, "no such record on the SSD");
    } else if (e->frame.bytes > op->into.size()) {
      status = Status(Code::kResourceExhausted, "the record is larger than the buffer");
    } else {
      op->header = e->frame;
      op->place = {.segment = e->segment, .offset = e->frame.offset};
    }
  }
  if (!status.ok()) return complete(op->ticket, std::move(status));
  const size_t bytes = frame_bytes(op->header.bytes);
  op->buffer = take_buffer(bytes);
  start(std::move(op), false, bytes);
}

void SsdTier::Impl::begin_put(std::unique_ptr<Op>& op) {
  const int64_t now = unix_time();
  op->header.key = op->key;
  op->header.space = op->info.space;
  op->header.ttl_s = static_cast<uint32_t>(std::clamp(op->info.ttl_s, 1.0, 4e9));
  op->header.expires_at = now + op->header.ttl_s;
  Status status;
  {
    const std::lock_guard lock(mutex);
    ++log->stats.puts;
    if (now < full_until || options.faults.fails(FaultPoint::kSsdFull)) {
      status = Status(Code::kResourceExhausted, std::string(kNoSpace));
    } else if (log->over_share(op->header)) {
      status = Status(Code::kResourceExhausted, "the tenant's share of the SSD cache is used up");
    } else if (Result<SsdLog::Place> place = log->append(&op->header); place.ok()) {
      op->place = std::move(place).value();
    } else {
      full_until = now + kFullPauseS;
      status = place.status();
    }
    if (!status.ok()) {
      ++log->stats.refused;
      pending_bytes -= op->header.bytes;
    }
  }
  if (!status.ok()) {
    complete(op->ticket, std::move(status));
    return;
  }
  make_room();
  write_frame_header(op->header, op->buffer.first(kFrameHeaderBytes));
  size_t bytes = frame_bytes(op->header.bytes);
  if (options.faults.fails(FaultPoint::kSsdTorn))
    bytes = std::max(kIoAlignment, bytes / 2 / kIoAlignment * kIoAlignment);
  start(std::move(op), true, bytes);
}

// Before the log outgrows its size: what is worth keeping of the leaving segment is written again.
void SsdTier::Impl::make_room() {
  std::vector<SsdEntry> keep;
  std::shared_ptr<SsdSegment> victim;
  {
    const std::lock_guard lock(mutex);
    victim = log->choose_victim(unix_time(), &keep);
    if (victim && keep.empty()) log->remove(victim, unix_time());
  }
  if (keep.empty()) return;
  moves.emplace_back(victim, static_cast<int>(keep.size()));
  for (SsdEntry& e : keep) {
    auto op = std::make_unique<Op>();
    op->kind = OpKind::kMoveRead;
    op->key = e.frame.key;
    op->header = e.frame;
    op->place = {.segment = victim, .offset = e.frame.offset};
    op->victim = victim;
    ready.push_back(std::move(op));
  }
}

void SsdTier::Impl::move_ended(const std::shared_ptr<SsdSegment>& victim) {
  const auto at = std::ranges::find(moves, victim, [](const auto& m) { return m.first; });
  if (--at->second > 0) return;
  moves.erase(at);
  const std::lock_guard lock(mutex);
  log->remove(victim, unix_time());
}

void SsdTier::Impl::finish(std::unique_ptr<Op> op, const IoQueue::Done& done) {
  if (op->kind == OpKind::kGet) {
    finish_get(*op, done);
  } else if (op->kind == OpKind::kMoveRead) {
    return finish_move_read(std::move(op), done);
  } else {
    finish_write(*op, done);
  }
  give_buffer(std::move(op->buffer));
}

void SsdTier::Impl::finish_get(Op& op, const IoQueue::Done& done) {
  const Faults& faults = options.faults;
  size_t bytes = op.header.bytes;
  const std::span<std::byte> record = op.buffer.first(kFrameHeaderBytes + bytes).subspan(kFrameHeaderBytes);
  const bool failed = done.error != 0 || faults.fails(FaultPoint::kSsdRead);
  const bool mine = read_frame_header(op.buffer.first(kFrameHeaderBytes), op.header.segment, op.header.offset).ok();
  if (failed || !mine) {
    {
      const std::lock_guard lock(mutex);
      ++log->stats.errors;
    }
    if (!failed) return complete(op.ticket, Status(Code::kNotFound, "the record has left meanwhile"));
    return complete(op.ticket, make_error(Code::kIo, "reading the SSD cache failed: {}", std::strerror(done.error)));
  }
  if (faults.fails(FaultPoint::kSsdFlip)) record[bytes / 2] ^= std::byte{4};
  if (faults.fails(FaultPoint::kSsdShort)) bytes /= 2;
  const int64_t came = std::max<int64_t>(0, done.bytes - static_cast<int64_t>(kFrameHeaderBytes));
  bytes = std::min(bytes, static_cast<size_t>(came));
  const std::lock_guard copying(copy_mutex);
  {
    const std::lock_guard lock(mutex);
    if (std::ranges::find(cancelled, op.ticket) != cancelled.end()) {
      std::erase(cancelled, op.ticket);
      return;
    }
    ++log->stats.hits;
    log->stats.read_bytes += bytes;
  }
  std::ranges::copy(record.first(bytes), op.into.begin());
  complete(op.ticket, Status(), bytes, {.space = op.header.space, .ttl_s = static_cast<double>(op.header.ttl_s)});
}

void SsdTier::Impl::finish_write(Op& op, const IoQueue::Done& done) {
  const bool move = op.kind == OpKind::kMoveWrite;
  const bool whole = done.error == 0 && done.bytes == static_cast<int64_t>(op.written_bytes);
  const bool ok = whole && !(!move && options.faults.fails(FaultPoint::kSsdWrite));
  {
    const std::lock_guard lock(mutex);
    if (!move) pending_bytes -= op.header.bytes;
    if (unstarted == 0 && pending_bytes == 0) idle.notify_all();
    if (ok) {
      log->written(op.place, op.header);
      log->stats.written_bytes += op.header.bytes;
      log->stats.moved += move;
    } else {
      log->not_written(op.place);
      ++log->stats.errors;
      if (done.error == ENOSPC) full_until = unix_time() + kFullPauseS;
    }
  }
  if (move) return move_ended(op.victim);
  if (ok) return complete(op.ticket, Status());
  if (done.error == ENOSPC) return complete(op.ticket, Status(Code::kResourceExhausted, std::string(kNoSpace)));
  complete(op.ticket, make_error(Code::kIo, "writing the SSD cache failed: {}", std::strerror(done.error)));
}

void SsdTier::Impl::finish_move_read(std::unique_ptr<Op> op, const IoQueue::Done& done) {
  const size_t bytes = frame_bytes(op->header.bytes);
  const std::span<std::byte> record = op->buffer.first(kFrameHeaderBytes + op->header.bytes).subspan(kFrameHeaderBytes);
  bool ok = done.error == 0 && done.bytes >= static_cast<int64_t>(bytes) && record_is_whole(record);
  if (ok) {
    const std::lock_guard lock(mutex);
    // It may have been erased or written anew meanwhile.
    const auto at = log->entries().find(op->key);
    ok = at != log->entries().end() && at->second.segment == op->victim;
    if (ok) {
      Result<SsdLog::Place> place = log->append(&op->header);
      ok = place.ok();
      if (ok) op->place = std::move(place).value();
    }
  }
  if (!ok) {
    give_buffer(std::move(op->buffer));
    return move_ended(op->victim);
  }
  op->kind = OpKind::kMoveWrite;
  write_frame_header(op->header, op->buffer.first(kFrameHeaderBytes));
  start(std::move(op), true, bytes);
}

Result<std::unique_ptr<SsdTier>> SsdTier::open(const std::string& dir, const SsdTierOptions& options) {
  if (options.depth < 4) return make_error(Code::kInvalidArgument, "The SSD cache needs a depth of at least 4.");
  DI_ASSIGN_OR_RETURN(std::unique_ptr<SsdLog> log, SsdLog::open(dir, options));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> io,
                      IoQueue::create({.depth = options.depth, .threads = !options.io_uring, .thread_count = 16}));
  const int wake = ::eventfd(0, EFD_CLOEXEC);
  if (wake < 0) return make_error(Code::kIo, "The SSD cache gets no event descriptor: {}.", std::strerror(errno));
  return std::unique_ptr<SsdTier>(
      new SsdTier(std::make_unique<Impl>(options, std::move(log), std::move(io), wake)));
}

SsdTier::SsdTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SsdTier::~SsdTier() = default;

Tier::Ticket SsdTier::get(const BlockKey& key, std::span<std::byte> into) {
  auto op = std::make_unique<Op>();
  op->kind = OpKind::kGet;
  op->key = key;
  op->into = into;
  return impl_->post(std::move(op));
}

Tier::Ticket SsdTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->pending_bytes + record.size() > impl_->options.pending_bytes_max) {
      ++impl_->log->stats.refused;
      impl_->completions.push_back(
          {++impl_->last_ticket, Status(Code::kResourceExhausted, "too many writes wait for the SSD cache"), 0});
      return impl_->last_ticket;
    }
    impl_->pending_bytes += record.size();
  }
  auto op = std::make_unique<Op>();
  op->kind = OpKind::kPut;
  op->key = key;
  op->info = info;
  op->header.bytes = record.size();
  op->buffer = impl_->take_buffer(frame_bytes(record.size()));
  std::byte* to = op->buffer.data() + kFrameHeaderBytes;
  std::ranges::copy(record, to);
  std::memset(to + record.size(), 0, frame_bytes(record.size()) - kFrameHeaderBytes - record.size());
  return impl_->post(std::move(op));
}

void SsdTier::erase(const BlockKey& key) {
  auto op = std::make_unique<Op>();
  op->kind = OpKind::kErase;
  op->key = key;
  impl_->post(std::move(op));
}

void SsdTier::purge(uint64_t space) {
  auto op = std::make_unique<Op>();
  op->kind = OpKind::kPurge;
  op->info.space = space;
  impl_->post(std::move(op));
}

size_t SsdTier::poll(std::span<Completion> done) {
  const std::lock_guard lock(impl_->mutex);
  size_t n = 0;
  for (; n < done.size() && !impl_->completions.empty(); impl_->completions.pop_front())
    done[n++] = std::move(impl_->completions.front());
  return n;
}

void SsdTier::cancel(Ticket ticket) {
  const std::lock_guard copying(impl_->copy_mutex);
  const std::lock_guard lock(impl_->mutex);
  const auto at = std::ranges::find(impl_->completions, ticket, &Completion::ticket);
  if (at != impl_->completions.end()) {
    impl_->completions.erase(at);
  } else {
    impl_->cancelled.push_back(ticket);
  }
}

bool SsdTier::contains(const BlockKey& key) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->log->contains(key, impl_->unix_time());
}

uint64_t SsdTier::record_bytes(const BlockKey& key) const {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->log->entries().find(key);
  return at == impl_->log->entries().end() ? 0 : at->second.frame.bytes;
}

size_t SsdTier::count_prefix(std::span<const BlockKey> keys) const {
  const std::lock_guard lock(impl_->mutex);
  const int64_t now = impl_->unix_time();
  size_t n = 0;
  while (n < keys.size() && impl_->log->contains(keys[n], now)) ++n;
  return n;
}

SsdStats SsdTier::stats() const {
  const std::lock_guard lock(impl_->mutex);
  SsdStats s = impl_->log->stats;
  s.records = static_cast<int64_t>(impl_->log->entries().size());
  s.segment_bytes = impl_->log->segment_bytes();
  s.segments = impl_->log->segment_count();
  return s;
}

std::vector<SsdRecord> SsdTier::list() const {
  std::vector<SsdRecord> out;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [key, e] : impl_->log->entries())
      out.push_back({key, e.frame.space, e.frame.bytes, e.frame.expires_at, e.used});
  }
  std::ranges::sort(out, {}, &SsdRecord::key);
  return out;
}

void SsdTier::flush() {
  std::unique_lock lock(impl_->mutex);
  impl_->idle.wait(lock, [this] { return impl_->unstarted == 0 && impl_->pending_bytes == 0; });
}

int64_t SsdTier::scrub() {
  int64_t bad = 0;
  std::vector<SsdEntry> all;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [key, e] : impl_->log->entries()) all.push_back(e);
  }
  AlignedBuffer buffer;
  for (const SsdEntry& e : all) {
    const size_t bytes = frame_bytes(e.frame.bytes);
    buffer.resize(bytes);
    const ssize_t n = ::pread(e.segment->fd, buffer.data(), bytes, static_cast<off_t>(e.frame.offset));
    const std::span<const std::byte> frame = buffer.first(bytes);
    if (n == static_cast<ssize_t>(bytes) && read_frame_header(frame, e.frame.segment, e.frame.offset).ok() &&
        record_is_whole(frame.subspan(kFrameHeaderBytes, e.frame.bytes)))
      continue;
    const std::lock_guard lock(impl_->mutex);
    const auto at = impl_->log->entries().find(e.frame.key);
    if (at == impl_->log->entries().end() || at->second.frame.sequence != e.frame.sequence) continue;  // gone meanwhile
    impl_->log->erase(e.frame.key);
    ++bad;
  }
  return bad;
}

}  // namespace deepinfer::kv
