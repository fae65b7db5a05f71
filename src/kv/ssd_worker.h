// The thread behind an SSD tier (internal to kv/): takes operations, runs them on the device, gives completions.
//
//   SsdWorker worker(options, std::move(log), std::move(io), wake_fd);
//   auto op = std::make_unique<SsdOp>();  op->kind = SsdOp::Kind::kGet;  op->key = key;  op->into = buffer;
//   Tier::Ticket t = worker.post(std::move(op));          // never waits for the device
//   size_t n = worker.poll(done);
//   worker.with_log([](SsdLog& log) { return log.stats; });
//
// Frames are read into and written from huge pages (base/io_buffers.h). Contract of tickets: kv/tier.h. All public
// functions may be called from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/io_buffers.h"
#include "base/io_queue.h"
#include "kv/ssd_log.h"
#include "kv/ssd_tier.h"

namespace deepinfer::kv {

struct SsdOp {
  enum class Kind : uint8_t { kGet, kPut, kErase, kPurge, kMoveRead, kMoveWrite };
  Kind kind = Kind::kGet;
  Tier::Ticket ticket = 0;
  BlockKey key;
  std::span<std::byte> into;  // gets: the caller's
  PutInfo info;
  FrameHeader header;
  IoBuffer buffer;
  SsdLog::Place place;
  std::shared_ptr<SsdSegment> victim;  // of a move
  size_t written_bytes = 0;            // asked of the device
  std::vector<std::unique_ptr<SsdOp>> behind;  // of a get: gets whose frames lie right behind it, read with it
  bool alone = false;                          // it was read with others, and that failed
};

class SsdWorker {
 public:
  SsdWorker(const SsdTierOptions& options, std::unique_ptr<SsdLog> log, std::unique_ptr<IoQueue> io, int wake_fd);
  ~SsdWorker();

  Tier::Ticket post(std::unique_ptr<SsdOp> op);
  // As post() of a put; refused if too much waits already.
  Tier::Ticket post_put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info);
  size_t poll(std::span<Tier::Completion> done);
  void cancel(Tier::Ticket ticket);
  // Waits until every put so far is on disk.
  void flush();
  int64_t unix_time() const;

  template <class F>
  auto with_log(F&& f) {
    const std::lock_guard lock(mutex_);
    return f(*log_);
  }

 private:
  void wake() const;
  void seal();  // the sealer's
  // The worker's.
  void loop();
  void gather_gets();
  void begin_ready();
  bool begin(std::unique_ptr<SsdOp>& op);  // false: no room for it now
  bool locate(SsdOp& op);  // false: it has ended
  void begin_get(std::unique_ptr<SsdOp>& op);
  void start_gets();
  void begin_put(std::unique_ptr<SsdOp>& op);
  void begin_move(std::unique_ptr<SsdOp>& op);
  void make_room();
  void finish(std::unique_ptr<SsdOp> op, const IoQueue::Done& done);
  void finish_gets(std::unique_ptr<SsdOp> op, const IoQueue::Done& done);
  void finish_get(SsdOp& op, std::span<std::byte> frame, const IoQueue::Done& done);
  void finish_write(SsdOp& op, const IoQueue::Done& done);
  void finish_move_read(std::unique_ptr<SsdOp> op, const IoQueue::Done& done);
  void move_ended(const std::shared_ptr<SsdSegment>& victim);
  void complete(Tier::Ticket ticket, Status status, size_t bytes = 0, const PutInfo& info = {}, bool checked = false);
  bool was_cancelled(Tier::Ticket ticket);  // under mutex_; forgets it
  void start(std::unique_ptr<SsdOp> op, bool write, size_t bytes);
  void watch_wake();

  const SsdTierOptions options_;
  std::unique_ptr<SsdLog> log_;  // under mutex_
  std::unique_ptr<IoQueue> io_;  // the worker's
  const int wake_fd_;
  IoBuffers buffers_{{}};

  std::mutex mutex_;
  std::condition_variable idle_, seals_ready_;
  std::deque<std::unique_ptr<SsdOp>> commands_;
  std::deque<Tier::Completion> completions_;
  std::vector<Tier::Ticket> cancelled_;  // their completion is dropped
  Tier::Ticket last_ticket_ = 0;
  uint64_t pending_bytes_ = 0;  // of puts
  int unstarted_ = 0;           // operations of callers
  bool ending_ = false, waiting_ = false;
  // Held while a record is copied to a caller's buffer.
  std::mutex copy_mutex_;

  std::deque<std::unique_ptr<SsdOp>> ready_;
  std::unique_ptr<SsdOp> first_get_;  // found and not started: gets of frames right behind it join it
  size_t run_bytes_ = 0;              // of it and those
  std::vector<std::unique_ptr<SsdOp>> running_;  // tag - 1 is the place
  std::vector<size_t> free_places_;
  size_t busy_ = 0;
  uint64_t wake_value_ = 0;
  bool wake_watched_ = false;
  int64_t full_until_ = 0, next_expiry_ = 0;
  std::vector<std::pair<std::shared_ptr<SsdSegment>, int>> moves_;  // victims and their moves in work
  std::thread thread_, sealer_;  // last: they use all others
};

}  // namespace deepinfer::kv
