// Compiles constraints off the caller's thread: a bounded queue, cancellable jobs, and a cache by content.
//
//   Compiler compiler(vocabulary, {});
//   // full queue: kResourceExhausted
//   DI_ASSIGN_OR_RETURN(auto job, compiler.submit(constraint, [&] { loop.wake(); }));
//   if (job->ready()) use(job->result());           // poll, or wait_ms() in tests and tools
//   job->cancel();                                   // the client went away: frees the thread
//
// Equal constraints share one compile and one Compiled; a compile is given up when all its jobs were cancelled.
// Failures are not cached. Limits: Options and Limits; an error names the one that was reached. All functions may be
// called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "grammar/constraint.h"

namespace deepinfer::grammar {

class CompileJob {
 public:
  ~CompileJob();  // as cancel()
  CompileJob(const CompileJob&) = delete;
  CompileJob& operator=(const CompileJob&) = delete;
  bool ready() const;
  // True once ready; false when the time is over first.
  bool wait_ms(uint32_t milliseconds) const;
  // Once ready. After cancel(): kCancelled.
  Result<std::shared_ptr<Compiled>> result() const;
  void cancel();

  struct Shared;
  explicit CompileJob(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

 private:
  std::shared_ptr<Shared> shared_;
  bool cancelled_ = false;
};

class Compiler {
 public:
  struct Options {
    int threads = 2;
    size_t queue_max = 256;                    // compiles waiting
    uint64_t cache_bytes_max = 1ull << 30;     // of finished ones, their states and masks included
    size_t cache_entries_max = 1024;
    Limits limits;
  };
  struct Stats {
    uint64_t compiles = 0, failures = 0, cancelled = 0, cache_hits = 0, queue_full = 0;
    size_t waiting = 0, cached = 0;
    uint64_t cached_bytes = 0;
  };

  Compiler(std::shared_ptr<const Vocabulary> vocabulary, Options options);
  ~Compiler();  // gives up all compiles; their jobs end with kCancelled

  // `done` is called once, on a thread of the compiler or, for a cached constraint, before submit returns.
  Result<std::unique_ptr<CompileJob>> submit(const Constraint& constraint, std::function<void()> done = {});
  Stats stats() const;
  const std::shared_ptr<const Vocabulary>& vocabulary() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace deepinfer::grammar
