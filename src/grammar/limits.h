// What compiling and running a grammar may cost. Every limit has a name here, and an error says which one was reached.
//
//   Limits limits;
//   limits.compile_ms = 500;
//   Budget budget(limits);
//   // counts steps; looks at the clock and at `cancel` now and then
//   while (more) { DI_RETURN_IF_ERROR(budget.spend(1)); ... }
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace deepinfer::grammar {

struct Limits {
  // CPU time of one compile, so that a busy machine refuses nothing more; 0: no bound
  uint32_t compile_ms = 2000;
  uint32_t expressions_max = 2'000'000;        // expressions of the grammar form that a source may turn into
  uint32_t source_bytes_max = 10 << 20;        // schema, regex or grammar text
  uint32_t nesting_max = 1000;                 // depth of schemas and sub-schemas
  uint32_t groups_max = 250;                   // depth of groups in a regular expression or grammar
  uint64_t memory_bytes_max = 256ull << 20;    // automaton states of one compiled grammar, grown while it is used
  uint32_t request_stack_max = 65'536;         // depth of nesting in one output
  uint32_t request_items_max = 65'536;         // readings of an ambiguous output that are followed at once
  uint64_t request_work_max = 1'000'000;       // items looked at for one mask or one token (20 to 60 ns each)
  uint32_t unique_items_max = 4'096;           // items of one array with uniqueItems, which are remembered
  uint32_t unique_item_bytes_max = 65'536;     // of one such item
  const std::atomic<bool>* cancel = nullptr;   // set by another thread to give up the compile; must outlive it
};

// Counts the work of one compile against its limits. Belongs to the thread that made it.
class Budget {
 public:
  explicit Budget(const Limits& limits);
  // Adds `steps` (about a microsecond of work each, at most). Fails when the time is over or the compile was cancelled,
  // and goes on failing then.
  Status spend(uint64_t steps);
  // Looks at the clock now: between pieces of work of some milliseconds.
  Status look() { return check(); }
  const Limits& limits() const { return limits_; }

 private:
  Status check();

  Limits limits_;
  uint64_t until_check_ = 0;
  int64_t deadline_ns_;  // on the thread's CPU clock
};

}  // namespace deepinfer::grammar
