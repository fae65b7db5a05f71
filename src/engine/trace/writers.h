// Observers that write down what an engine does.
//
//   DI_ASSIGN_OR_RETURN(auto steps, StepTrace::open("steps.jsonl"));       // plans and results, for `deepinfer replay`
//   DI_ASSIGN_OR_RETURN(auto loop, ChromeTrace::open("loop.json"));        // times, for chrome://tracing or Perfetto
//   options.observer = std::make_shared<Observers>(Observers{{steps, loop}});
//   ...                                                                     // run; end the engine
//   DI_RETURN_IF_ERROR(steps->close());                                     // whether all of it was written
//
// They work on the engine's thread: a trace of steps costs a digest of every row of logits. Files of a process that was
// killed can be read up to their last whole line.
#pragma once

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/step_observer.h"
#include "kv/tier.h"

namespace deepinfer::engine {

class TraceFile {
 public:
  static Result<TraceFile> open(const std::string& path);
  TraceFile(TraceFile&& other) noexcept;
  ~TraceFile();
  void write(std::string_view text);
  // kIo if anything could not be written.
  Status close();

 private:
  TraceFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  std::string path_;
  std::FILE* file_ = nullptr;
  Status status_;
};

class StepTrace : public StepObserver {
 public:
  static Result<std::shared_ptr<StepTrace>> open(const std::string& path);
  // Before the first step.
  void write_header(const ExecutorInfo& info);
  void on_step(const StepRecord& record) override;
  Status close() { return file_.close(); }

 private:
  explicit StepTrace(TraceFile file) : file_(std::move(file)) {}
  TraceFile file_;
  std::string line_;
};

class ChromeTrace : public StepObserver {
 public:
  static Result<std::shared_ptr<ChromeTrace>> open(const std::string& path);
  void on_step(const StepRecord& record) override;
  void on_commit(double begin, double end) override;
  bool wants_logits() const override { return false; }
  // KV below device memory, as one counter track a tier, tenant and kind of traffic; at the time of the last step. From
  // any thread.
  void write_tiers(std::span<const kv::TierCount> counts);
  Status close();

 private:
  explicit ChromeTrace(TraceFile file);
  void span(std::string_view name, int thread, double begin, double end, std::string_view arguments = {});
  void write(std::string_view text);
  std::mutex mutex_;
  TraceFile file_;
  double last_s_ = 0;  // end of the last commit
};

class Observers : public StepObserver {
 public:
  explicit Observers(std::vector<std::shared_ptr<StepObserver>> all) : all_(std::move(all)) {}
  void on_step(const StepRecord& record) override {
    for (const auto& o : all_) o->on_step(record);
  }
  bool wants_logits() const override {
    return std::any_of(all_.begin(), all_.end(), [](const auto& o) { return o->wants_logits(); });
  }
  void on_commit(double begin, double end) override {
    for (const auto& o : all_) o->on_commit(begin, end);
  }
  void on_end(const Usage& usage, FinishReason reason) override {
    for (const auto& o : all_) o->on_end(usage, reason);
  }

 private:
  std::vector<std::shared_ptr<StepObserver>> all_;
};

}  // namespace deepinfer::engine
