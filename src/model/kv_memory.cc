#include "model/kv_memory.h"

namespace deepinfer::model {

KvAllocator::KvAllocator(int pages, int slots) : holders_(pages, 0) {
  for (int i = pages - 1; i >= 0; --i) free_pages_.push_back(i);
  for (int i = slots - 1; i >= 0; --i) free_slots_.push_back(i);
}

Result<int> KvAllocator::take_page() {
  if (free_pages_.empty())
    return make_error(Code::kResourceExhausted, "all {} KV pages are in use; allow more pages or a shorter context",
                      holders_.size());
  const int page = free_pages_.back();
  free_pages_.pop_back();
  holders_[page] = 1;
  return page;
}

void KvAllocator::release_page(int page) {
  if (--holders_[page] == 0) free_pages_.push_back(page);
}

Result<int> KvAllocator::take_slot() {
  if (free_slots_.empty())
    return make_error(Code::kResourceExhausted, "all state slots are in use; run fewer sequences at once");
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

}  // namespace deepinfer::model
