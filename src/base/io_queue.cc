#include "base/io_queue.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

class Ring : public IoQueue {
 public:
  explicit Ring(int depth) : depth_(depth) {}
  ~Ring() override {
    if (!open_) return;
    Done done[16];
    submit();
    while (in_flight_ > 0 && wait(done) > 0) {
    }
    ::io_uring_queue_exit(&ring_);
  }

  bool open() { return open_ = ::io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0) == 0; }

  const char* name() const override { return "io_uring"; }
  bool read(int fd, std::span<std::byte> into, uint64_t offset, uint64_t tag) override {
    io_uring_sqe* e = next();
    if (e == nullptr) return false;
    ::io_uring_prep_read(e, fd, into.data(), static_cast<unsigned>(into.size()), offset);
    ::io_uring_sqe_set_data64(e, tag);
    return true;
  }
  bool write(int fd, std::span<const std::byte> from, uint64_t offset, uint64_t tag) override {
    io_uring_sqe* e = next();
    if (e == nullptr) return false;
    ::io_uring_prep_write(e, fd, from.data(), static_cast<unsigned>(from.size()), offset);
    ::io_uring_sqe_set_data64(e, tag);
    return true;
  }
  void submit() override {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int n = ::io_uring_submit(&ring_);
      if (n < 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) break;
      if (n <= 0) std::this_thread::yield();
    }
  }
  size_t poll(std::span<Done> done) override {
    size_t n = 0;
    io_uring_cqe* c = nullptr;
    while (n < done.size() && ::io_uring_peek_cqe(&ring_, &c) == 0) done[n++] = take(c);
    return n;
  }
  size_t wait(std::span<Done> done) override {
    submit();
    if (in_flight_ == 0 || done.empty()) return 0;
    io_uring_cqe* c = nullptr;
    int error = 0;
    do {
      error = ::io_uring_wait_cqe(&ring_, &c);
    } while (error == -EINTR);
    if (error != 0) return 0;
    done[0] = take(c);
    return 1 + poll(done.subspan(1));
  }
  int in_flight() const override { return in_flight_; }

 private:
  io_uring_sqe* next() {
    if (in_flight_ >= depth_) return nullptr;
    io_uring_sqe* e = ::io_uring_get_sqe(&ring_);
    if (e != nullptr) ++in_flight_;
    return e;
  }
  Done take(io_uring_cqe* c) {
    const Done d{.tag = ::io_uring_cqe_get_data64(c), .bytes = std::max(0, c->res), .error = c->res < 0 ? -c->res : 0};
    ::io_uring_cqe_seen(&ring_, c);
    --in_flight_;
    return d;
  }

  const int depth_;
  bool open_ = false;
  io_uring ring_ = {};
  int in_flight_ = 0;
};

class Threads : public IoQueue {
 public:
  Threads(int depth, int count) : depth_(depth) {
    for (int i = 0; i < std::clamp(count, 1, depth); ++i) workers_.emplace_back([this] { work(); });
  }
  ~Threads() override {
    submit();
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    queued_.notify_all();
    for (std::thread& t : workers_) t.join();
  }

  const char* name() const override { return "threads"; }
  bool read(int fd, std::span<std::byte> into, uint64_t offset, uint64_t tag) override {
    return add({.fd = fd, .write = false, .data = into.data(), .bytes = into.size(), .offset = offset, .tag = tag});
  }
  bool write(int fd, std::span<const std::byte> from, uint64_t offset, uint64_t tag) override {
    return add({.fd = fd,
                .write = true,
                .data = const_cast<std::byte*>(from.data()),
                .bytes = from.size(),
                .offset = offset,
                .tag = tag});
  }
  void submit() override {
    if (new_.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      jobs_.insert(jobs_.end(), new_.begin(), new_.end());
    }
    new_.clear();
    queued_.notify_all();
  }
  size_t poll(std::span<Done> done) override {
    const std::lock_guard lock(mutex_);
    return take(done);
  }
  size_t wait(std::span<Done> done) override {
    submit();
    std::unique_lock lock(mutex_);
    if (in_flight_ == 0) return 0;
    ended_.wait(lock, [this] { return !done_.empty(); });
    return take(done);
  }
  int in_flight() const override { return in_flight_; }

 private:
  struct Job {
    int fd = -1;
    bool write = false;
    std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t offset = 0;
    uint64_t tag = 0;
  };

  bool add(const Job& job) {
    if (in_flight_ >= depth_) return false;
    new_.push_back(job);
    ++in_flight_;
    return true;
  }
  size_t take(std::span<Done> done) {
    const size_t n = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), n, done.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    in_flight_ -= static_cast<int>(n);
    return n;
  }
  static Done run(const Job& j) {
    Done d{.tag = j.tag};
    while (d.bytes < static_cast<int64_t>(j.bytes)) {
      const auto at = static_cast<size_t>(d.bytes);
      const auto offset = static_cast<off_t>(j.offset + at);
      const ssize_t n = j.write ? ::pwrite(j.fd, j.data + at, j.bytes - at, offset)
                                : ::pread(j.fd, j.data + at, j.bytes - at, offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) d.error = errno;
      if (n <= 0) break;
      d.bytes += n;
      // end of the file
      if (at + static_cast<size_t>(n) < j.bytes && static_cast<size_t>(n) % kIoAlignment != 0) break;
    }
    return d;
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      queued_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const Job job = jobs_.front();
      jobs_.pop_front();
      lock.unlock();
      const Done d = run(job);
      lock.lock();
      done_.push_back(d);
      ended_.notify_one();
    }
  }

  const int depth_;
  int in_flight_ = 0;  // the caller's
  std::vector<Job> new_;
  std::mutex mutex_;
  std::condition_variable queued_, ended_;
  std::deque<Job> jobs_;
  std::deque<Done> done_;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> IoQueue::create(const Options& options) {
  if (options.depth < 1) return make_error(Code::kInvalidArgument, "an I/O queue needs a depth of at least 1");
  if (!options.threads) {
    auto ring = std::make_unique<Ring>(options.depth);
    if (ring->open()) return std::unique_ptr<IoQueue>(std::move(ring));
  }
  try {
    return std::unique_ptr<IoQueue>(std::make_unique<Threads>(options.depth, options.thread_count));
  } catch (const std::exception& e) {
    return make_error(Code::kResourceExhausted, "no threads for an I/O queue: {}", e.what());
  }
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

void AlignedBuffer::resize(size_t bytes) {
  bytes = io_aligned(bytes);
  if (bytes <= size_) return;
  void* p = std::aligned_alloc(kIoAlignment, bytes);
  if (p == nullptr) throw std::bad_alloc();
  std::free(data_);
  data_ = static_cast<std::byte*>(p);
  size_ = bytes;
}

}  // namespace deepinfer
