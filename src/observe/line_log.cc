#include "observe/line_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

namespace deepinfer::observe {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(100);

Result<int> open_file(const std::string& path) {
  if (path == "-") return STDERR_FILENO;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (file >= 0) return file;
  return make_error(Code::kIo, "Cannot open the log {}: {}.", path, std::strerror(errno));
}

}  // namespace

struct LineLog::Impl {
  ~Impl() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      ending = true;
    }
    changed.notify_one();
    if (writer.joinable()) writer.join();
    if (file > STDERR_FILENO) ::close(file);
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!ending) {
      changed.wait_for(lock, kEvery, [this] { return ending; });
      flush(lock);
    }
    flush(lock);
  }

  void flush(std::unique_lock<std::mutex>& lock) {
    if (pending.empty()) return;
    writing.swap(pending);
    lock.unlock();
    {
      const std::lock_guard<std::mutex> file_lock(file_mutex);
      for (size_t at = 0; at < writing.size();) {
        const ssize_t n = ::write(file, writing.data() + at, writing.size() - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {  // a full disk; the rest is lost
          dropped +=
              static_cast<uint64_t>(std::count(writing.begin() + static_cast<std::ptrdiff_t>(at), writing.end(), '\n'));
          break;
        }
        at += static_cast<size_t>(n);
      }
    }
    writing.clear();
    lock.lock();
  }

  std::string path;
  std::mutex mutex, file_mutex;
  std::condition_variable changed;
  std::string pending, writing;
  std::atomic<uint64_t> dropped{0};
  int file = -1;
  bool ending = false;
  std::thread writer;
};

LineLog::LineLog(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LineLog::~LineLog() = default;

Result<std::unique_ptr<LineLog>> LineLog::open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  DI_ASSIGN_OR_RETURN(impl->file, open_file(path));
  impl->writer = std::thread([i = impl.get()] { i->run(); });
  return std::unique_ptr<LineLog>(new LineLog(std::move(impl)));
}

void LineLog::write(std::string_view line) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->pending.size() + line.size() > kPendingBytesMax) {
    ++impl_->dropped;
    return;
  }
  impl_->pending.append(line).append("\n");
}

Status LineLog::reopen() {
  DI_ASSIGN_OR_RETURN(const int file, open_file(impl_->path));
  const std::lock_guard<std::mutex> lock(impl_->file_mutex);
  if (impl_->file > STDERR_FILENO) ::close(impl_->file);
  impl_->file = file;
  return Status();
}

uint64_t LineLog::dropped() const { return impl_->dropped; }

}  // namespace deepinfer::observe
