// What /v1/files and /v1/batches keep over restarts: files, batches and the lines of unfinished batches, in SQLite.
//
//   DI_ASSIGN_OR_RETURN(auto store, StateStore::open("/var/lib/deepinfer", {}));
//   DI_RETURN_IF_ERROR(store->add_file({.id = id, .owner = key, .purpose = "batch", .filename = name}, content));
//   DI_ASSIGN_OR_RETURN(StoredBatch b, store->batch(id, key));           // kNotFound: none of this owner
//
// Every function is one transaction: after a crash it has happened whole or not at all. Times are seconds since 1970.
// Thread-safe; calls wait for the disk, so they are not for I/O threads. One process has a folder at a time. Errors:
// kResourceExhausted for a limit or a full disk, kNotFound, kDataLoss for a damaged file, else kIo.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::serve {

struct BatchLimits {
  size_t file_bytes_max = size_t{200} << 20;          // of one upload; body_bytes_max holds before
  int64_t files_max = 10'000;                         // of one owner
  int64_t stored_bytes_max = int64_t{8} << 30;        // of all files
  int64_t batches_open_max = 100;                     // of one owner, not ended
  int64_t batch_lines_max = 50'000;                   // of one batch
  size_t batch_line_bytes_max = 8 << 20;              // of one line of its input
  int64_t batch_output_bytes_max = int64_t{256} << 20;  // of all results of a batch; lines after that fail
  int batch_lines_in_work_max = 8;                    // of all batches
};

struct StoredFile {
  std::string id, owner, purpose, filename;
  int64_t bytes = 0, created = 0;
};

struct StoredBatch {
  std::string id, owner, endpoint, input_file, window, metadata;  // metadata: JSON, or empty
  std::string status = "validating";                              // as the API names them
  // JSON list of what was wrong with the input, or empty
  std::string errors;
  std::string output_file, error_file;                            // ids, or empty
  int64_t created = 0, expires = 0;
  int64_t started = 0, finalizing = 0, ended = 0, cancelling = 0;  // 0: not yet
  int64_t total = 0, completed = 0, failed = 0;
  int64_t result_bytes = 0;  // of lines that have ended
};

enum class LineState : int { kWaiting = 0, kCompleted = 1, kFailed = 2 };

struct BatchLine {
  int64_t number = 0;  // from 1, as in the input
  std::string custom_id, body;
  LineState state = LineState::kWaiting;
  std::string result;  // a line of the output or error file, of one that has ended
};

// The names of the files that the end of a batch makes; those without lines are not made.
struct BatchEnd {
  std::string status;  // completed, cancelled or expired
  std::string output_file, error_file;
  int64_t now = 0;
};

class StateStore {
 public:
  // Makes the folder if there is none.
  static Result<std::unique_ptr<StateStore>> open(const std::string& folder, BatchLimits limits);
  ~StateStore();

  const BatchLimits& limits() const { return limits_; }

  Status add_file(StoredFile file, std::string_view content);
  Result<StoredFile> file(std::string_view id, std::string_view owner);
  Result<std::string> content(std::string_view id, std::string_view owner);
  Status remove_file(std::string_view id, std::string_view owner);
  // Of one purpose, or of all if empty; those after the file `after`, if one is named.
  Result<std::vector<StoredFile>> files(std::string_view owner, std::string_view purpose, std::string_view after,
                                        bool ascending, int64_t limit);

  Status add_batch(const StoredBatch& batch);
  Result<StoredBatch> batch(std::string_view id, std::string_view owner);
  // The newest first.
  Result<std::vector<StoredBatch>> batches(std::string_view owner, std::string_view after, int64_t limit);
  // Those that have not ended, of all owners, the oldest first.
  Result<std::vector<StoredBatch>> open_batches();
  // Its input is read: from validating to in_progress.
  Status start_batch(std::string_view id, const std::vector<BatchLine>& lines, int64_t now);
  Status fail_batch(std::string_view id, std::string_view errors, int64_t now);
  // Nothing happens to one that has ended or is being cancelled already.
  Status cancel_batch(std::string_view id, int64_t now);
  Status end_batch(const StoredBatch& batch, const BatchEnd& end);

  // The first waiting line above a number.
  Result<std::optional<BatchLine>> next_line(std::string_view batch, int64_t above);
  Status finish_line(std::string_view batch, const BatchLine& line);

 private:
  struct Impl;
  StateStore(BatchLimits limits, std::unique_ptr<Impl> impl);

  const BatchLimits limits_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::serve
