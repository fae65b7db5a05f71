#include "engine/trace/replay.h"

#include <chrono>
#include <cmath>
#include <map>

#include "engine/trace/step_line.h"

namespace deepinfer::engine {
namespace {

using sched::MemoryOp;
using Clock = std::chrono::steady_clock;

bool saves(MemoryOp::Kind kind) {
  return kind == MemoryOp::Kind::kSaveWindows || kind == MemoryOp::Kind::kSaveSlot ||
         kind == MemoryOp::Kind::kSaveBlock;
}

size_t bytes_of(MemoryOp::Kind kind, const ExecutorInfo& info) {
  switch (kind) {
    case MemoryOp::Kind::kSaveWindows:
      return info.windows_bytes;
    case MemoryOp::Kind::kSaveSlot:
      return info.slot_bytes;
    case MemoryOp::Kind::kSaveBlock:
      return info.block_bytes;
    default:
      return 0;
  }
}

// Host memory under the trace's entry numbers.
class HostEntries {
 public:
  HostEntries() : store_({.bytes_max = UINT64_MAX}) {}
  kv::HostStore& store() { return store_; }

  // Gives the copies of a plan entries of this store; new ones for what the plan saves.
  Status translate(const ExecutorInfo& info, std::vector<MemoryOp>* ops) {
    std::map<int32_t, size_t> sizes;
    for (const MemoryOp& op : *ops) {
      if (saves(op.kind))
        sizes[op.host] = std::max(sizes[op.host], static_cast<size_t>(op.offset) + bytes_of(op.kind, info));
    }
    for (MemoryOp& op : *ops) {
      if (op.host < 0) continue;
      const auto size = sizes.find(op.host);
      if (saves(op.kind) && size != sizes.end()) {
        if (const auto old = entries_.find(op.host); old != entries_.end()) store_.unpin(old->second);
        entries_[op.host] = store_.reserve(size->second);
        sizes.erase(size);
      }
      const auto entry = entries_.find(op.host);
      if (entry == entries_.end()) {
        return Status(Code::kFailedPrecondition,
                      "It reads host memory that the trace never wrote, as KV from a tier does; trace without tiers.");
      }
      op.host = entry->second;
    }
    return Status();
  }

 private:
  kv::HostStore store_;
  std::map<int32_t, int> entries_;
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A token that was not known when the step was planned is the one drawn in the step before it.
Status fill_in(const sched::StepResult& before, model::StepPlan* plan) {
  for (std::vector<int32_t>* list : {&plan->tokens, &plan->history}) {
    for (int32_t& t : *list) {
      const auto i = static_cast<size_t>(-1 - static_cast<int64_t>(t));
      if (t >= 0 || i >= before.samples.size() || before.samples[i].tokens.empty()) continue;
      t = before.samples[i].tokens.back();
    }
  }
  for (int32_t t : plan->tokens) {
    if (t < 0) return Status(Code::kInvalidArgument, "It names a token that the step before it did not draw.");
  }
  return Status();
}

void compare(const TracedStep& traced, const TracedStep& now, ReplayReport* report) {
  const int64_t equal = report->equal_rows;
  report->rows += static_cast<int64_t>(traced.digests.size());
  for (size_t i = 0; i < std::min(traced.digests.size(), now.digests.size()); ++i) {
    report->equal_rows += traced.digests[i] == now.digests[i];
    report->same_likeliest += i < traced.likeliest.size() && traced.likeliest[i] == now.likeliest[i];
  }
  for (size_t i = 0; i < std::min(traced.logprobs.size(), now.logprobs.size()); ++i) {
    report->tokens += static_cast<int64_t>(traced.result.samples[i].tokens.size());
    report->logprob_difference_max =
        std::max(report->logprob_difference_max, std::abs(traced.logprobs[i] - now.logprobs[i]));
  }
  if (report->first_difference < 0 && report->equal_rows - equal < static_cast<int64_t>(traced.digests.size())) {
    report->first_difference = traced.plan.step.step;
  }
}

}  // namespace

Result<Replay> Replay::open(const std::string& path) {
  DI_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, kStepLineBytesMax));
  std::string line;
  if (!file.next(&line)) {
    DI_RETURN_IF_ERROR(file.status());
    return make_error(Code::kInvalidArgument, "{} is empty.", path);
  }
  Result<ExecutorInfo> info = parse_header_line(line);
  if (!info.ok()) return info.status().with_context(path);
  Replay replay(path, std::move(file));
  replay.info_ = std::move(info).value();
  return replay;
}

