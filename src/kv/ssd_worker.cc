#include "kv/ssd_worker.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include "kv/record.h"

namespace deepinfer::kv {
namespace {

constexpr uint64_t kWakeTag = 0;
constexpr size_t kRunBytes = 256 << 10;  // of frames that are read together
constexpr int64_t kFullPauseS = 1, kExpirePauseS = 60;

Status no_space() { return Status(Code::kResourceExhausted, "no space on the device of the SSD cache"); }
Status no_memory() { return Status(Code::kResourceExhausted, "no memory for a block of the SSD cache"); }

}  // namespace

SsdWorker::SsdWorker(const SsdTierOptions& options, std::unique_ptr<SsdLog> log, std::unique_ptr<IoQueue> io,
                     int wake_fd)
    : options_(options),
      log_(std::move(log)),
      io_(std::move(io)),
      wake_fd_(wake_fd),
      thread_([this] { loop(); }),
      sealer_([this] { seal(); }) {}

SsdWorker::~SsdWorker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake();
  thread_.join();
  seals_ready_.notify_all();
  sealer_.join();
  wake();  // the read that waits for it must end before the queue can
  io_.reset();
  ::close(wake_fd_);
}

// ---- callers' threads -----------------------------------------------------------------------------------------------

int64_t SsdWorker::unix_time() const {
  return options_.unix_time ? options_.unix_time() : static_cast<int64_t>(std::time(nullptr));
}

void SsdWorker::wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_fd_, &one, sizeof one);
}

Tier::Ticket SsdWorker::post(std::unique_ptr<SsdOp> op) {
  const std::lock_guard lock(mutex_);
  const Tier::Ticket t = op->ticket = ++last_ticket_;
  commands_.push_back(std::move(op));
  ++unstarted_;
  if (waiting_) wake();
  return t;
}

Tier::Ticket SsdWorker::post_put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  const auto refuse = [this](Status status) {  // under the mutex
    ++log_->stats.refused;
    completions_.push_back({++last_ticket_, std::move(status), 0});
    return last_ticket_;
  };
  {
    const std::lock_guard lock(mutex_);
    if (pending_bytes_ + record.size() > options_.pending_bytes_max)
      return refuse(Status(Code::kResourceExhausted, "too many writes wait for the SSD cache"));
    pending_bytes_ += record.size();
  }
  const size_t frame = frame_bytes(record.size());
  auto op = std::make_unique<SsdOp>();
  op->kind = SsdOp::Kind::kPut;
  op->key = key;
  op->info = info;
  op->header.bytes = record.size();
  op->buffer = buffers_.take(frame);
  if (op->buffer.empty()) {
    const std::lock_guard lock(mutex_);
    pending_bytes_ -= record.size();
    return refuse(no_memory());
  }
  std::byte* to = op->buffer.data() + kFrameHeaderBytes;
  std::memcpy(to, record.data(), record.size());
  std::memset(to + record.size(), 0, frame - kFrameHeaderBytes - record.size());
  return post(std::move(op));
}

size_t SsdWorker::poll(std::span<Tier::Completion> done) {
  const std::lock_guard lock(mutex_);
  size_t n = 0;
  for (; n < done.size() && !completions_.empty(); completions_.pop_front())
    done[n++] = std::move(completions_.front());
  return n;
}

void SsdWorker::cancel(Tier::Ticket ticket) {
  const std::lock_guard copying(copy_mutex_);
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(completions_, ticket, &Tier::Completion::ticket);
  if (at != completions_.end()) {
    completions_.erase(at);
  } else {
    cancelled_.push_back(ticket);
  }
}

void SsdWorker::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return unstarted_ == 0 && pending_bytes_ == 0; });
}

// ---- the sealer -----------------------------------------------------------------------------------------------------

