#include "tests/sim/fake_engine.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace deepinfer::sim {

using sched::MemoryOp;

FakeEngine::FakeEngine(const FakeShape& shape, sched::Scheduler& scheduler, const sched::SchedulerConfig& config,
                       FakeFaults faults)
    : shape_(shape),
      config_(config),
      faults_(faults),
      scheduler_(scheduler),
      memory_(shape, config.blocks, config.slots) {
  scheduler.blocks().on_free([this](int b) { freed_blocks_.push_back(b); });
  scheduler.slots().on_free([this](int s) { freed_slots_.push_back(s); });
}

void FakeEngine::error(const std::string& what) {
  if (errors.size() < 2000) errors += what + "\n";
}

std::span<uint64_t> FakeEngine::host_words(const MemoryOp& op, size_t words) {
  const std::span<std::byte> bytes = scheduler_.host().buffer(op.host);
  if (op.offset + words * 8 > bytes.size()) {
    error(fmt::format("copy of {} bytes at {} goes beyond a host entry of {}", words * 8, op.offset, bytes.size()));
    return {};
  }
  return {reinterpret_cast<uint64_t*>(bytes.data() + op.offset), words};
}

void FakeEngine::copy(const MemoryOp& op, std::mt19937_64& rng) {
  const auto move = [](std::span<const uint64_t> from, std::span<uint64_t> to) {
    if (from.size() == to.size()) std::ranges::copy(from, to.begin());
  };
  switch (op.kind) {
    case MemoryOp::Kind::kCopyBlock: return move(memory_.block(op.from), memory_.block(op.to));
    case MemoryOp::Kind::kCopySlot: return move(memory_.slot(op.from), memory_.slot(op.to));
    case MemoryOp::Kind::kSaveSlot: return move(memory_.slot(op.from), host_words(op, memory_.slot_words()));
    case MemoryOp::Kind::kLoadSlot: return move(host_words(op, memory_.slot_words()), memory_.slot(op.to));
    case MemoryOp::Kind::kSaveBlock: return move(memory_.block(op.from), host_words(op, shape_.block_tokens));
    case MemoryOp::Kind::kLoadBlock: {
      const size_t bytes = memory_.block(op.to).size_bytes();
      const std::span<const std::byte> page = scheduler_.host().part(op.host, static_cast<size_t>(op.offset), bytes);
      if (page.size() != bytes) return error("a block is loaded that is not in host memory");
      std::memcpy(memory_.block(op.to).data(), page.data(), bytes);
      return;
    }
    case MemoryOp::Kind::kSaveWindows:
      return memory_.save_windows(op.from, op.border, host_words(op, memory_.windows_words()));
    case MemoryOp::Kind::kLoadWindows:
      return memory_.load_windows(op.to, op.border, host_words(op, memory_.windows_words()));
    case MemoryOp::Kind::kSeal: break;
  }
  scheduler_.host().seal(op.host);
  const std::span<std::byte> bytes = scheduler_.host().buffer(op.host);
  if (!bytes.empty() && std::uniform_real_distribution<>(0, 1)(rng) < faults_.flip)
    bytes[rng() % bytes.size()] ^= std::byte{16};
}

void FakeEngine::check(const sched::Plan& plan) {
  const model::StepPlan& step = plan.step;
  std::set<int> slots, written;
  int outputs = 0;
  for (const model::StepSequence& s : step.sequences) {
    const int end = s.first_position + s.count;
    outputs += s.outputs;
    // Forks made by this very plan share the blocks of its rows until they write.
    const auto holders_max =
        std::max<int64_t>(1, std::ranges::count(plan.samples, outputs - 1, &sched::SampleRow::logits_row));
    if (!slots.insert(s.slot).second || scheduler_.slots().holders(s.slot) != 1)
      error(fmt::format("sequence {}: slot {} is not its own", s.id, s.slot));
    if (s.count < 1 || end > config_.context_max)
      error(fmt::format("sequence {}: rows {} to {}", s.id, s.first_position, end));
    if (s.block_count * shape_.block_tokens < end) error(fmt::format("sequence {}: too few blocks", s.id));
    if (s.outputs > 0 && end - s.outputs < s.decoder_begin)
      error(fmt::format("sequence {}: logits below decoder_begin", s.id));
    if (s.window_begin > s.first_position || s.cached % shape_.block_tokens != 0)
      error(fmt::format("sequence {}: window or cache borders", s.id));
    for (int at = std::max(s.first_position, s.cached) / shape_.block_tokens;
         std::max(s.first_position, s.cached) < end && at <= (end - 1) / shape_.block_tokens; ++at) {
      const int b = step.blocks[s.first_block + at];
      if (!written.insert(b).second || scheduler_.blocks().holders(b) > holders_max)
        error(fmt::format("sequence {}: writes block {}, which is not its own", s.id, b));
    }
  }
  const auto rows = static_cast<int>(step.tokens.size());
  if (rows > config_.rows_max || static_cast<int>(step.sequences.size()) > config_.sequences_max ||
      outputs > config_.outputs_max) {
    error(fmt::format("step of {} rows, {} sequences, {} logits rows is over a limit", rows, step.sequences.size(),
                      outputs));
  }
  if (config_.blocks_per_step_max > 0 && static_cast<int>(step.blocks.size()) > config_.blocks_per_step_max)
    error("too many block ids in a step");
  if (step.history.size() != step.sequences.size() * shape_.history) error("history does not fit");
  if (static_cast<int>(plan.samples.size()) > config_.outputs_max) error("more draws than outputs_max");
}

