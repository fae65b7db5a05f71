#include "kv/block_pool.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace deepinfer::kv {
namespace {

[[noreturn]] void defect(const char* what, int id) {
  std::fprintf(stderr, "deepinfer: KV bookkeeping is damaged: %s %d, which is free\n", what, id);
  std::abort();
}

}  // namespace

BlockPool::BlockPool(int count) : holders_(count, 0), free_(count), free_count_(count) {
  std::iota(free_.begin(), free_.end(), 0);
}

int BlockPool::take() {
  if (free_count_ == 0) return kNoBlock;
  const int id = free_[head_];
  head_ = head_ + 1 == count() ? 0 : head_ + 1;
  --free_count_;
  holders_[id] = 1;
  return id;
}

void BlockPool::share(int id) {
  if (holders_[id] <= 0) defect("a holder was added to", id);
  ++holders_[id];
}

void BlockPool::release(int id) {
  if (holders_[id] <= 0) defect("a holder was taken from", id);
  if (--holders_[id] > 0) return;
  int tail = head_ + free_count_;
  if (tail >= count()) tail -= count();
  free_[tail] = id;
  ++free_count_;
  if (on_free_) on_free_(id);
}

}  // namespace deepinfer::kv
