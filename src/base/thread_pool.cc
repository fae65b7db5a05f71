#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

#include "base/cpu_quota.h"

namespace deepinfer {
namespace {

constexpr int kThreadsMax = 4096;  // so that the chunks of a loop fit a ticket
constexpr int kSpinsIdle = 2000;   // looks at the clock of work; about 50 us
constexpr int kSpinsDone = 20000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// A loop is cut into chunks. `ticket` holds the loop's number, how many chunks it has and the next one, so that taking
// a chunk proves that the loop is still the one whose fields were read: it cannot end before every chunk has been done.
struct Ticket {
  uint32_t loop = 0;
  uint16_t chunks = 0, next = 0;

  uint64_t packed() const { return uint64_t{loop} << 32 | uint64_t{chunks} << 16 | next; }
  static Ticket of(uint64_t t) {
    return {static_cast<uint32_t>(t >> 32), static_cast<uint16_t>(t >> 16), static_cast<uint16_t>(t)};
  }
};

// A piece of work and how far it is; the number of the piece proves that the fields are its own.
struct alignas(64) SidePlace {
  enum Phase : uint64_t { kWaits, kRuns, kDone };
  std::atomic<uint64_t> state{kDone};  // number << 2 | phase
  ThreadPool::Side side;
};

}  // namespace

struct ThreadPool::Impl {
  using Body = std::function<void(int64_t, int64_t)>;

  std::vector<std::thread> workers;
  int spins = 0;

  alignas(64) std::atomic<uint64_t> ticket{0};
  std::atomic<const Body*> body{nullptr};
  std::atomic<int64_t> n{0}, chunk{1};
  alignas(64) std::atomic<uint32_t> done{0};
  alignas(64) std::atomic<uint32_t> signal{0};  // counts loops; what sleeping workers wait on
  std::atomic<int> sleepers{0};
  std::atomic<bool> waking{false};  // those that sleep have been told, and not one has come yet
  std::atomic<bool> stop{false};
  SidePlace sides[kSidesMax];
  uint64_t sides_started = 0;
  alignas(64) std::atomic<uint32_t> side_waiters{0};
  std::atomic<uint32_t> sides_done{0};  // counted while somebody waits

  SidePlace& place_of(uint64_t id) { return sides[id % kSidesMax]; }

  // Runs piece `id` unless another thread has taken it.
  bool take_side(uint64_t id) {
    SidePlace& p = place_of(id);
    uint64_t waits = id << 2 | SidePlace::kWaits;
    if (!p.state.compare_exchange_strong(waits, id << 2 | SidePlace::kRuns, std::memory_order_acquire)) return false;
    p.side.run(p.side.self, p.side.argument);
    p.state.store(id << 2 | SidePlace::kDone, std::memory_order_seq_cst);
    if (side_waiters.load(std::memory_order_seq_cst) > 0) {
      sides_done.fetch_add(1, std::memory_order_seq_cst);
      sides_done.notify_all();
    }
    return true;
  }

  // Whether piece `next`, or one after it, has been started.
  bool side_started(uint64_t next) { return place_of(next).state.load(std::memory_order_seq_cst) >> 2 >= next; }

  // A worker has looked at all pieces before `next`. Takes that one if it waits; returns the next one to look at.
  uint64_t pass_side(uint64_t next) {
    const uint64_t id = place_of(next).state.load(std::memory_order_acquire) >> 2;
    if (id == next) take_side(id);
    return id == next ? id + 1 : id + 1 - kSidesMax;  // older ones than that are done
  }

  // Works on the loop in progress until no chunk of it is left.
  void run_chunks() {
    for (uint64_t t = ticket.load(std::memory_order_acquire);;) {
      const Ticket now = Ticket::of(t);
      if (now.next >= now.chunks) return;
      const Body* b = body.load(std::memory_order_relaxed);
      const int64_t items = n.load(std::memory_order_relaxed), size = chunk.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(t, t + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      (*b)(now.next * size, std::min(items, (now.next + 1) * size));
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == now.chunks) done.notify_one();
      t = ticket.load(std::memory_order_acquire);
    }
  }

  void worker() {
    uint32_t seen = 0;
    uint64_t side = 1;
    for (;;) {
      uint32_t now = signal.load(std::memory_order_acquire);
      bool started = side_started(side);
      for (int i = 0; now == seen && !started && i < spins; ++i) {
        relax();
        now = signal.load(std::memory_order_acquire);
        started = side_started(side);
      }
      if (started) {
        side = pass_side(side);
        continue;
      }
      if (now == seen) {
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        waking.store(false, std::memory_order_seq_cst);  // it may have been told after it had come
        if (!side_started(side)) signal.wait(seen, std::memory_order_seq_cst);
        sleepers.fetch_sub(1, std::memory_order_seq_cst);
        waking.store(false, std::memory_order_seq_cst);
        continue;
      }
      if (stop.load(std::memory_order_acquire)) return;
      seen = now;
      run_chunks();
    }
  }