void SsdWorker::seal() {
  std::unique_lock lock(mutex_);
  while (true) {
    seals_ready_.wait(lock, [this] { return ending_ || log_->has_seals(); });
    if (!log_->has_seals()) return;
    const SsdLog::Seal seal = log_->take_seal();
    lock.unlock();
    const bool ok = seal.write();
    lock.lock();
    log_->sealed(seal, ok);
  }
}

// ---- the worker: beginnings -----------------------------------------------------------------------------------------

void SsdWorker::loop() {
  std::array<IoQueue::Done, 32> done;
  while (true) {
    if (busy_ == 0 && ready_.empty()) gather_gets();
    {
      const std::lock_guard lock(mutex_);
      for (; !commands_.empty(); commands_.pop_front()) ready_.push_back(std::move(commands_.front()));
      if (const int64_t now = unix_time(); now >= next_expiry_) {
        log_->expire(now);
        next_expiry_ = now + kExpirePauseS;
      }
      if (log_->has_seals()) seals_ready_.notify_one();
      if (ending_ && ready_.empty() && busy_ == 0) break;
      waiting_ = true;
    }
    begin_ready();
    watch_wake();
    io_->submit();
    const size_t n = io_->wait(done);
    {
      const std::lock_guard lock(mutex_);
      waiting_ = false;
    }
    for (size_t i = 0; i < n; ++i) {
      if (done[i].tag == kWakeTag) {
        wake_watched_ = false;
        continue;
      }
      const size_t place = done[i].tag - 1;
      free_places_.push_back(place);
      --busy_;
      finish(std::move(running_[place]), done[i]);
    }
  }
}

// A prompt asks for its blocks one after another. While they are being asked for, neither thread gets in the other's
// way, and frames that lie together are read together.
void SsdWorker::gather_gets() {
  constexpr std::chrono::microseconds kPause(20);
  constexpr int kPausesMax = 100;  // however many prompts ask
  size_t seen = 0;
  for (int i = 0; i < kPausesMax; ++i, std::this_thread::sleep_for(kPause)) {
    const std::lock_guard lock(mutex_);
    if (commands_.size() == seen || commands_.back()->kind != SsdOp::Kind::kGet) return;
    seen = commands_.size();
  }
}

void SsdWorker::begin_ready() {
  int started = 0;
  while (!ready_.empty()) {
    const bool posted = ready_.front()->kind != SsdOp::Kind::kMoveRead;
    if (!begin(ready_.front())) break;
    ready_.pop_front();
    started += posted;
  }
  start_gets();
  const std::lock_guard lock(mutex_);
  unstarted_ -= started;
  if (unstarted_ == 0 && pending_bytes_ == 0) idle_.notify_all();
}

// The wake-up is itself a read in flight, so that one wait covers both.
void SsdWorker::watch_wake() {
  if (wake_watched_) return;
  wake_watched_ = io_->read(wake_fd_, std::as_writable_bytes(std::span(&wake_value_, 1)), 0, kWakeTag);
}

bool SsdWorker::begin(std::unique_ptr<SsdOp>& op) {
  if (op->kind != SsdOp::Kind::kGet) start_gets();
  if (io_->in_flight() + 2 + (first_get_ != nullptr) > options_.depth) return false;  // one is for the wake-up
  switch (op->kind) {
    case SsdOp::Kind::kGet: begin_get(op); break;
    case SsdOp::Kind::kPut: begin_put(op); break;
    case SsdOp::Kind::kMoveRead: begin_move(op); break;
    case SsdOp::Kind::kErase: {
      const std::lock_guard lock(mutex_);
      log_->erase(op->key);
      break;
    }
    case SsdOp::Kind::kPurge: {
      const std::lock_guard lock(mutex_);
      log_->erase_space(op->info.space);
      break;
    }
    case SsdOp::Kind::kMoveWrite: break;  // begun by the end of its read
  }
  return true;
}

