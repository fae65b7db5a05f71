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
    beside_ = beside;
    host_ = &host;
    page_bytes_ = page_bytes;
    bring_ = bring;
    state_ = State::kAsked;
  }
  bool empty() const { return beside_.empty(); }
  std::span<const Page> pages() const { return pages_; }

  bool wait() {
    if (state_ == State::kAsked) state_ = (*bring_)() && find_pages() ? State::kHere : State::kLost;
    return state_ == State::kHere;
  }
  bool lost() const { return state_ == State::kLost; }

 private:
  enum class State : uint8_t { kAsked, kHere, kLost };

  // Where they are is known once they have come.
  bool find_pages() {
    for (const sched::MemoryOp& op : beside_) {
      pages_.push_back({op.to, host_->part(op.host, static_cast<size_t>(op.offset), page_bytes_)});
      if (pages_.back().bytes.size() != page_bytes_) return false;
    }
    return true;
  }

  std::span<const sched::MemoryOp> beside_;  // of the plan, which outlives the step
  const kv::HostStore* host_ = nullptr;
  size_t page_bytes_ = 0;
  std::vector<Page> pages_;
  const std::function<bool()>* bring_ = nullptr;
  State state_ = State::kAsked;
};

}  // namespace deepinfer::engine
