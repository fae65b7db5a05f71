#include "kv/threaded_tier.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "kv/record_bytes.h"

namespace deepinfer::kv {
namespace {

struct Job {
  Tier::Ticket ticket = 0;
  RemoteCall call;
  std::span<std::byte> into;  // the caller's buffer of a get
  RecordBytes bytes;          // what was got, or a copy of what is put
  std::shared_ptr<const RecordBytes> owned;  // what is put, without a copy
  std::span<const std::byte> record() const { return owned ? std::span(*owned) : std::span(bytes); }
  uint64_t queued_bytes = 0;
  bool asked = false, cancelled = false;
  bool is_get() const { return call.kind == RemoteCall::Kind::kGet; }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_away(const Status& s) { return s.code() == Code::kUnavailable || s.code() == Code::kDeadlineExceeded; }

constexpr size_t kSparesMax = 64;

}  // namespace

struct ThreadedTier::Impl {
  // What a thread has on its way. It outlives the thread's store, which holds addresses of calls.
  struct Lane {
    std::list<Job> running;  // in the order in which they began
    std::vector<std::list<Job>::iterator> ready;  // of a store that ends calls in any order; under the mutex
  };
  explicit Impl(const ThreadedTierOptions& o) : options(o) {}

  void work(RemoteStore& store, Lane& lane);
  std::list<Job> take(size_t count);
  void start(RemoteStore& store, Lane& lane, std::list<Job>::iterator job, bool any_order);
  void end(Job& job);
  void learn(const Status& status);
  RecordBytes spare();
  void keep(RecordBytes bytes);
  std::string_view no_room(size_t bytes) const;
  Ticket add(Job job);
  Ticket add_put(const BlockKey& key, Job job, const PutInfo& info);
  Ticket refuse(std::string_view why);

  const ThreadedTierOptions options;

