// Which blocks (or state slots) of device memory are free, and how many holders each has. Bookkeeping only: ids, no
// bytes.
//
//   BlockPool blocks(1024);
//   int b = blocks.take();          // one holder; kNoBlock when none is free
//   blocks.share(b);                // a second holder: a fork, or the prefix index
//   blocks.release(b);              // the last release frees it
//
// A block of 128 tokens is written by one holder only: who wants to write a block with more holders takes a copy first
// (copy on write, done by the scheduler). State slots use the same class and are never shared.
//
// Freed ids are handed out in the order in which they were freed. Releasing or sharing a free id is a defect and
// aborts. Not thread-safe; nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace deepinfer::kv {

inline constexpr int kBlockTokens = 128;
inline constexpr int kNoBlock = -1;

class BlockPool {
 public:
  explicit BlockPool(int count);

  int take();
  void share(int id);
  void release(int id);

  int holders(int id) const { return holders_[id]; }
  int free_count() const { return free_count_; }
  int count() const { return static_cast<int>(holders_.size()); }

  // Called when an id becomes free, before it can be taken again: tests fill the memory with poison.
  void on_free(std::function<void(int)> f) { on_free_ = std::move(f); }

 private:
  std::vector<int32_t> holders_;
  std::vector<int32_t> free_;  // ring of free ids: free_count_ of them from head_ on
  int head_ = 0;
  int free_count_ = 0;
  std::function<void(int)> on_free_;
};

}  // namespace deepinfer::kv
