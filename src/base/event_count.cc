#include "base/event_count.h"

#include <climits>
#include <cmath>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace deepinfer {
namespace {

constexpr int kLooks = 2000;

static_assert(sizeof(std::atomic<int>) == sizeof(int), "the kernel looks at the number itself");

}  // namespace

// Both orders are sequentially consistent: either the sleeper sees the new count or this sees the sleeper.
void EventCount::add() {
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0)
    ::syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void EventCount::wait(int seen) {
  for (int i = 0; i < kLooks; ++i) {
    if (count() != seen) return;
    __builtin_ia32_pause();
  }
  while (count() == seen) sleep(seen, INFINITY);
}

void EventCount::sleep(int seen, double seconds) {
  timespec time = {};
  const bool timed = seconds < 1e9;
  if (timed) {
    if (seconds <= 0) return;
    time.tv_sec = static_cast<time_t>(seconds);
    time.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, timed ? &time : nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace deepinfer