  mutable std::mutex mutex;
  std::condition_variable queued, ended;
  int alive = 0;  // threads that still have their store
  std::deque<Job> jobs;
  std::deque<Completion> completions;
  std::unordered_set<Ticket> open;  // gets and puts that may still be cancelled
  std::vector<RecordBytes> spares;  // of jobs that have ended, to be used again; puts that wait go before them
  uint64_t queue_bytes = 0, spare_bytes = 0;
  int queued_gets = 0;
  bool lanes_fill_up = false;  // so that one that is woken may have no place for a job
  double away_until = 0, away_s = 0;
  bool ending = false;
  Ticket last = 0;
  ThreadedTierStats stats;
  std::mutex copy_mutex;  // held while a record is copied to a caller's buffer
};

// As many jobs as the store has on their way at once. Of a store with an order the oldest is waited for.
void ThreadedTier::Impl::work(RemoteStore& store, Lane& lane) {
  std::unique_lock lock(mutex);
  while (true) {
    const bool any_order = store.in_any_order();  // each time: a store that comes late changes
    const auto depth = static_cast<size_t>(std::max(1, store.depth()));
    lanes_fill_up |= any_order;
    if (any_order || lane.running.empty()) {
      queued.wait(lock, [&] {
        return ending || !lane.ready.empty() || (!jobs.empty() && lane.running.size() < depth);
      });
    }
    if (ending) break;
    std::list<Job> fresh = take(depth - std::min(depth, lane.running.size()));
    lock.unlock();
    auto next = fresh.empty() ? lane.running.end() : fresh.begin();
    lane.running.splice(lane.running.end(), fresh);
    for (; next != lane.running.end(); ++next) start(store, lane, next, any_order);
    std::vector<std::list<Job>::iterator> ended;
    if (any_order) {
      lock.lock();
      ended.swap(lane.ready);
      lock.unlock();
    } else {
      ended.push_back(lane.running.begin());
    }
    for (const auto& job : ended) {
      if (job->asked) store.end(job->call);
      end(*job);
    }
    lock.lock();
    for (const auto& job : ended) {
      queue_bytes -= job->queued_bytes;
      keep(std::move(job->bytes));
      lane.running.erase(job);
    }
  }
}

// Under the mutex. So many jobs from the queue, or fewer.
std::list<Job> ThreadedTier::Impl::take(size_t count) {
  std::list<Job> taken;
  for (; taken.size() < count && !jobs.empty(); jobs.pop_front()) {
    Job& job = taken.emplace_back(std::move(jobs.front()));
    job.asked = now() >= away_until;
    job.cancelled = job.call.kind != RemoteCall::Kind::kErase && !open.contains(job.ticket);
    if (!job.is_get()) continue;
    --queued_gets;
    job.bytes = spare();
  }
  return taken;
}

void ThreadedTier::Impl::start(RemoteStore& store, Lane& lane, std::list<Job>::iterator at, bool any_order) {
  Job& job = *at;
  job.asked &= !job.cancelled;
  const auto ready = [this, &lane, at] {
    const std::lock_guard lock(mutex);
    lane.ready.push_back(at);
    queued.notify_all();
  };
  if (!job.asked) {
    job.call.status = Status(Code::kUnavailable, "the store is away");
    if (any_order) ready();
    return;
  }
  if (job.is_get()) {
    job.bytes.resize(job.into.size());
    job.call.into = job.bytes;
  } else {
    job.call.record = job.record();
  }
  if (any_order) job.call.ready = ready;
  store.begin(job.call);
}

void ThreadedTier::Impl::end(Job& job) {
  if (job.cancelled) return;
  RemoteCall& call = job.call;
  const bool found = job.is_get() && call.status.ok();
  const std::lock_guard copying(copy_mutex);
  {
    const std::lock_guard lock(mutex);
    if (job.asked) learn(call.status);
    if (call.kind == RemoteCall::Kind::kErase || open.erase(job.ticket) == 0) return;
    stats.hits += found;
  }
  if (found) std::copy_n(job.bytes.begin(), call.bytes, job.into.begin());
  job.owned.reset();  // before its owner hears of the end
  const std::lock_guard lock(mutex);
  completions.push_back({job.ticket, std::move(call.status), call.bytes, call.info});
}

// Under the mutex. Calls that were under way together when the store went away count as one failure.
void ThreadedTier::Impl::learn(const Status& status) {
  if (!is_away(status)) {
    away_s = 0;
    return;
  }
  ++stats.errors;
  const double t = now();
  if (t < away_until) return;
  away_s = away_s == 0 ? options.away_s : std::min(2 * away_s, options.away_max_s);
  away_until = t + away_s;
}

// Under the mutex.
RecordBytes ThreadedTier::Impl::spare() {
  if (spares.empty()) return {};
  RecordBytes bytes = std::move(spares.back());
  spares.pop_back();
  spare_bytes -= bytes.capacity();
  return bytes;
}

// Under the mutex.
void ThreadedTier::Impl::keep(RecordBytes bytes) {
  const size_t n = bytes.capacity();
  if (n == 0 || spares.size() >= kSparesMax || queue_bytes + spare_bytes + n > options.queue_bytes_max) return;
  spares.push_back(std::move(bytes));
  spare_bytes += n;
}

Tier::Ticket ThreadedTier::Impl::refuse(std::string_view why) {
  ++stats.refused;
  completions.push_back({++last, Status(Code::kResourceExhausted, std::string(why)), 0});
  return last;
}

// Under the mutex. Why a write of so many bytes is refused; empty if it is not.
std::string_view ThreadedTier::Impl::no_room(size_t bytes) const {
  if (now() < away_until) return "the store is away";
  return queue_bytes + bytes > options.queue_bytes_max ? "too many writes wait for the store" : "";
}

Tier::Ticket ThreadedTier::Impl::add_put(const BlockKey& key, Job job, const PutInfo& info) {
  ++stats.puts;
  job.queued_bytes = job.record().size();
  if (const std::string_view why = no_room(job.queued_bytes); !why.empty()) return refuse(why);
  job.call.kind = RemoteCall::Kind::kPut;
  job.call.key = key;
  job.call.info = info;
  return add(std::move(job));
}

Tier::Ticket ThreadedTier::Impl::add(Job job) {
  job.ticket = ++last;
  if (job.call.kind != RemoteCall::Kind::kErase) open.insert(job.ticket);
  queued_gets += job.is_get();
  queue_bytes += job.queued_bytes;
  while (!spares.empty() && queue_bytes + spare_bytes > options.queue_bytes_max) (void)spare();
  jobs.push_back(std::move(job));
  lanes_fill_up ? queued.notify_all() : queued.notify_one();
  return last;
}

ThreadedTier::ThreadedTier(std::unique_ptr<RemoteStore> store, const ThreadedTierOptions& options)
    : name_(store->name()), impl_(std::make_shared<Impl>(options)) {
  const int threads = std::max(1, options.threads > 0 ? options.threads : store->threads());
  impl_->alive = threads;
  for (int i = 0; i < threads; ++i) {
    std::unique_ptr<RemoteStore> own = i + 1 < threads ? store->clone() : std::move(store);
    threads_.emplace_back([impl = impl_, own = std::move(own)]() mutable {
      Impl::Lane lane;
      impl->work(*own, lane);
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
  Job job{.into = into};
  job.call.key = key;
  return impl_->add(std::move(job));
}

Tier::Ticket ThreadedTier::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  Job job;
  {
    const std::lock_guard lock(impl_->mutex);
    if (const std::string_view why = impl_->no_room(record.size()); !why.empty()) {
      ++impl_->stats.puts;
      return impl_->refuse(why);
    }
    job.bytes = impl_->spare();
  }
  job.bytes.assign(record.begin(), record.end());
  const std::lock_guard lock(impl_->mutex);
  return impl_->add_put(key, std::move(job), info);
}

Tier::Ticket ThreadedTier::put_owned(const BlockKey& key, std::shared_ptr<const RecordBytes> record,
                                     const PutInfo& info) {
  Job job;
  job.owned = std::move(record);
  const std::lock_guard lock(impl_->mutex);
  return impl_->add_put(key, std::move(job), info);
}

void ThreadedTier::erase(const BlockKey& key) {
  Job job;
  job.call.kind = RemoteCall::Kind::kErase;
  job.call.key = key;
  const std::lock_guard lock(impl_->mutex);
  impl_->add(std::move(job));
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
