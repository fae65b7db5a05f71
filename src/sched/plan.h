// What the scheduler hands to the engine for one step, and what it gets back. Plain data; a Plan object is reused.
//
// The engine executes a plan in this order, on one queue of the device:
//   1. `before`, in list order: copies between blocks, slots and host memory
//   2. model.forward(plan.step), if it has sequences; `beside` is done while it runs, before it reads those blocks
//   3. sampling: for samples[i] draw from its logits rows; the token becomes element i of ops::Role::kFeedback, which
//      the next plan's rows name as -1 - i
// and gives the tokens back with Scheduler::commit. `before` may be all that a plan holds; it must be executed even so.
#pragma once

#include <cstdint>
#include <vector>

#include "model/step.h"

namespace deepinfer::sched {

// A copy of KV memory. Host ids are entries of Scheduler::host(); `offset` is in bytes of the entry's buffer.
struct MemoryOp {
  enum class Kind : uint8_t {
    kCopyBlock,    // block from -> block to: copy on write
    kCopySlot,     // slot from -> slot to: fork
    kSaveWindows,  // slot from, encoder windows of rows [border - (window - 1), border) -> host
    kLoadWindows,  // host -> slot to, the same rows
    kSaveSlot,     // slot from -> host at offset, slot_bytes
    kLoadSlot,     // host at offset -> slot to
    kSaveBlock,    // block from -> host at offset, block_bytes
    kLoadBlock,    // host at offset -> block to
    kSeal,         // all saves to host are listed: host().seal(host) once they have arrived
  };
  Kind kind = Kind::kCopyBlock;
  int32_t from = -1;
  int32_t to = -1;
  int32_t host = -1;
  int32_t border = 0;
  int64_t offset = 0;

  bool operator==(const MemoryOp&) const = default;
};

// One draw. Answers to one prompt share the logits row of the prompt's last token.
struct SampleRow {
  int64_t id = 0;           // sequence
  int32_t logits_row = 0;   // first row among the step's logits
  int32_t rows = 1;         // 1, or 1 + drafts: row k is behind draft k
  int32_t position = 0;     // absolute position of the first token drawn (the noise's place)
  uint32_t sample = 0;      // index among the answers to one prompt
};

struct Plan {
  model::StepPlan step;
  std::vector<MemoryOp> before;
  std::vector<MemoryOp> beside;  // kLoadBlock of pages of which some are on their way (Scheduler::load_state)
  std::vector<SampleRow> samples;

  bool empty() const { return step.sequences.empty() && before.empty(); }
};

// For samples[i]: the drawn token, or with drafts the accepted drafts and the token behind them (1 .. rows tokens).
// Tokens behind one that stops are left out. What comes for a sequence that has ended meanwhile is ignored.
struct SampleResult {
  std::vector<int32_t> tokens;
  bool stop = false;   // the last token ends the sequence: an end token, a stop string
};

struct StepResult {
  std::vector<SampleResult> samples;  // as many as the plan's
  std::vector<int64_t> failed;        // sequences whose rows could not be computed: they end with kFailed, unindexed
};

}  // namespace deepinfer::sched
