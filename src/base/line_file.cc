#include "base/line_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deepinfer {
namespace {

constexpr size_t kPart = 1 << 16;

}  // namespace

// O_NONBLOCK: to open a pipe without a writer would wait for one.
Result<LineFile> LineFile::open(const std::string& path, size_t bytes_max) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return make_error(Code::kNotFound, "Cannot read {}: {}.", path, std::strerror(errno));
  LineFile file(path, fd, bytes_max);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return make_error(Code::kIo, "Cannot read {}: {}.", path, std::strerror(errno));
  if (S_ISREG(info.st_mode)) return file;
  const char* what = S_ISDIR(info.st_mode) ? "a folder" : S_ISFIFO(info.st_mode) ? "a pipe" : "no regular file";
  return make_error(Code::kInvalidArgument, "Cannot read {}: it is {}. Give a file.", path, what);
}

LineFile::LineFile(std::string path, int fd, size_t bytes_max)
    : path_(std::move(path)), fd_(fd), bytes_max_(bytes_max) {}

LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_max_(other.bytes_max_),
      buffer_(std::move(other.buffer_)),
      at_(other.at_),
      line_ended_(other.line_ended_),
      status_(std::move(other.status_)) {}

LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool LineFile::fill() {
  buffer_.resize(kPart);
  at_ = 0;
  ssize_t n;
  do {
    n = ::read(fd_, buffer_.data(), buffer_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) status_ = make_error(Code::kIo, "Cannot read {}: {}.", path_, std::strerror(errno));
  buffer_.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return n > 0;
}

bool LineFile::next(std::string* line) {
  line->clear();
  line_ended_ = false;
  bool any = false;
  while (at_ < buffer_.size() || fill()) {
    any = true;
    const size_t end = std::min(buffer_.find('\n', at_), buffer_.size());
    line->append(buffer_, at_, std::min(end - at_, bytes_max_ + 1 - line->size()));
    at_ = end + 1;
    if (end == buffer_.size()) continue;
    line_ended_ = true;
    return true;
  }
  return any && status_.ok();
}

}  // namespace deepinfer
