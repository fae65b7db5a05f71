#include "app/generate/output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "app/terminal/terminal.h"
#include "kv/record.h"
#include "recipe/json.h"

namespace deepinfer::app {

std::string line_digest(std::string_view text) {
  return fmt::format("{:016x}", kv::kv_checksum(std::as_bytes(std::span(text.data(), text.size()))));
}

Result<std::unique_ptr<OutputFile>> OutputFile::open(const std::string& path, bool resume) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return make_error(Code::kIo, "Cannot write {}: {}.", path, std::strerror(errno));
  std::unique_ptr<OutputFile> self(new OutputFile(path, fd));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return make_error(Code::kFailedPrecondition, "Another job is writing {}.", path);
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return make_error(Code::kIo, "Cannot read {}: {}.", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode) || info.st_size == 0) return self;
  if (!resume) {
    return make_error(Code::kFailedPrecondition,
                      "{} has content already. Continue it with --resume, or remove it first.", path);
  }
  DI_RETURN_IF_ERROR(self->read_done());
  return self;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status OutputFile::read_done() {
  std::ifstream file(path_, std::ios::binary);
  int64_t complete = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const Result<recipe::Json> json = recipe::parse_json(line);
    const recipe::Json* number = json.ok() ? json.value().find("line") : nullptr;
    const recipe::Json* digest = json.ok() ? json.value().find("digest") : nullptr;
    if (number == nullptr || !number->to_int64() || digest == nullptr || !digest->is_string()) {
      return make_error(Code::kInvalidArgument, "{} is not the output of a batch job: its line {} names no request.",
                        path_, digests_.size() + 1);
    }
    digests_[*number->to_int64()] = digest->as_string();
    complete += static_cast<int64_t>(line.size()) + 1;
  }
  if (::ftruncate(fd_, complete) != 0)
    return make_error(Code::kIo, "Cannot write {}: {}.", path_, std::strerror(errno));
  return Status();
}

Result<bool> OutputFile::has(int64_t number, std::string_view digest) const {
  const auto it = digests_.find(number);
  if (it == digests_.end()) return false;
  if (it->second == digest) return true;
  return make_error(Code::kFailedPrecondition,
                    "{} holds the answer to another text than line {} of the input. It belongs to another job.", path_,
                    number);
}

Status OutputFile::append(std::string_view line) {
  if (write_out(fd_, line)) return Status();
  return make_error(Code::kIo, "Cannot write {}: {}. Make room and continue with --resume.", path_,
                    std::strerror(errno));
}

Status OutputFile::close() {
  const bool synced = ::fsync(fd_) == 0 || errno == EINVAL;
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  if (synced && closed) return Status();
  return make_error(Code::kIo, "Cannot write {}: {}.", path_, std::strerror(errno));
}

}  // namespace deepinfer::app
