#include "kv/directory_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <vector>

#include "kv/stored_record.h"

namespace deepinfer::kv {
namespace {

namespace fs = std::filesystem;

Status failed(const std::string& path, int error) {
  if (error == ENOENT) return Status(Code::kNotFound, "no such record in the folder");
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    return make_error(Code::kResourceExhausted, "{}: {}", path, std::strerror(error));
  return make_error(Code::kUnavailable, "{}: {}", path, std::strerror(error));
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

  bool read(std::span<std::byte> into, off_t at) const {
    for (size_t done = 0; done < into.size();) {
      const ssize_t n = ::pread(fd_, into.data() + done, into.size() - done, at + static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }
  bool write(std::span<const std::byte> from, off_t at) const {
    for (size_t done = 0; done < from.size();) {
      const ssize_t n = ::pwrite(fd_, from.data() + done, from.size() - done, at + static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

 private:
  const int fd_;
};

}  // namespace

std::string DirectoryStore::path_of(const BlockKey& key) const {
  const std::string hex = key.hex();
  return fmt::format("{}/{}/{}.kv", dir_, hex.substr(0, 2), hex);
}

Result<size_t> DirectoryStore::get(const BlockKey& key, std::span<std::byte> into, PutInfo* info) {
  const std::string path = path_of(key);
  const File file(path, O_RDONLY);
  struct stat st = {};
  if (file.fd() < 0 || ::fstat(file.fd(), &st) != 0) return failed(path, errno);
  const auto size = static_cast<size_t>(st.st_size);
  std::array<std::byte, kTrailerBytes> last;
  if (size < kTrailerBytes || !file.read(last, static_cast<off_t>(size - kTrailerBytes)))
    return Status(Code::kNotFound, "the file is cut");
  std::optional<Trailer> t = read_trailer(last);
  const int64_t now = std::time(nullptr);
  if (!t || t->expires_at <= now) {
    ::unlink(path.c_str());
    return Status(Code::kNotFound, "the record has passed its time");
  }
  if (size - kTrailerBytes > into.size())
    return Status(Code::kResourceExhausted, "the record is larger than the buffer");
  if (!file.read(into.first(size - kTrailerBytes), 0)) return failed(path, EIO);
  *info = {.space = t->space, .ttl_s = static_cast<double>(t->ttl_s)};
  if (t->expires_at - now < t->ttl_s / 2) {  // lives longer because it was read; losing this costs nothing
    t->expires_at = now + t->ttl_s;
    write_trailer(*t, last);
    const File again(path, O_WRONLY);
    if (again.fd() >= 0) (void)again.write(last, static_cast<off_t>(size - kTrailerBytes));
  }
  return size - kTrailerBytes;
}

Status DirectoryStore::put(const BlockKey& key, std::span<const std::byte> record, const PutInfo& info) {
  static std::atomic<uint64_t> counter{0};
  const std::string path = path_of(key);
  const std::string draft = fmt::format("{}.{}.{}.tmp", path, ::getpid(), ++counter);
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const auto ttl = static_cast<uint32_t>(std::clamp(info.ttl_s, 1.0, 4e9));
  std::array<std::byte, kTrailerBytes> last;
  const int64_t expires_at = std::time(nullptr) + static_cast<int64_t>(ttl);
  write_trailer({.space = info.space, .expires_at = expires_at, .ttl_s = ttl}, last);
  int error = 0;
  {
    const File file(draft, O_WRONLY | O_CREAT | O_EXCL);
    if (file.fd() < 0) return failed(draft, errno);
    if (!file.write(record, 0) || !file.write(last, static_cast<off_t>(record.size()))) error = errno;
  }
  if (error == 0 && ::rename(draft.c_str(), path.c_str()) == 0) return Status();
  if (error == 0) error = errno;
  ::unlink(draft.c_str());
  return failed(draft, error);
}

Status DirectoryStore::erase(const BlockKey& key) {
  const std::string path = path_of(key);
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return Status();
  return failed(path, errno);
}

Status DirectoryStore::ping() {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) return failed(dir_, error.value());
  return ::access(dir_.c_str(), R_OK | W_OK | X_OK) == 0 ? Status() : failed(dir_, errno);
}

template <class Keep>
Result<int64_t> DirectoryStore::remove_unless(const Keep& keep) {
  int64_t removed = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(dir_, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (!path.ends_with(".kv")) continue;
    std::array<std::byte, kTrailerBytes> last;
    std::optional<Trailer> t;
    {
      const File file(path, O_RDONLY);
      struct stat st = {};
      if (file.fd() < 0 || ::fstat(file.fd(), &st) != 0) continue;
      const off_t record = st.st_size - static_cast<off_t>(kTrailerBytes);
      if (record >= 0 && file.read(last, record)) t = read_trailer(last);
    }
    if (t && keep(*t)) continue;
    removed += ::unlink(path.c_str()) == 0;
  }
  if (error) return failed(dir_, error.value());
  return removed;
}

Status DirectoryStore::purge(uint64_t space) {
  return remove_unless([space](const Trailer& t) { return space != 0 && t.space != space; }).status();
}

Result<int64_t> DirectoryStore::sweep() {
  const int64_t now = std::time(nullptr);
  return remove_unless([now](const Trailer& t) { return t.expires_at > now; });
}

}  // namespace deepinfer::kv
