// Many reads and writes of files at once, without waiting: io_uring where the kernel gives it, else a few threads.
//
//   DI_ASSIGN_OR_RETURN(auto io, IoQueue::create({.depth = 128}));
//   io->read(fd, buffer, offset, tag);               // queued; false: depth operations are in flight
//   io->submit();                                    // hands all queued ones to the kernel at once
//   std::array<IoQueue::Done, 32> done;
//   for (size_t i = 0, n = io->poll(done); i < n; ++i) on_done(done[i].tag, done[i].bytes, done[i].error);
//
// Buffers belong to the operation until it is done. `bytes` may be fewer than asked at the end of a file; `error` is an
// errno, 0 if none. Operations end in any order. For O_DIRECT use AlignedBuffer and multiples of kIoAlignment.
// Destroying the queue waits for what is in flight. One thread uses a queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace deepinfer {

inline constexpr size_t kIoAlignment = 4096;

inline constexpr size_t io_aligned(size_t bytes) { return (bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment; }

class IoQueue {
 public:
  struct Options {
    int depth = 64;
    bool threads = false;  // no io_uring even where it is there
    int thread_count = 8;
  };
  struct Done {
    uint64_t tag = 0;
    int64_t bytes = 0;
    int error = 0;
  };

  // kResourceExhausted if the kernel gives neither a ring nor threads.
  static Result<std::unique_ptr<IoQueue>> create(const Options& options);
  virtual ~IoQueue() = default;

  virtual const char* name() const = 0;  // "io_uring", "threads"
  virtual bool read(int fd, std::span<std::byte> into, uint64_t offset, uint64_t tag) = 0;
  virtual bool write(int fd, std::span<const std::byte> from, uint64_t offset, uint64_t tag) = 0;
  virtual void submit() = 0;
  virtual size_t poll(std::span<Done> done) = 0;
  // As poll(), but waits for the first one, if any is in flight.
  virtual size_t wait(std::span<Done> done) = 0;
  virtual int in_flight() const = 0;  // queued ones included
};

// Memory for O_DIRECT. Contents are not kept by resize().
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { resize(bytes); }
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  void resize(size_t bytes);  // rounded up to kIoAlignment; at least as large as before
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> first(size_t n) { return {data_, n}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deepinfer
