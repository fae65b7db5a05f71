// Memory for records: at the start of a cache line, since copies and checksums go through it 64 bytes at a time, and
// not zeroed before it is written.
//
//   RecordBytes bytes(record_bytes(tokens, page));   // contents are whatever was there
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace deepinfer::kv {

template <class T>
struct RecordAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  RecordAllocator() = default;
  template <class U>
  RecordAllocator(const RecordAllocator<U>&) {}

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* p, size_t n) { ::operator delete(p, n * sizeof(T), kAlignment); }
  template <class U>
  void construct(U* p) {
    ::new (static_cast<void*>(p)) U;
  }
  template <class U, class... Args>
  void construct(U* p, Args&&... args) {
    ::new (static_cast<void*>(p)) U(std::forward<Args>(args)...);
  }
  bool operator==(const RecordAllocator&) const = default;
};

using RecordBytes = std::vector<std::byte, RecordAllocator<std::byte>>;

}  // namespace deepinfer::kv
