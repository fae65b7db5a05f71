// Zeroed memory on huge pages where the kernel gives them: for arrays that are walked again and again, whose 4 KiB
// pages would overflow the address caches. Pages appear on the memory node of the thread that writes them first.
//
//   Result<HugeMemory> m = HugeMemory::allocate(bytes);
//   uint16_t* words = m->as<uint16_t>();
//
// The start is aligned to 2 MiB when bytes is at least that, else to 4 KiB. An address space that is used up gives
// kResourceExhausted; pages themselves come from the kernel when they are written.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace deepinfer {

class HugeMemory {
 public:
  static Result<HugeMemory> allocate(size_t bytes);

  HugeMemory() = default;
  HugeMemory(HugeMemory&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  HugeMemory& operator=(HugeMemory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~HugeMemory();

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace deepinfer
