#include "checkpoint/hub/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "checkpoint/hub/digest.h"

namespace deepinfer::checkpoint {
namespace {

constexpr uint64_t kRangeListBytesMax = 64u << 20;

std::string data_path(const std::string& blob) { return blob + ".deepinfer"; }
std::string ranges_path(const std::string& blob) { return blob + ".deepinfer-ranges"; }

Status cannot_write(const std::string& path, int error) {
  const Code code = error == ENOSPC || error == EDQUOT || error == EFBIG ? Code::kResourceExhausted : Code::kIo;
  return make_error(
      code, "Cannot write {}: {}. What was fetched so far is kept; run the same command again once this is mended.",
      path, std::strerror(error));
}

size_t count_ranges(uint64_t size, uint64_t range_bytes) {
  return static_cast<size_t>(size / range_bytes + (size % range_bytes != 0));
}

// Which ranges the list of an earlier run names; none if it does not fit. No longer than the data that is there: `size`
// is the hub's word and has not been compared with the disk yet.
std::vector<bool> read_done(const std::string& blob, uint64_t size, uint64_t range_bytes) {
  std::error_code error;
  const uint64_t data_bytes = std::filesystem::file_size(data_path(blob), error);
  if (error) return {};
  std::vector<bool> done(count_ranges(std::min(size, data_bytes), range_bytes));
  const Result<std::string> text = read_file(ranges_path(blob), kRangeListBytesMax);
  if (!text.ok()) return done;
  std::istringstream in(text.value());
  uint64_t listed_size = 0, listed_range_bytes = 0, range = 0;
  if (!(in >> listed_size >> listed_range_bytes) || listed_size != size || listed_range_bytes != range_bytes) {
    return done;
  }
  while (in >> range) {
    if (range < done.size() && std::min(size, (range + 1) * range_bytes) <= data_bytes) done[range] = true;
  }
  return done;
}

Status write_all(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_write(path, errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return Status();
}

}  // namespace

uint64_t PartialFile::bytes_present(const std::string& blob_path, uint64_t size, uint64_t range_bytes) {
  const std::vector<bool> done = read_done(blob_path, size, range_bytes);
  uint64_t bytes = 0;
  for (size_t r = 0; r < done.size(); ++r) {
    if (done[r]) bytes += std::min(size - r * range_bytes, range_bytes);
  }
  return bytes;
}

Result<std::unique_ptr<PartialFile>> PartialFile::open(const std::string& blob_path, const std::string& lock_path,
                                                       uint64_t size, uint64_t range_bytes) {
  std::unique_ptr<PartialFile> file(new PartialFile);
  file->blob_path_ = blob_path;
  file->size_ = size;
  file->lock_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file->lock_ < 0) return cannot_write(lock_path, errno);
  if (::flock(file->lock_, LOCK_EX | LOCK_NB) != 0) {
    return make_error(Code::kUnavailable, "Another program is fetching {} now; wait for it to end.", blob_path);
  }
  file->done_ = read_done(blob_path, size, range_bytes);
  file->done_.resize(count_ranges(size, range_bytes));
  const bool resume = std::find(file->done_.begin(), file->done_.end(), true) != file->done_.end();
  file->data_ = ::open(data_path(blob_path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0644);
  if (file->data_ < 0) return cannot_write(data_path(blob_path), errno);
  file->ranges_ =
      ::open(ranges_path(blob_path).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0644);
  if (file->ranges_ < 0) return cannot_write(ranges_path(blob_path), errno);
  // The leading newline ends a line that a full disk or a kill may have cut.
  const std::string head = resume ? "\n" : fmt::format("{} {}\n", size, range_bytes);
  DI_RETURN_IF_ERROR(write_all(file->ranges_, ranges_path(blob_path), head));
  return file;
}

PartialFile::~PartialFile() {
  for (int fd : {data_, ranges_, lock_}) {
    if (fd >= 0) ::close(fd);
  }
}

Status PartialFile::write(uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(data_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_write(data_path(blob_path_), errno);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return Status();
}

Status PartialFile::mark_done(size_t range) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done_[range] = true;
  return write_all(ranges_, ranges_path(blob_path_), fmt::format("{}\n", range));
}

Status PartialFile::finish(const std::string& digest, const std::atomic<bool>* stop) {
  if (::ftruncate(data_, static_cast<off_t>(size_)) != 0 || ::fsync(data_) != 0) {
    return cannot_write(data_path(blob_path_), errno);
  }
  DI_ASSIGN_OR_RETURN(const std::string got, digest_of_file(data_path(blob_path_), digest.size(), stop));
  if (got != digest) {
    ::unlink(ranges_path(blob_path_).c_str());
    ::unlink(data_path(blob_path_).c_str());
    return make_error(Code::kDataLoss, "its {} is {}, but the hub says {}; the damaged copy was removed",
                      digest.size() == 64 ? "SHA-256" : "git blob id", got, digest);
  }
  if (::rename(data_path(blob_path_).c_str(), blob_path_.c_str()) != 0) return cannot_write(blob_path_, errno);
  ::unlink(ranges_path(blob_path_).c_str());
  return Status();
}

}  // namespace deepinfer::checkpoint
