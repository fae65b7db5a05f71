#include "ops/cpu/peak.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "ops/cpu/fast/kernels.h"

namespace deepinfer::ops {
namespace {

constexpr int64_t kRows = 6, kPairs = 128, kLanes = 64;
constexpr double kFlops = 2.0 * kRows * kPairs * 2 * kLanes;  // of a call
constexpr auto kWindow = std::chrono::milliseconds(20);

double cpu_seconds() {
  timespec t = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

double measure_peak_flops(int threads) {
  using Clock = std::chrono::steady_clock;
  const cpu::fast::Kernels* kernels = cpu::fast::choose_kernels("");
  if (kernels == nullptr) return 0;
  threads = std::max(threads, 1);
  std::atomic<double> flops{0};
  std::atomic<int> ready{0};
  const auto work = [&] {
    const std::vector<uint32_t> a(kRows * kPairs, 0x3f803f80), b(kPairs * kLanes, 0x3f803f80);  // pairs of ones
    std::vector<float> c(kRows * kLanes);
    ++ready;
    while (ready < threads) std::this_thread::yield();
    double done = 0;
    const double begin = cpu_seconds();
    for (const auto end = Clock::now() + kWindow; Clock::now() < end; done += 16) {
      for (int i = 0; i < 16; ++i) {
        kernels->outer({a.data(), kPairs, 1, b.data(), kLanes, kRows, kPairs, kLanes, c.data(), kLanes});
      }
    }
    flops += kFlops * done / (cpu_seconds() - begin);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  return flops;
}

}  // namespace deepinfer::ops
