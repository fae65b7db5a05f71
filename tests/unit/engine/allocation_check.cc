// A decode step allocates nothing, takes no lock and writes nothing, on one or both of the engine's threads, whatever
// the sampling and however its readers wait.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "engine/engine.h"
#include "tests/unit/engine/fake_executor.h"

namespace {

thread_local bool t_counted = false;  // a thread of the engine, in the steps that count
std::atomic<int64_t> g_allocations{0}, g_locks{0}, g_writes{0};

}  // namespace

[[gnu::noinline]] void* operator new(size_t n) {
  if (t_counted) ++g_allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept {
  if (t_counted) ++g_allocations;
  return std::malloc(n);
}
[[gnu::noinline]] void* operator new(size_t n, std::align_val_t alignment) {
  if (t_counted) ++g_allocations;
  const auto unit = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (n + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto real = reinterpret_cast<int (*)(pthread_mutex_t*)>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  if (t_counted) ++g_locks;
  return real(mutex);
}

extern "C" ssize_t write(int fd, const void* data, size_t n) {
  static const auto real = reinterpret_cast<ssize_t (*)(int, const void*, size_t)>(::dlsym(RTLD_NEXT, "write"));
  if (t_counted) ++g_writes;
  return real(fd, data, n);
}

namespace deepinfer::engine {
namespace {

constexpr int kTokens = 400, kFirst = 60, kLast = 360;

struct CountEngineThread : StepObserver {
  explicit CountEngineThread(const std::atomic<bool>& on) : on(on) {}
  void on_step(const StepRecord&) override { t_counted = on; }
  void on_commit(double, double) override { t_counted = on; }
  const std::atomic<bool>& on;
};

// Answers of every kind of sampling; `wait`: readers sleep for each event, else they are told of them.
void run(bool wait, bool leaves_cores) {
  std::atomic<bool> on{false};
  std::atomic<int> steps{0};
  auto executor = std::make_unique<FakeExecutor>(8, 512);
  FakeExecutor* device = executor.get();
  device->sizes().leaves_cores = leaves_cores;
  device->on_forward = [&](const model::StepPlan&) {
    t_counted = false;
    const int step = ++steps;
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // readers fall asleep
    on = step >= kFirst && step < kLast;
    t_counted = on;
    return Status();
  };
  EngineOptions options;
  options.observer = std::make_shared<CountEngineThread>(on);
  options.prefix_cache = options.spill = false;
  options.queue_events = kTokens + 8;
  auto engine = Engine::create(std::move(executor), std::nullopt, options).value();
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 8; ++i) {
    Request r;
    r.prompt = {3 + i, 4, 5};
    r.max_tokens = kTokens;
    r.ignore_end = true;
    r.seed = static_cast<uint64_t>(i);
    r.sampling.temperature = i == 0 ? 0 : 0.8;
    if (i % 2 == 1) r.sampling.top_p = 0.9;
    if (i == 2) r.sampling.top_k = 20;
    if (i == 3) r.sampling.min_p = 0.01;
    if (i > 3) r.sampling.frequency_penalty = 0.1f;
    if (i == 5) r.allowed_tokens = {1, 2, 3, 7, 9, 11, 200};
    if (i == 6) r.sampling.logit_bias = {{7, 3.0f}};
    if (i == 7) {
      r.logprobs = true;
      r.min_tokens = 300;
    }
    streams.push_back(engine->submit(r).value());
  }
  g_allocations = g_locks = g_writes = 0;
  std::vector<std::thread> readers;
  for (auto& s : streams) {
    readers.emplace_back([&s, wait] {
      std::atomic<int> told{0};
      if (!wait) s->on_events([&] { ++told; });
      Event e;
      while (wait ? s->next(&e) : !s->done()) {
        while (!wait && s->try_next(&e)) {
        }
        if (!wait) std::this_thread::yield();
      }
      s->on_events(nullptr);
    });
  }
  for (std::thread& t : readers) t.join();
  EXPECT_GE(steps, kLast);
  EXPECT_EQ(g_allocations, 0);
  EXPECT_EQ(g_locks, 0);
  EXPECT_EQ(g_writes, 0);
}

TEST(DecodeStep, AllocatesLocksAndWritesNothing) {
  for (const bool leaves_cores : {false, true}) {
    run(true, leaves_cores);
    run(false, leaves_cores);
  }
}

// The counters do count.
TEST(DecodeStep, CountersWork) {
  g_allocations = g_locks = g_writes = 0;
  t_counted = true;
  std::mutex m;
  { const std::lock_guard<std::mutex> lock(m); }
  ::operator delete(::operator new(4));
  constexpr std::align_val_t kLine{64};  // as kv/record_bytes.h
  ::operator delete(::operator new(4, kLine), kLine);
  EXPECT_EQ(::write(STDERR_FILENO, "", 0), 0);
  t_counted = false;
  EXPECT_EQ(g_allocations, 2);
  EXPECT_EQ(g_locks, 1);
  EXPECT_EQ(g_writes, 1);
}

}  // namespace
}  // namespace deepinfer::engine