void SsdWorker::start(std::unique_ptr<SsdOp> op, bool write, size_t bytes) {
  size_t place = running_.size();
  if (free_places_.empty()) {
    running_.emplace_back();
  } else {
    place = free_places_.back();
    free_places_.pop_back();
  }
  const int fd = op->place.segment->fd;
  const std::span<std::byte> data = op->buffer.first(bytes);
  const uint64_t offset = op->place.offset, tag = place + 1;
  running_[place] = std::move(op);
  ++busy_;
  if (write) {
    running_[place]->written_bytes = bytes;
    io_->write(fd, data, offset, tag);
  } else {
    io_->read(fd, data, offset, tag);
  }
}

bool SsdWorker::locate(SsdOp& op) {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    ++log_->stats.gets;
    if (was_cancelled(op.ticket)) return false;
    const SsdEntry* e = log_->find(op.key, unix_time());
    if (e == nullptr) {
      status = Status(Code::kNotFound, "no such record on the SSD");
    } else if (e->frame.bytes > op.into.size()) {
      status = Status(Code::kResourceExhausted, "the record is larger than the buffer");
    } else {
      op.header = e->frame;
      op.place = {.segment = e->segment, .offset = e->frame.offset};
    }
  }
  const bool found = status.ok();
  if (!found) complete(op.ticket, std::move(status));
  return found;
}

// Blocks of a prompt were mostly written one behind the other, and a device reads a long piece faster than many.
void SsdWorker::begin_get(std::unique_ptr<SsdOp>& op) {
  if (!locate(*op)) return;
  const size_t bytes = frame_bytes(op->header.bytes);
  const SsdOp* const first = first_get_.get();
  const bool joins = first != nullptr && !op->alone && !first->alone && first->place.segment == op->place.segment &&
                     first->place.offset + run_bytes_ == op->place.offset && run_bytes_ + bytes <= kRunBytes;
  if (joins) {
    first_get_->behind.push_back(std::move(op));
    run_bytes_ += bytes;
    return;
  }
  start_gets();
  first_get_ = std::move(op);
  run_bytes_ = bytes;
}

void SsdWorker::start_gets() {
  if (first_get_ == nullptr) return;
  std::unique_ptr<SsdOp> op = std::move(first_get_);
  op->buffer = buffers_.take(op->behind.empty() ? run_bytes_ : kRunBytes);
  if (!op->buffer.empty()) return start(std::move(op), false, run_bytes_);
  complete(op->ticket, no_memory());
  for (const std::unique_ptr<SsdOp>& o : op->behind) complete(o->ticket, no_memory());
}

void SsdWorker::begin_put(std::unique_ptr<SsdOp>& op) {
  const int64_t now = unix_time();
  op->header.key = op->key;
  op->header.space = op->info.space;
  op->header.ttl_s = static_cast<uint32_t>(std::clamp(op->info.ttl_s, 1.0, 4e9));
  op->header.expires_at = now + op->header.ttl_s;
  Status status;
  {
    const std::lock_guard lock(mutex_);
    ++log_->stats.puts;
    if (now < full_until_ || options_.faults.fails(FaultPoint::kSsdFull)) {
      status = no_space();
    } else if (log_->over_share(op->header)) {
      status = Status(Code::kResourceExhausted, "the tenant's share of the SSD cache is used up");
    } else if (Result<SsdLog::Place> place = log_->append(&op->header); place.ok()) {
      op->place = std::move(place).value();
    } else {
      full_until_ = now + kFullPauseS;
      status = place.status();
    }
    if (!status.ok()) {
      ++log_->stats.refused;
      pending_bytes_ -= op->header.bytes;
    }
  }
  if (!status.ok()) {
    complete(op->ticket, std::move(status));
    return;
  }
  make_room();
  write_frame_header(op->header, op->buffer.first(kFrameHeaderBytes));
  size_t bytes = frame_bytes(op->header.bytes);
  if (options_.faults.fails(FaultPoint::kSsdTorn))
    bytes = std::max(kIoAlignment, bytes / 2 / kIoAlignment * kIoAlignment);
  start(std::move(op), true, bytes);
}

