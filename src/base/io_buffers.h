// Buffers for O_DIRECT out of huge pages, taken and given back all the time. A device reads into one piece of memory in
// one go; scattered small pages cost it a descriptor each, which can be the slower part of a read.
//
//   IoBuffers buffers({.kept_bytes = 32 << 20});
//   IoBuffer b = buffers.take(120 << 10);             // empty: the machine has no memory left
//   io->read(fd, b.first(120 << 10), offset, tag);    // it goes back when b ends
//
// Sizes are rounded up to eight steps a power of two; buffers of one size share slabs of 2 MiB (one slab each above
// 1 MiB). Start and size are multiples of 4 KiB. Slabs that nobody uses are kept up to kept_bytes. Contents are
// whatever was there. Thread-safe; a buffer must end before its IoBuffers.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/huge_memory.h"

namespace deepinfer {

class IoBuffers;

class IoBuffer {
 public:
  IoBuffer() = default;
  IoBuffer(IoBuffer&& o) noexcept : owner_(std::exchange(o.owner_, nullptr)), slab_(o.slab_), data_(o.data_) {
    o.data_ = {};
  }
  IoBuffer& operator=(IoBuffer&& o) noexcept {
    std::swap(owner_, o.owner_);
    std::swap(slab_, o.slab_);
    std::swap(data_, o.data_);
    return *this;
  }
  ~IoBuffer();

  bool empty() const { return data_.empty(); }
  size_t size() const { return data_.size(); }
  std::byte* data() const { return data_.data(); }
  std::span<std::byte> first(size_t n) const { return data_.first(n); }

 private:
  friend class IoBuffers;
  IoBuffers* owner_ = nullptr;
  void* slab_ = nullptr;
  std::span<std::byte> data_;
};

class IoBuffers {
 public:
  struct Options {
    size_t kept_bytes = 32 << 20;
  };
  explicit IoBuffers(const Options& options);
  ~IoBuffers();
  IoBuffers(const IoBuffers&) = delete;
  IoBuffers& operator=(const IoBuffers&) = delete;

  IoBuffer take(size_t bytes);
  size_t bytes_held() const;  // of all slabs

 private:
  friend class IoBuffer;
  struct Slab;
  void give(Slab* slab, std::byte* data);

  const Options options_;
  mutable std::mutex mutex_;
  std::map<size_t, std::vector<std::unique_ptr<Slab>>> slabs_;  // by size of their buffers
  size_t held_ = 0, unused_ = 0;                                // bytes of slabs; of those that nobody uses
};

}  // namespace deepinfer
