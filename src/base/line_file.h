// A text file line by line, with a bound on what a line may have: for files of requests, traces and the like.
//
//   DI_ASSIGN_OR_RETURN(LineFile file, LineFile::open(path, 48 << 20));
//   for (std::string line; file.next(&line);) ...           // without its newline
//   DI_RETURN_IF_ERROR(file.status());
//
// Only regular files: a pipe or a device may have no end, and can be read only once. A longer line is read over and
// comes with bytes_max + 1 bytes, so that its length says that it is too long.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace deepinfer {

class LineFile {
 public:
  // kNotFound if it cannot be opened, kInvalidArgument if it is no regular file.
  static Result<LineFile> open(const std::string& path, size_t bytes_max);
  LineFile(LineFile&& other) noexcept;
  LineFile& operator=(LineFile&&) = delete;
  ~LineFile();

  // False at the end, or when reading fails: see status().
  bool next(std::string* line);
  // The last line had a newline: what wrote it was not ended in the middle.
  bool line_ended() const { return line_ended_; }
  const Status& status() const { return status_; }

 private:
  LineFile(std::string path, int fd, size_t bytes_max);
  bool fill();

  std::string path_;
  int fd_;
  size_t bytes_max_;
  std::string buffer_;
  size_t at_ = 0;
  bool line_ended_ = false;
  Status status_;
};

}  // namespace deepinfer
