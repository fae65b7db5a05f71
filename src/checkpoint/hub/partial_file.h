// A file that is being fetched in ranges, kept so that a later run goes on where a killed one stopped.
//
//   DI_ASSIGN_OR_RETURN(auto part, PartialFile::open(blob_path, lock_path, size, range_bytes));
//   part->write(offset, bytes); part->mark_done(range);     // any thread
//   part->finish(digest, &stop);                            // checks, then gives the file its name
//
// Data lies in BLOB.deepinfer, the list of complete ranges in BLOB.deepinfer-ranges ("SIZE RANGE_BYTES", then one range
// number a line). The list is a hint only: the digest decides whether the file is good. A lock keeps a second program
// away.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace deepinfer::checkpoint {

class PartialFile {
 public:
  static Result<std::unique_ptr<PartialFile>> open(const std::string& blob_path, const std::string& lock_path,
                                                   uint64_t size, uint64_t range_bytes);
  // How much an interrupted run has left behind; 0 if nothing usable.
  static uint64_t bytes_present(const std::string& blob_path, uint64_t size, uint64_t range_bytes);
  ~PartialFile();

  size_t range_count() const { return done_.size(); }
  bool done(size_t range) const { return done_[range]; }

  Status write(uint64_t offset, std::string_view bytes);
  Status mark_done(size_t range);
  // Compares the digest and renames; when it differs the data is removed and kDataLoss says both digests.
  Status finish(const std::string& digest, const std::atomic<bool>* stop);

 private:
  PartialFile() = default;

  std::string blob_path_;
  uint64_t size_ = 0;
  int data_ = -1, ranges_ = -1, lock_ = -1;
  std::mutex mutex_;
  std::vector<bool> done_;
};

}  // namespace deepinfer::checkpoint
