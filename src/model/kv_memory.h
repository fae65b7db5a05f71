// Which pages and state slots of a model are free: the least that tests and the command line need. The engine has kv/
// for this.
//
//   KvAllocator kv(options.pages, options.slots);
//   DI_ASSIGN_OR_RETURN(int page, kv.take_page());
//   kv.release_page(page);                               // a page is free when every holder has released it
//
// Pages are counted so that sequences can share a prefix (share_page). kResourceExhausted when none is left. Not
// thread-safe.
#pragma once

#include <vector>

#include "base/status.h"

namespace deepinfer::model {

class KvAllocator {
 public:
  KvAllocator(int pages, int slots);

  Result<int> take_page();
  void share_page(int page) { ++holders_[page]; }
  void release_page(int page);
  Result<int> take_slot();
  void release_slot(int slot) { free_slots_.push_back(slot); }
  int free_pages() const { return static_cast<int>(free_pages_.size()); }
  int free_slots() const { return static_cast<int>(free_slots_.size()); }

 private:
  std::vector<int> holders_, free_pages_, free_slots_;
};

}  // namespace deepinfer::model
