// Planning and committing decode steps allocates nothing.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/sched/driver.h"

static std::atomic<int64_t> g_allocations{0};

[[gnu::noinline]] void* operator new(size_t n) {
  ++g_allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept {
  ++g_allocations;
  return std::malloc(n);
}
[[gnu::noinline]] void* operator new(size_t n, std::align_val_t alignment) {
  ++g_allocations;
  const auto unit = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (n + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace deepinfer::sched {
namespace {

TEST(Allocation, NoneInADecodeStep) {
  SchedulerConfig c = small_config();
  c.blocks = 400;
  c.context_max = 2000;
  Driver d(c);
  for (int i = 0; i < 8; ++i) d.submit({.prompt = prompt_of(20, 30 * i), .max_tokens = 600});  // four run, four wait
  StepResult results[2];
  for (StepResult& r : results) {
    r.samples.resize(4);
    for (SampleResult& s : r.samples) s.tokens.assign(1, 5);
  }
  for (int i = 0; i < 3; ++i) d.step();
  d.s->plan(10);
  int64_t allocations = 0;
  for (int i = 0; i < 400; ++i) {  // across many block borders
    const int64_t before = g_allocations;
    const Plan& p = d.s->plan(11 + i);
    d.s->commit(results[i % 2], 11 + i);
    allocations += g_allocations - before;
    ASSERT_EQ(p.step.sequences.size(), 4u);
    ASSERT_EQ(p.step.tokens.size(), 4u);
  }
  EXPECT_EQ(allocations, 0);
  d.s->commit(results[0], 500);
  d.drain();
}

}  // namespace
}  // namespace deepinfer::sched
