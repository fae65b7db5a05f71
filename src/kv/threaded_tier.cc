#include "kv/threaded_tier.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "kv/record_bytes.h"

namespace deepinfer::kv {
namespace {

enum class JobKind : uint8_t { kGet, kPut, kErase };

struct Job {
  JobKind kind = JobKind::kGet;
  Tier::Ticket ticket = 0;
  BlockKey key;
  std::span<std::byte> into;
  RecordBytes record;
  PutInfo info;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_away(const Status& s) { return s.code() == Code::kUnavailable || s.code() == Code::kDeadlineExceeded; }

constexpr size_t kSparesMax = 64;

}  // namespace

struct ThreadedTier::Impl {
  explicit Impl(const ThreadedTierOptions& o) : options(o) {}

  void work(RemoteStore& store);
  void run(RemoteStore& store, Job& job);
  Ticket add(Job job);
  Ticket refuse(std::string_view why);

  const ThreadedTierOptions options;

  mutable std::mutex mutex;
  std::condition_variable queued, ended;
  int alive = 0;  // threads that still have their store
  std::deque<Job> jobs;
  std::deque<Completion> completions;
  std::unordered_set<Ticket> open;  // gets that may still be cancelled
  std::vector<RecordBytes> spares;  // of puts that have ended, to be used again
  uint64_t queue_bytes = 0;
  int queued_gets = 0;
  double away_until = 0;
  bool ending = false;
  Ticket last = 0;
  ThreadedTierStats stats;
  std::mutex copy_mutex;  // held while a record is copied to a caller's buffer
};

void ThreadedTier::Impl::work(RemoteStore& store) {
  std::unique_lock lock(mutex);
  while (true) {
    queued.wait(lock, [this] { return ending || !jobs.empty(); });
    if (ending) break;
    Job job = std::move(jobs.front());
    jobs.pop_front();
    queued_gets -= job.kind == JobKind::kGet;
    lock.unlock();
    run(store, job);
    lock.lock();
    queue_bytes -= job.record.size();
    if (job.record.capacity() > 0 && spares.size() < kSparesMax) spares.push_back(std::move(job.record));
  }
}

void ThreadedTier::Impl::run(RemoteStore& store, Job& job) {
  static thread_local RecordBytes buffer;
  Status status;
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex);
    if (job.kind == JobKind::kGet && !open.contains(job.ticket)) return;  // cancelled
    if (now() < away_until) status = Status(Code::kUnavailable, "the store is away");
  }
  const bool asked = status.ok();
  if (asked) {
    switch (job.kind) {
      case JobKind::kGet: {
        buffer.resize(job.into.size());
        Result<size_t> got = store.get(job.key, buffer, &job.info);
        status = got.status();
        if (got.ok()) bytes = got.value();
        break;
      }
      case JobKind::kPut: status = store.put(job.key, job.record, job.info); break;
      case JobKind::kErase: status = store.erase(job.key); break;
    }
  }
  const std::lock_guard copying(copy_mutex);
  {
    const std::lock_guard lock(mutex);
    if (asked && is_away(status)) {
      away_until = std::max(away_until, now() + options.away_s);
      ++stats.errors;
    }
    if (job.kind == JobKind::kErase || (job.kind == JobKind::kGet && open.erase(job.ticket) == 0)) return;
    stats.hits += job.kind == JobKind::kGet && status.ok();
  }
  if (job.kind == JobKind::kGet && status.ok()) std::copy_n(buffer.begin(), bytes, job.into.begin());
  const std::lock_guard lock(mutex);
  completions.push_back({job.ticket, std::move(status), bytes, job.info});
}

Tier::Ticket ThreadedTier::Impl::refuse(std::string_view why) {
  ++stats.refused;
  completions.push_back({++last, Status(Code::kResourceExhausted, std::string(why)), 0});
  return last;
}

Tier::Ticket ThreadedTier::Impl::add(Job job) {
  job.ticket = ++last;
  if (job.kind == JobKind::kGet) {
    open.insert(job.ticket);
    ++queued_gets;
  }
  queue_bytes += job.record.size();
  jobs.push_back(std::move(job));
  queued.notify_one();
  return last;
}

ThreadedTier::ThreadedTier(std::unique_ptr<RemoteStore> store, const ThreadedTierOptions& options)
    : name_(store->name()), impl_(std::make_shared<Impl>(options)) {
  const int threads = std::max(1, options.threads);
  impl_->alive = threads;
  for (int i = 0; i < threads; ++i) {
    std::unique_ptr<RemoteStore> own = i + 1 < threads ? store->clone() : std::move(store);
    threads_.emplace_back([impl = impl_, own = std::move(own)]() mutable {
      impl->work(*own);
      own.reset();
      const std::lock_guard lock(impl->mutex);
      --impl->alive;
      impl->ended.notify_all();
    });
  }
}

// A mount that hangs holds its thread for ever; the thread keeps what it uses alive, and nobody waits for it. All
// others are waited for with their stores: a library must not work on while the program ends and takes its globals
// down.
ThreadedTier::~ThreadedTier() {
  bool ended = false;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->ending = true;
    impl_->open.clear();
    impl_->queued.notify_all();
    ended = impl_->ended.wait_for(lock, std::chrono::duration<double>(impl_->options.end_wait_s),
                                  [this] { return impl_->alive == 0; });
  }
  for (std::thread& t : threads_) ended ? t.join() : t.detach();
}

Tier::Ticket ThreadedTier::get(const BlockKey& key, std::span<std::byte> into) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->stats.gets;
  if (impl_->queued_gets >= impl_->options.queue_max) return impl_->refuse("too many reads wait for the store");
  return impl_->add({.kind = JobKind::kGet, .key = key, .into = into});
}

Tier::Ticket ThreadedTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  Job job{.kind = JobKind::kPut, .key = key, .info = info};
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->stats.puts;
    if (now() < impl_->away_until) return impl_->refuse("the store is away");
    if (impl_->queue_bytes + record.size() > impl_->options.queue_bytes_max)
      return impl_->refuse("too many writes wait for the store");
    if (!impl_->spares.empty()) {
      job.record = std::move(impl_->spares.back());
      impl_->spares.pop_back();
    }
  }
  job.record.assign(record.begin(), record.end());
  const std::lock_guard lock(impl_->mutex);
  return impl_->add(std::move(job));
}

void ThreadedTier::erase(const BlockKey& key) {
  const std::lock_guard lock(impl_->mutex);
  impl_->add({.kind = JobKind::kErase, .key = key});
}

size_t ThreadedTier::poll(std::span<Completion> done) {
  const std::lock_guard lock(impl_->mutex);
  size_t n = 0;
  for (; n < done.size() && !impl_->completions.empty(); impl_->completions.pop_front())
    done[n++] = std::move(impl_->completions.front());
  return n;
}

void ThreadedTier::cancel(Ticket ticket) {
  const std::lock_guard copying(impl_->copy_mutex);
  const std::lock_guard lock(impl_->mutex);
  impl_->open.erase(ticket);
  std::erase_if(impl_->completions, [ticket](const Completion& c) { return c.ticket == ticket; });
}

ThreadedTierStats ThreadedTier::stats() const {
  const std::lock_guard lock(impl_->mutex);
  ThreadedTierStats s = impl_->stats;
  s.away = now() < impl_->away_until;
  return s;
}

}  // namespace deepinfer::kv
