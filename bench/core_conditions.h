// What a machine gives two threads that meet every few microseconds: shared with other work it gives far less, and a
// figure tells little without it. Linux.
//
//   const bench::CoreConditions c = bench::core_conditions();    // half a second, on cores of the system's choice
//   const double before = bench::seconds_not_run();              // of all threads of this process, up to now
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench.h"

namespace bench {

struct CoreConditions {
  double round_trip_ns = 0;  // of a cache line between two threads, of many lines: some lie farther off than others
  double two_over_one = 0;   // sums that depend on nothing, of two threads over one: 1 where they share a core
};

// Seconds that threads of this process were ready and somebody else ran on their core.
inline double seconds_not_run() {
  double sum = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::FILE* f = std::fopen((task.path() / "schedstat").c_str(), "r");
    if (f == nullptr) continue;
    double ran = 0, waited = 0;
    if (std::fscanf(f, "%lf %lf", &ran, &waited) == 2) sum += waited * 1e-9;
    std::fclose(f);
  }
  return sum;
}

// Seconds that the host gave the cores of this machine to others (time stolen), of all cores.
inline double seconds_stolen() {
  double stolen = 0;
  if (std::FILE* f = std::fopen("/proc/stat", "r")) {
    if (std::fscanf(f, "cpu %*f %*f %*f %*f %*f %*f %*f %lf", &stolen) != 1) stolen = 0;
    std::fclose(f);
  }
  constexpr double kTick = 0.01;
  return stolen * kTick;
}

inline void independent_sums(int64_t n) {
  float a[16] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (float& v : a) v += 1.5f;
    asm volatile("" : "+m"(a));
  }
}

// Spins; a thread that shares its core with who keeps it waiting makes room for that one.
template <class Ready>
void spin_until(Ready ready) {
  constexpr int kPatience = 10000;
  for (int n = 0; !ready(); ++n) {
    if (n > kPatience) std::this_thread::yield();
  }
}

inline CoreConditions core_conditions() {
  constexpr int kTurns = 50;
  constexpr unsigned kTrips = 200;
  constexpr int64_t kSums = 200000;
  struct alignas(128) Line {
    std::atomic<unsigned> n{0};
  };
  std::vector<Line> lines(3 * kTurns);
  std::vector<double> trips, shares;
  for (int turn = 0; turn < kTurns; ++turn) {
    Line &there = lines[3 * turn], &back = lines[3 * turn + 1], &ready = lines[3 * turn + 2];
    std::thread t([&] {
      for (unsigned i = 1; i <= kTrips; ++i) {
        spin_until([&] { return there.n.load(std::memory_order_acquire) >= i; });
        back.n.store(i, std::memory_order_release);
      }
      ready.n.fetch_add(1);
      spin_until([&] { return ready.n.load() >= 2; });
      independent_sums(kSums);
      ready.n.fetch_add(1);
    });
    double begin = 0;
    for (unsigned i = 1; i <= kTrips; ++i) {
      if (i == kTrips / 2) begin = wall_seconds();
      there.n.store(i, std::memory_order_release);
      spin_until([&] { return back.n.load(std::memory_order_acquire) >= i; });
    }
    trips.push_back((wall_seconds() - begin) / (kTrips / 2 + 1) * 1e9);
    ready.n.fetch_add(1);
    spin_until([&] { return ready.n.load() >= 2; });
    begin = wall_seconds();
    independent_sums(kSums);
    spin_until([&] { return ready.n.load() >= 3; });
    const double both_s = wall_seconds() - begin;
    t.join();
    begin = wall_seconds();
    independent_sums(kSums);
    shares.push_back(2 * (wall_seconds() - begin) / both_s);
  }
  return {median(trips), median(shares)};
}

}  // namespace bench
