// Runs a batch file through an engine: keeps many requests in work, builds their answers, writes them in input order
// or as they come.
//
//   Job job(engine, reader, vocabulary, output, {.in_order = true});
//   DI_ASSIGN_OR_RETURN(JobResult r, job.run("requests.jsonl", on_progress, &stop));
//
// An output line:  {"line": 3, "digest": "…", "id": .., "response": {a Chat Completions or Completions object},
// "error": null} and for OpenAI's form  {"line": .., "digest": .., "id": "batch_req_3", "custom_id": .., "response":
// {"status_code": 200, "request_id": .., "body": {..}}, "error": null}.  A request that failed has response null and
// error {"code", "message"}. The finish_reason of an answer that the engine broke off is in its error.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "app/generate/line.h"
#include "app/generate/output.h"
#include "engine/engine.h"

namespace deepinfer::app {

struct JobOptions {
  bool in_order = true;
  int in_work_max = 64;  // requests given to the engine, or finished and waiting for their turn
};

struct JobResult {
  int64_t answered = 0, failed = 0, skipped = 0;  // skipped: answered by an earlier run
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

class Job {
 public:
  using OnProgress = std::function<void(const JobResult&, int64_t lines_done)>;

  Job(engine::Engine& engine, LineReader& reader, const recipe::OutputVocabulary& vocabulary, OutputFile& output,
      JobOptions options);
  ~Job();

  // kCancelled once `stop` is set: what is finished has been written.
  Result<JobResult> run(const std::string& path, const OnProgress& on_progress, const std::atomic<bool>* stop);

 private:
  struct Item;
  Status add(std::string_view text, int64_t number);
  void start(Item& item);
  bool read_events(Item& item);  // true if anything came
  Status write_finished(bool* wrote);

  engine::Engine& engine_;
  LineReader& reader_;
  const recipe::OutputVocabulary& vocabulary_;
  OutputFile& output_;
  const JobOptions options_;
  std::deque<std::unique_ptr<Item>> items_;  // in input order
  JobResult result_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool events_ = false;
};

// Lines of a file that hold a request.
Result<int64_t> count_lines(const std::string& path);

}  // namespace deepinfer::app