ModelExecutorOptions Replay::executor_options() const {
  return {.context_max = info_.context_max,
          .sequences_max = info_.sequences_max,
          .rows_max = info_.rows_max,
          .outputs_max = info_.outputs_max,
          .blocks = info_.blocks,
          .snapshots = info_.windows_bytes > 0};
}

Result<ReplayReport> Replay::run(StepExecutor& executor, StepObserver* observer, const std::atomic<bool>* stop) {
  const ExecutorInfo& now = executor.info();
  if (now.checkpoint != info_.checkpoint) {
    return make_error(Code::kFailedPrecondition, "{} is the trace of another model (digest {}; this one has {}).",
                      path_, info_.checkpoint.substr(0, 12), now.checkpoint.substr(0, 12));
  }
  if (now.blocks < info_.blocks || now.slots < info_.slots || now.windows_bytes != info_.windows_bytes ||
      now.layout != info_.layout) {
    return make_error(Code::kFailedPrecondition, "This backend keeps its KV otherwise than that of {} ({}, not {}).",
                      path_, now.layout, info_.layout);
  }
  ReplayReport report{.same_numerics = now.numeric_class == info_.numeric_class};
  HostEntries host;
  sched::StepResult before;
  const Clock::time_point start = Clock::now();
  std::string line;
  for (int64_t number = 2; file_.next(&line); ++number) {
    if (stop->load()) return Status(Code::kCancelled, "Stopped.");
    if (!file_.line_ended()) break;  // no newline: the process was killed while it wrote this
    const auto bad = [&](const Status& status) {
      return status.with_context(fmt::format("{} line {}", path_, number));
    };
    Result<TracedStep> parsed = parse_step_line(line);
    if (!parsed.ok()) return bad(parsed.status());
    TracedStep& step = parsed.value();
    if (!step.plan.step.image_rows.empty()) return bad(Status(Code::kUnsupported, "Images cannot be replayed."));
    TracedStep again{.plan = step.plan, .result = step.result};
    if (const Status s = fill_in(before, &again.plan.step); !s.ok()) return bad(s);
    std::vector<MemoryOp> copies = again.plan.before;
    if (const Status s = host.translate(now, &copies); !s.ok()) return bad(s);
    again.at.begin = again.at.planned = again.at.started = seconds_since(start);
    if (const Status s = executor.copy(copies, host.store()); !s.ok()) return bad(s);
    int outputs = 0;
    for (const model::StepSequence& s : again.plan.step.sequences) outputs += s.outputs;
    std::span<const float> logits;
    if (!again.plan.step.sequences.empty()) {
      if (const Status s = executor.forward(again.plan.step); !s.ok()) return bad(s);
      const Result<std::span<const float>> rows = executor.logits(outputs);
      if (!rows.ok()) return bad(rows.status());
      logits = rows.value().first(static_cast<size_t>(outputs) * static_cast<size_t>(now.vocab_size));
    }
    again.at.ready = again.at.sampled = again.at.streamed = seconds_since(start);
    report.forward_s += again.at.ready - again.at.started;
    report.traced_forward_s += step.at.ready - step.at.started;
    ++report.steps;
    if (step.result.failed.empty()) {
      digest_logits(logits, &again);
      compare(step, again, &report);
    } else {
      ++report.skipped_steps;
    }
    if (observer != nullptr) observer->on_step({again.plan, again.result, logits, again.at});
    before = std::move(step.result);
  }
  DI_RETURN_IF_ERROR(file_.status());
  return report;
}

}  // namespace deepinfer::engine
