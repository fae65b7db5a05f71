#include "grammar/limits.h"

#include <ctime>

namespace deepinfer::grammar {
namespace {

constexpr uint64_t kStepsBetweenChecks = 256;

int64_t thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

Budget::Budget(const Limits& limits)
    : limits_(limits),
      until_check_(kStepsBetweenChecks),
      deadline_ns_(thread_cpu_ns() + int64_t{limits.compile_ms} * 1'000'000) {}

Status Budget::spend(uint64_t steps) {
  if (steps < until_check_) {
    until_check_ -= steps;
    return {};
  }
  return check();
}

Status Budget::check() {
  until_check_ = 0;  // a budget that failed once fails again
  if (limits_.cancel != nullptr && limits_.cancel->load(std::memory_order_relaxed)) {
    return make_error(Code::kCancelled, "the compile was cancelled");
  }
  if (limits_.compile_ms != 0 && thread_cpu_ns() >= deadline_ns_) {
    return make_error(Code::kDeadlineExceeded,
                      "the constraint took more than {} ms of CPU time to compile (limit compile_ms); make it smaller "
                      "or raise the limit",
                      limits_.compile_ms);
  }
  until_check_ = kStepsBetweenChecks;
  return {};
}

}  // namespace deepinfer::grammar
