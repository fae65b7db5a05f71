#include "grammar/limits.h"

namespace deepinfer::grammar {
namespace {

constexpr uint64_t kStepsBetweenChecks = 256;

}  // namespace

Budget::Budget(const Limits& limits)
    : limits_(limits),
      until_check_(kStepsBetweenChecks),
      deadline_(std::chrono::steady_clock::now() + std::chrono::milliseconds(limits.compile_ms)) {}

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
  if (limits_.compile_ms != 0 && std::chrono::steady_clock::now() >= deadline_) {
    return make_error(Code::kDeadlineExceeded,
                      "the constraint took more than {} ms to compile (limit compile_ms); make it smaller or raise the limit",
                      limits_.compile_ms);
  }
  until_check_ = kStepsBetweenChecks;
  return {};
}

}  // namespace deepinfer::grammar