  void wake() {
    signal.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) signal.notify_all();
  }
};

ThreadPool::ThreadPool(int threads, Idle idle) : impl_(std::make_unique<Impl>()) {
  threads = std::min(threads, kThreadsMax);
  if (idle == Idle::kSpin && threads <= available_cores()) impl_->spins = kSpinsIdle;
  for (int i = 1; i < threads; ++i) impl_->workers.emplace_back([impl = impl_.get()] { impl->worker(); });
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_release);
  impl_->wake();
  for (std::thread& t : impl_->workers) t.join();
}

uint64_t ThreadPool::start(const Side& side) {
  Impl& m = *impl_;
  const uint64_t id = ++m.sides_started;
  if (id > kSidesMax) finish(id - kSidesMax);
  SidePlace& p = m.place_of(id);
  p.side = side;
  // Not ordered with the look at the sleepers: one that misses both leaves the piece to finish().
  p.state.store(id << 2 | SidePlace::kWaits, std::memory_order_release);
  if (m.sleepers.load(std::memory_order_relaxed) > 0 && !m.waking.exchange(true, std::memory_order_seq_cst)) m.wake();
  return id;
}

void ThreadPool::finish(uint64_t id) {
  if (id == 0) return;
  Impl& m = *impl_;
  const std::atomic<uint64_t>& state = m.place_of(id).state;
  const uint64_t done = id << 2 | SidePlace::kDone;
  if (state.load(std::memory_order_acquire) >= done || m.take_side(id)) return;
  for (int i = 0; i < kSpinsDone; ++i) {
    if (state.load(std::memory_order_acquire) >= done) return;
    relax();
  }
  m.side_waiters.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t seen = m.sides_done.load(std::memory_order_seq_cst);
    if (state.load(std::memory_order_seq_cst) >= done) break;
    m.sides_done.wait(seen, std::memory_order_seq_cst);
  }
  m.side_waiters.fetch_sub(1, std::memory_order_seq_cst);
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t, int64_t)>& body, int64_t grain) {
  if (n <= 0) return;
  const int64_t total = threads();
  grain = std::max<int64_t>(grain, 1);
  if (total == 1 || n <= grain) {
    body(0, n);
    return;
  }
  Impl& m = *impl_;
  // Four ranges a thread even out unequal rows without making the shared counter hot.
  const int64_t size = std::max(grain, (n + 4 * total - 1) / (4 * total));
  const auto chunks = static_cast<uint32_t>((n + size - 1) / size);
  if (total == 2 && chunks == 2) {  // one each: the sooner begun
    struct Half {
      const std::function<void(int64_t, int64_t)>* body;
      int64_t begin, end;
    } half{&body, size, n};
    const auto run = [](void* self, int64_t) {
      const auto* h = static_cast<const Half*>(self);
      (*h->body)(h->begin, h->end);
    };
    const uint64_t other = start({run, &half});
    body(0, size);
    return finish(other);
  }
  m.body.store(&body, std::memory_order_relaxed);
  m.n.store(n, std::memory_order_relaxed);
  m.chunk.store(size, std::memory_order_relaxed);
  m.done.store(0, std::memory_order_relaxed);
  const uint32_t loop = Ticket::of(m.ticket.load(std::memory_order_relaxed)).loop + 1;
  m.ticket.store(Ticket{loop, static_cast<uint16_t>(chunks), 0}.packed(), std::memory_order_release);
  m.wake();
  m.run_chunks();
  uint32_t done = m.done.load(std::memory_order_acquire);
  for (int i = 0; done < chunks && i < kSpinsDone; ++i) {
    relax();
    done = m.done.load(std::memory_order_acquire);
  }
  while (done < chunks) {
    m.done.wait(done, std::memory_order_acquire);
    done = m.done.load(std::memory_order_acquire);
  }
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                             : static_cast<int>(std::thread::hardware_concurrency());
  std::ifstream in("/proc/self/cgroup");
  const std::string self(std::istreambuf_iterator<char>(in), {});
  if (const double quota = std::ceil(quota_cores("/sys/fs/cgroup", self)); quota < cores)
    cores = static_cast<int>(quota);
  return std::max(cores, 1);
}

}  // namespace deepinfer
