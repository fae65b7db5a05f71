// A device without a model: the logits of a row hash its token, its position and the row before it, read through a
// small memory a slot, so that a wrong table or a lost row changes tokens. It can be told to fail.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "engine/executor.h"

namespace deepinfer::engine {

class FakeExecutor : public StepExecutor {
 public:
  // Called before a forward; an error of it is the forward's.
  std::function<Status(const model::StepPlan&)> on_forward;
  // The same for what only shows when the logits are read.
  std::function<Status(const model::StepPlan&)> on_logits;
  // Replaces the logits of a row.
  std::function<void(int64_t id, int position, int32_t token, std::span<float>)> on_row;

  explicit FakeExecutor(int sequences = 8, int vocab = 64) {
    info_.vocab_size = vocab;
    info_.context_max = 512;
    info_.rows_max = 64;
    info_.sequences_max = sequences;
    info_.outputs_max = 64;
    info_.blocks = 64;
    info_.slots = sequences;
    info_.block_bytes = info_.slot_bytes = 8;
    info_.window = 8;
    info_.encoder_layers = 2;
    info_.ring_slots = 256;
    info_.backtrack = 12;
    chains_.assign(static_cast<size_t>(sequences), std::vector<uint64_t>(513, 0));
  }

  const ExecutorInfo& info() const override { return info_; }

  Status copy(std::span<const sched::MemoryOp> ops, kv::HostStore& host) override {
    for (const sched::MemoryOp& op : ops) {
      if (op.kind == sched::MemoryOp::Kind::kCopySlot) chains_[op.to] = chains_[op.from];
      if (op.kind == sched::MemoryOp::Kind::kSeal) host.seal(op.host);
    }
    return Status();
  }

  Status forward(const model::StepPlan& plan) override {
    if (on_forward) {
      Status status = on_forward(plan);
      if (!status.ok()) return status;
    }
    rows_.clear();
    for (const model::StepSequence& s : plan.sequences) {
      std::vector<uint64_t>& chain = chains_[static_cast<size_t>(s.slot)];
      for (int k = 0; k < s.count; ++k) {
        const int at = s.first_position + k;
        const int32_t token = plan.tokens[static_cast<size_t>(s.first_token + k)];
        uint64_t h = at == 0 ? 1 : chain[static_cast<size_t>(at) - 1];
        h = (h + static_cast<uint64_t>(token) + 1) * 0x9e3779b97f4a7c15;
        h ^= h >> 29;
        chain[static_cast<size_t>(at)] = h;
        if (k >= s.count - s.outputs) add_row(s.id, at, token, h);
      }
    }
    if (on_logits) failure_ = on_logits(plan);
    return Status();
  }

  Result<std::span<const float>> logits(int rows) override {
    if (!failure_.ok()) return std::exchange(failure_, Status());
    return std::span<const float>(rows_).first(static_cast<size_t>(rows) * static_cast<size_t>(info_.vocab_size));
  }

  ExecutorInfo& sizes() { return info_; }

 private:
  void add_row(int64_t id, int position, int32_t token, uint64_t h) {
    const size_t first = rows_.size();
    for (int t = 0; t < info_.vocab_size; ++t) {
      h = h * 6364136223846793005 + 1442695040888963407;
      rows_.push_back(static_cast<float>(h >> 40) / static_cast<float>(1 << 22));
    }
    if (on_row) on_row(id, position, token, std::span<float>(rows_).subspan(first));
  }

  ExecutorInfo info_;
  std::vector<std::vector<uint64_t>> chains_;
  std::vector<float> rows_;
  Status failure_;
};

}  // namespace deepinfer::engine
