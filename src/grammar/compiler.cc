#include "grammar/compiler.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer::grammar {

// One compile, shared by the jobs that ask for it.
struct CompileJob::Shared {
  Constraint constraint;
  std::string key;
  std::atomic<bool> cancel{false};
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool done = false;
  Result<std::shared_ptr<Compiled>> result = Status(Code::kUnavailable, "the compile has not ended");
  std::vector<std::function<void()>> callbacks;
  int jobs = 0;

  void finish(Result<std::shared_ptr<Compiled>> r) {
    std::vector<std::function<void()>> to_call;
    {
      std::lock_guard lock(mutex);
      result = std::move(r);
      done = true;
      to_call.swap(callbacks);
    }
    changed.notify_all();
    for (auto& f : to_call) f();
  }
};

CompileJob::~CompileJob() { cancel(); }

bool CompileJob::ready() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->done;
}

bool CompileJob::wait_ms(uint32_t milliseconds) const {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] { return shared_->done; });
}

Result<std::shared_ptr<Compiled>> CompileJob::result() const {
  if (cancelled_) return make_error(Code::kCancelled, "the compile was cancelled");
  std::lock_guard lock(shared_->mutex);
  return shared_->result;
}

void CompileJob::cancel() {
  if (cancelled_) return;
  cancelled_ = true;
  std::lock_guard lock(shared_->mutex);
  if (--shared_->jobs == 0 && !shared_->done) shared_->cancel = true;
}

struct Compiler::Impl {
  using Shared = std::shared_ptr<CompileJob::Shared>;
  struct Cached {
    std::string key;
    std::shared_ptr<Compiled> compiled;
  };

  Impl(std::shared_ptr<const Vocabulary> v, Options o) : vocabulary(std::move(v)), options(std::move(o)) {}

  std::shared_ptr<const Vocabulary> vocabulary;
  Options options;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  std::deque<Shared> queue;
  std::map<std::string, Shared> open;  // waiting or running
  std::list<Cached> cache;             // most recently used first
  std::map<std::string, std::list<Cached>::iterator> cache_index;
  Stats stats;
  std::vector<std::thread> threads;

  static std::string key_of(const Constraint& c) {
    return std::string{static_cast<char>(c.kind), static_cast<char>(c.any_order)} + c.source;
  }

  // The caller holds the lock.
  void keep(const std::string& key, std::shared_ptr<Compiled> compiled) {
    cache.push_front({key, std::move(compiled)});
    cache_index[key] = cache.begin();
    uint64_t bytes = 0;
    size_t entries = 0;
    // Sizes grow while grammars are used, so they are looked at again; the newest one always stays.
    for (auto it = cache.begin(); it != cache.end();) {
      bytes += it->compiled->memory_bytes() + it->key.size();
      if (++entries > 1 && (bytes > options.cache_bytes_max || entries > options.cache_entries_max)) {
        cache_index.erase(it->key);
        it = cache.erase(it);
      } else {
        ++it;
      }
    }
  }

  // The caller holds the lock. Cancelled compiles that still wait make room; nobody looks at their results.
  void drop_cancelled() {
    std::erase_if(queue, [this](const Shared& shared) {
      if (!shared->cancel) return false;
      ++stats.cancelled;
      auto it = open.find(shared->key);
      if (it != open.end() && it->second == shared) open.erase(it);
      return true;
    });
  }

  void work() {
    for (;;) {
      Shared shared;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return stopping || !queue.empty(); });
        if (queue.empty()) return;
        shared = queue.front();
        queue.pop_front();
      }
      Limits limits = options.limits;
      limits.cancel = &shared->cancel;
      Result<std::shared_ptr<Compiled>> result =
          shared->cancel ? Result<std::shared_ptr<Compiled>>(Status(Code::kCancelled, "the compile was cancelled"))
                         : compile_constraint(shared->constraint, vocabulary, limits);
      {
        std::lock_guard lock(mutex);
        auto it = open.find(shared->key);
        if (it != open.end() && it->second == shared) open.erase(it);
        if (result.ok()) {
          ++stats.compiles;
          keep(shared->key, result.value());
        } else if (result.status().code() == Code::kCancelled) {
          ++stats.cancelled;
        } else {
          ++stats.failures;
        }
      }
      shared->finish(std::move(result));
    }
  }
};

Compiler::Compiler(std::shared_ptr<const Vocabulary> vocabulary, Options options)
    : impl_(std::make_shared<Impl>(std::move(vocabulary), std::move(options))) {
  for (int i = 0; i < std::max(1, impl_->options.threads); ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] { impl->work(); });
  }
}

Compiler::~Compiler() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    for (auto& [key, shared] : impl_->open) shared->cancel = true;
  }
  impl_->changed.notify_all();
  for (std::thread& t : impl_->threads) t.join();
}

Result<std::unique_ptr<CompileJob>> Compiler::submit(const Constraint& constraint, std::function<void()> done) {
  const std::string key = Impl::key_of(constraint);
  std::unique_lock lock(impl_->mutex);
  if (auto it = impl_->cache_index.find(key); it != impl_->cache_index.end()) {
    ++impl_->stats.cache_hits;
    impl_->cache.splice(impl_->cache.begin(), impl_->cache, it->second);
    auto shared = std::make_shared<CompileJob::Shared>();
    shared->jobs = 1;
    shared->done = true;
    shared->result = it->second->compiled;
    lock.unlock();
    if (done) done();
    return std::make_unique<CompileJob>(std::move(shared));
  }
  if (auto it = impl_->open.find(key); it != impl_->open.end()) {
    CompileJob::Shared& shared = *it->second;
    std::lock_guard job_lock(shared.mutex);
    if (!shared.done && !shared.cancel) {  // not one that is being given up
      ++shared.jobs;
      if (done) shared.callbacks.push_back(std::move(done));
      return std::make_unique<CompileJob>(it->second);
    }
  }
  if (impl_->queue.size() >= impl_->options.queue_max) impl_->drop_cancelled();
  if (impl_->queue.size() >= impl_->options.queue_max) {
    ++impl_->stats.queue_full;
    return make_error(Code::kResourceExhausted,
                      "{} constraints are waiting to be compiled (limit queue_max); try again later",
                      impl_->queue.size());
  }
  auto shared = std::make_shared<CompileJob::Shared>();
  shared->constraint = constraint;
  shared->key = key;
  shared->jobs = 1;
  if (done) shared->callbacks.push_back(std::move(done));
  impl_->open[key] = shared;
  impl_->queue.push_back(shared);
  impl_->changed.notify_one();
  return std::make_unique<CompileJob>(std::move(shared));
}

Compiler::Stats Compiler::stats() const {
  std::lock_guard lock(impl_->mutex);
  Stats s = impl_->stats;
  s.waiting = impl_->queue.size();
  s.cached = impl_->cache.size();
  for (const auto& c : impl_->cache) s.cached_bytes += c.compiled->memory_bytes() + c.key.size();
  return s;
}

const std::shared_ptr<const Vocabulary>& Compiler::vocabulary() const { return impl_->vocabulary; }

}  // namespace deepinfer::grammar
