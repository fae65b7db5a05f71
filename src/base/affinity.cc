#include "base/affinity.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

namespace deepinfer {
namespace {

constexpr int kMaxNodes = 64;
constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of the kernel's interface

// The nodes of a list as "0-1,3", a bit each.
uint64_t online_nodes() {
  std::FILE* f = std::fopen("/sys/devices/system/node/online", "r");
  if (f == nullptr) return 1;
  uint64_t nodes = 0;
  for (int first = 0; std::fscanf(f, "%d", &first) == 1;) {
    int last = first, c = std::fgetc(f);
    if (c == '-' && std::fscanf(f, "%d", &last) == 1) c = std::fgetc(f);
    for (int n = first; n >= 0 && n <= last && n < kMaxNodes; ++n) nodes |= uint64_t{1} << n;
    if (c != ',') break;
  }
  std::fclose(f);
  return nodes;
}

// The kernel's sched_attr as far as it is used here (its first version); not every C library declares it.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr), policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;  // runtime: of SCHED_OTHER, the slice in ns
};

bool set_scheduling(const SchedAttr& a) { return ::syscall(SYS_sched_setattr, 0, &a, 0) == 0; }

}  // namespace

bool run_soon_after_waking() {
  SchedAttr a;
  a.runtime = 100'000;  // the shortest that the kernel gives
  a.nice = -10;
  if (set_scheduling(a)) return true;
  a.nice = ::getpriority(PRIO_PROCESS, 0);
  return set_scheduling(a);
}

bool pin_to_core(int place) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (place < 0 || ::sched_getaffinity(::getpid(), sizeof(all), &all) != 0 || CPU_COUNT(&all) == 0) return false;
  place %= CPU_COUNT(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &all) || place-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return ::sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  return false;
}

int current_core() { return ::sched_getcpu(); }

bool leave_core(int core) {
  cpu_set_t all;
  CPU_ZERO(&all);
  if (core < 0 || core >= CPU_SETSIZE || ::sched_getcpu() != core || ::sched_getaffinity(0, sizeof(all), &all) != 0)
    return false;
  cpu_set_t others = all;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof(others), &others) != 0) return false;
  return ::sched_setaffinity(0, sizeof(all), &all) == 0;
}

bool interleave(void* data, size_t bytes) {
  const uint64_t nodes = online_nodes();
  if (bytes == 0 || (nodes & (nodes - 1)) == 0) return false;
  return ::syscall(SYS_mbind, data, bytes, kInterleave, &nodes, kMaxNodes + 1, 0) == 0;
}

}  // namespace deepinfer