void FakeEngine::digest(const sched::Plan& plan) {
  const auto add = [this](uint64_t v) { plans_digest = mix(plans_digest, v); };
  for (const MemoryOp& op : plan.before) {
    for (int64_t v : {static_cast<int64_t>(op.kind), int64_t{op.from}, int64_t{op.to}, int64_t{op.host},
                      int64_t{op.border}, op.offset})
      add(v);
  }
  for (const model::StepSequence& s : plan.step.sequences) {
    for (int64_t v : {s.id, int64_t{s.slot}, int64_t{s.first_position}, int64_t{s.count}, int64_t{s.outputs},
                      int64_t{s.cached}, int64_t{s.window_begin}})
      add(v);
  }
  for (const auto* list : {&plan.step.tokens, &plan.step.history, &plan.step.blocks}) {
    for (int32_t v : *list) add(static_cast<uint32_t>(v));
  }
  for (const sched::SampleRow& r : plan.samples) {
    for (int64_t v : {r.id, int64_t{r.logits_row}, int64_t{r.rows}, int64_t{r.position}}) add(v);
  }
}

void FakeEngine::run(const sched::Plan& plan, sched::StepResult* result, std::mt19937_64& rng) {
  digest(plan);
  check(plan);
  std::set<int> filled_blocks, filled_slots;
  for (const MemoryOp& op : plan.before) {
    copy(op, rng);
    if (op.kind == MemoryOp::Kind::kCopyBlock || op.kind == MemoryOp::Kind::kLoadBlock) filled_blocks.insert(op.to);
    if (op.kind == MemoryOp::Kind::kCopySlot || op.kind == MemoryOp::Kind::kLoadSlot ||
        op.kind == MemoryOp::Kind::kLoadWindows)
      filled_slots.insert(op.to);
  }
  for (int b : freed_blocks_) {
    if (!filled_blocks.contains(b)) memory_.poison_block(b);
  }
  for (int s : freed_slots_) {
    if (!filled_slots.contains(s)) memory_.poison_slot(s);
  }
  freed_blocks_.clear();
  freed_slots_.clear();

  result->samples.assign(plan.samples.size(), {});
  result->failed.clear();
  logits_.clear();
  row_tokens_.clear();
  row_failed_.clear();
  next_feedback_.assign(plan.samples.size(), -7);
  std::vector<int32_t> before;
  for (size_t i = 0; i < plan.step.sequences.size(); ++i) {
    const model::StepSequence& s = plan.step.sequences[i];
    const std::span<const int32_t> table = std::span(plan.step.blocks).subspan(s.first_block, s.block_count);
    // Tokens before the row, newest first: those of the plan, then the step's own rows in front of them.
    before.assign(plan.step.history.begin() + static_cast<int64_t>(i) * shape_.history,
                  plan.step.history.begin() + static_cast<int64_t>(i + 1) * shape_.history);
    const bool fails = std::uniform_real_distribution<>(0, 1)(rng) < faults_.row_failure;
    if (fails) result->failed.push_back(s.id);
    for (int k = 0; k < s.count; ++k) {
      int32_t token = plan.step.tokens[s.first_token + k];
      if (token < 0) {
        const size_t at = static_cast<size_t>(-1 - token);
        if (at >= feedback_.size())
          error(fmt::format("sequence {}: token {} names a draw that was not made", s.id, token));
        else token = feedback_[at];
      }
      const uint64_t logits = memory_.run_row(s, s.first_position + k, fails ? -99 : token, before, table);
      if (k >= s.count - s.outputs) {
        logits_.push_back(logits);
        row_tokens_.push_back(token);
        row_failed_.push_back(fails);
      }
      before.insert(before.begin(), token);
      before.pop_back();
    }
  }
}

void FakeEngine::draw_row(const sched::Plan& plan, size_t i, uint64_t seed, sched::StepResult* result) {
  const sched::SampleRow& row = plan.samples[i];
  std::vector<int32_t>& tokens = result->samples[i].tokens;
  if (row.logits_row < 0 || row.logits_row + row.rows > static_cast<int>(logits_.size()))
    return error(fmt::format("sequence {}: draws from a row without logits", row.id));
  for (int k = 0; k < row.rows; ++k) {
    tokens.push_back(draw(logits_[row.logits_row + k], seed, row.sample, shape_));
    if (tokens.back() == kStopToken) {
      result->samples[i].stop = true;
      break;
    }
    // The draft behind this row has to be what was drawn, or the rest is worth nothing.
    if (k + 1 < row.rows && row_tokens_[row.logits_row + k + 1] != tokens.back()) break;
  }
  next_feedback_[i] = tokens.back();
  if (row_failed_[row.logits_row]) {
    tokens.clear();
    result->samples[i].stop = false;
  }
  if (i + 1 == plan.samples.size()) feedback_ = next_feedback_;
}

}  // namespace deepinfer::sim
