#include "base/file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deepinfer {
namespace {

Status errno_status(std::string_view what, const std::string& path, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound
                    : error == ENOSPC || error == EDQUOT || error == ENOMEM ? Code::kResourceExhausted
                                                                            : Code::kIo;
  return make_error(code, "cannot {} {}: {}", what, path, std::strerror(error));
}

struct Fd {
  int fd = -1;
  ~Fd() {
    if (fd >= 0) ::close(fd);
  }
};

Status open_regular(const std::string& path, Fd* fd, uint64_t* size) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer; on regular files it means nothing.
  fd->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd->fd < 0) return errno_status("open", path, errno);
  struct stat st {};
  if (::fstat(fd->fd, &st) != 0) return errno_status("stat", path, errno);
  if (!S_ISREG(st.st_mode)) return make_error(Code::kInvalidArgument, "{} is not a regular file", path);
  *size = static_cast<uint64_t>(st.st_size);
  return {};
}

}  // namespace

Result<std::string> read_file(const std::string& path, uint64_t max_bytes) {
  Fd fd;
  uint64_t size = 0;
  DI_RETURN_IF_ERROR(open_regular(path, &fd, &size));
  if (size > max_bytes) {
    return make_error(Code::kResourceExhausted, "{} has {} bytes; at most {} are read here", path, size, max_bytes);
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("read", path, errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Result<std::string> read_standard_input(uint64_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return make_error(Code::kIo, "Cannot read standard input: {}.", std::strerror(errno));
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > max_bytes) {
      return make_error(Code::kResourceExhausted, "Standard input has more than {} bytes, the limit here.", max_bytes);
    }
  }
}

Status write_file_atomically(const std::string& wanted, std::string_view content) {
  std::string path = wanted;
  if (struct stat st {}; ::stat(wanted.c_str(), &st) == 0) {
    // Renaming would put a file in the place of a device, and of a link what it leads to.
    if (!S_ISREG(st.st_mode)) return make_error(Code::kInvalidArgument, "{} is not a regular file", wanted);
    if (char* const real = ::realpath(wanted.c_str(), nullptr); real != nullptr) {
      path = real;
      std::free(real);
    }
  }
  const std::string tmp = path + ".tmp";
  Fd fd;
  fd.fd = ::open(tmp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd.fd < 0) return errno_status("create", tmp, errno);
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(fd.fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::unlink(tmp.c_str());
      return errno_status("write", tmp, error);
    }
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd.fd) != 0 || ::rename(tmp.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(tmp.c_str());
    return errno_status("write", path, error);
  }
  return {};
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  Fd fd;
  uint64_t size = 0;
  DI_RETURN_IF_ERROR(open_regular(path, &fd, &size));
  MappedFile map;
  map.path_ = path;
  if (size == 0) return map;
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.fd, 0);
  if (p == MAP_FAILED) return errno_status("map", path, errno);
  map.data_ = static_cast<const std::byte*>(p);
  map.size_ = size;
  return map;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace deepinfer