void SsdWorker::begin_move(std::unique_ptr<SsdOp>& op) {
  const size_t bytes = frame_bytes(op->header.bytes);
  op->buffer = buffers_.take(bytes);
  if (op->buffer.empty()) return move_ended(op->victim);
  start(std::move(op), false, bytes);
}

// Before the log outgrows its size: what is worth keeping of the leaving segment is written again.
void SsdWorker::make_room() {
  std::vector<SsdEntry> keep;
  std::shared_ptr<SsdSegment> victim;
  {
    const std::lock_guard lock(mutex_);
    victim = log_->choose_victim(unix_time(), &keep);
    if (victim && keep.empty()) log_->remove(victim, unix_time());
  }
  if (keep.empty()) return;
  moves_.emplace_back(victim, static_cast<int>(keep.size()));
  for (SsdEntry& e : keep) {
    auto op = std::make_unique<SsdOp>();
    op->kind = SsdOp::Kind::kMoveRead;
    op->key = e.frame.key;
    op->header = e.frame;
    op->place = {.segment = victim, .offset = e.frame.offset};
    op->victim = victim;
    ready_.push_back(std::move(op));
  }
}

void SsdWorker::move_ended(const std::shared_ptr<SsdSegment>& victim) {
  const auto at = std::ranges::find(moves_, victim, [](const auto& m) { return m.first; });
  if (--at->second > 0) return;
  moves_.erase(at);
  const std::lock_guard lock(mutex_);
  log_->remove(victim, unix_time());
}

// ---- the worker: ends -----------------------------------------------------------------------------------------------

bool SsdWorker::was_cancelled(Tier::Ticket ticket) {
  const auto at = std::ranges::find(cancelled_, ticket);
  if (at == cancelled_.end()) return false;
  cancelled_.erase(at);
  return true;
}

void SsdWorker::complete(Tier::Ticket ticket, Status status, size_t bytes, const PutInfo& info, bool checked) {
  {
    const std::lock_guard lock(mutex_);
    if (was_cancelled(ticket)) return;
    completions_.push_back({ticket, std::move(status), bytes, info, checked});
  }
  if (options_.on_completion) options_.on_completion();
}

void SsdWorker::finish(std::unique_ptr<SsdOp> op, const IoQueue::Done& done) {
  if (op->kind == SsdOp::Kind::kGet) {
    finish_gets(std::move(op), done);
  } else if (op->kind == SsdOp::Kind::kMoveRead) {
    finish_move_read(std::move(op), done);
  } else {
    finish_write(*op, done);
  }
}

void SsdWorker::finish_gets(std::unique_ptr<SsdOp> first, const IoQueue::Done& done) {
  std::vector<std::unique_ptr<SsdOp>> behind = std::move(first->behind);
  if (done.error != 0 && !behind.empty()) {  // perhaps one frame's place is bad: the others are still to be had
    behind.push_back(std::move(first));
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<SsdOp>& op : behind) {
      op->alone = true;
      op->buffer = {};
      ready_.push_back(std::move(op));
      ++unstarted_;
      --log_->stats.gets;
    }
    return;
  }
  const auto part = [&](SsdOp& op) {
    const size_t at = op.place.offset - first->place.offset, bytes = kFrameHeaderBytes + op.header.bytes;
    finish_get(op, first->buffer.first(at + bytes).subspan(at),
               {.tag = done.tag, .bytes = done.bytes - static_cast<int64_t>(at), .error = done.error});
  };
  part(*first);
  for (const std::unique_ptr<SsdOp>& op : behind) part(*op);
}

