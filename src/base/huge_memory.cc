#include "base/huge_memory.h"

#include <cstdint>

#include <sys/mman.h>

namespace deepinfer {
namespace {

constexpr size_t kSmallPage = 4096, kHugePage = 2 << 20;

}  // namespace

Result<HugeMemory> HugeMemory::allocate(size_t bytes) {
  HugeMemory m;
  if (bytes == 0) return m;
  const size_t page = bytes >= kHugePage ? kHugePage : kSmallPage;
  const size_t whole = (bytes + page - 1) / page * page, mapped = whole + page;
  void* p =
      whole < bytes ? MAP_FAILED : ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return make_error(Code::kResourceExhausted, "{} MiB of memory are not available; use smaller steps or less context",
                      bytes >> 20);
  const auto start = reinterpret_cast<uintptr_t>(p), aligned = (start + page - 1) & ~uintptr_t{page - 1};
  if (aligned > start) ::munmap(p, aligned - start);
  if (start + mapped > aligned + whole)
    ::munmap(reinterpret_cast<void*>(aligned + whole), start + mapped - aligned - whole);
  m.data_ = reinterpret_cast<void*>(aligned);
  m.bytes_ = whole;
  if (page == kHugePage) ::madvise(m.data_, whole, MADV_HUGEPAGE);  // a wish: small pages work as well
  return m;
}

HugeMemory::~HugeMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace deepinfer
