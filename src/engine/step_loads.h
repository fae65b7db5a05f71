// Pages of lower tiers that a running step waits for (Plan::beside; internal to engine/).
//
//   loads.begin(plan.beside, scheduler.host(), info.block_bytes, &bring);    // before the step runs
//   if (loads.wait()) for (const StepLoads::Page& p : loads.pages()) ...     // while it runs: behind wait() they stay
//
// The first wait() calls `bring`, which brings the pages to host memory and says whether all are there. If not, their
// bytes may never be read and what the step computes does not count. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/host_store.h"
#include "sched/plan.h"

namespace deepinfer::engine {

class StepLoads {
 public:
  struct Page {
    int32_t block = 0;
    std::span<const std::byte> bytes;
  };

  void begin(std::span<const sched::MemoryOp> beside, const kv::HostStore& host, size_t page_bytes,
             const std::function<bool()>* bring) {
    pages_.clear();
    for (const sched::MemoryOp& op : beside)
      pages_.push_back({op.to, host.buffer(op.host).subspan(static_cast<size_t>(op.offset), page_bytes)});
    bring_ = bring;
    state_ = State::kAsked;
  }
  bool empty() const { return pages_.empty(); }
  std::span<const Page> pages() const { return pages_; }

  bool wait() {
    if (state_ == State::kAsked) state_ = (*bring_)() ? State::kHere : State::kLost;
    return state_ == State::kHere;
  }
  bool lost() const { return state_ == State::kLost; }

 private:
  enum class State : uint8_t { kAsked, kHere, kLost };
  std::vector<Page> pages_;
  const std::function<bool()>* bring_ = nullptr;
  State state_ = State::kAsked;
};

}  // namespace deepinfer::engine