// `done` counts from the beginning of this frame.
void SsdWorker::finish_get(SsdOp& op, std::span<std::byte> frame, const IoQueue::Done& done) {
  const Faults& faults = options_.faults;
  size_t bytes = op.header.bytes;
  const std::span<std::byte> record = frame.subspan(kFrameHeaderBytes);
  const bool failed = done.error != 0 || faults.fails(FaultPoint::kSsdRead);
  const bool mine = done.bytes >= static_cast<int64_t>(kFrameHeaderBytes) &&
                    read_frame_header(frame.first(kFrameHeaderBytes), op.header.segment, op.header.offset).ok();
  if (failed || !mine) {
    with_log([](SsdLog& log) { ++log.stats.errors; });
    if (!failed) return complete(op.ticket, Status(Code::kNotFound, "the record has left meanwhile"));
    return complete(op.ticket, make_error(Code::kIo, "reading the SSD cache failed: {}", std::strerror(done.error)));
  }
  if (faults.fails(FaultPoint::kSsdFlip)) record[bytes / 2] ^= std::byte{4};
  if (faults.fails(FaultPoint::kSsdShort)) bytes /= 2;
  const int64_t came = std::max<int64_t>(0, done.bytes - static_cast<int64_t>(kFrameHeaderBytes));
  bytes = std::min(bytes, static_cast<size_t>(came));
  const std::lock_guard copying(copy_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (was_cancelled(op.ticket)) return;
    ++log_->stats.hits;
    log_->stats.read_bytes += bytes;
  }
  const bool whole = copy_record(record.first(bytes), op.into);
  complete(op.ticket, Status(), bytes, {.space = op.header.space, .ttl_s = static_cast<double>(op.header.ttl_s)},
           whole);
}

void SsdWorker::finish_write(SsdOp& op, const IoQueue::Done& done) {
  const bool move = op.kind == SsdOp::Kind::kMoveWrite;
  const bool whole = done.error == 0 && done.bytes == static_cast<int64_t>(op.written_bytes);
  const bool ok = whole && !(!move && options_.faults.fails(FaultPoint::kSsdWrite));
  {
    const std::lock_guard lock(mutex_);
    if (!move) pending_bytes_ -= op.header.bytes;
    if (unstarted_ == 0 && pending_bytes_ == 0) idle_.notify_all();
    if (ok) {
      log_->written(op.place, op.header);
      log_->stats.written_bytes += op.header.bytes;
      log_->stats.moved += move;
    } else {
      log_->not_written(op.place);
      ++log_->stats.errors;
      if (done.error == ENOSPC) full_until_ = unix_time() + kFullPauseS;
    }
  }
  if (move) return move_ended(op.victim);
  if (ok) return complete(op.ticket, Status());
  if (done.error == ENOSPC) return complete(op.ticket, no_space());
  complete(op.ticket, make_error(Code::kIo, "writing the SSD cache failed: {}", std::strerror(done.error)));
}

void SsdWorker::finish_move_read(std::unique_ptr<SsdOp> op, const IoQueue::Done& done) {
  const size_t bytes = frame_bytes(op->header.bytes);
  const std::span<std::byte> record = op->buffer.first(kFrameHeaderBytes + op->header.bytes).subspan(kFrameHeaderBytes);
  bool ok = done.error == 0 && done.bytes >= static_cast<int64_t>(bytes) && record_is_whole(record);
  if (ok) {
    const std::lock_guard lock(mutex_);
    // It may have been erased or written anew meanwhile.
    const auto at = log_->entries().find(op->key);
    ok = at != log_->entries().end() && at->second.segment == op->victim;
    if (ok) {
      Result<SsdLog::Place> place = log_->append(&op->header);
      ok = place.ok();
      if (ok) op->place = std::move(place).value();
    }
  }
  if (!ok) return move_ended(op->victim);
  op->kind = SsdOp::Kind::kMoveWrite;
  write_frame_header(op->header, op->buffer.first(kFrameHeaderBytes));
  start(std::move(op), true, bytes);
}

}  // namespace deepinfer::kv
