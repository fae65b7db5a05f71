// One row's search for its best keys, and for its best blocks of keys where it chooses candidates (spec/model.md 8.3,
// 8.4; internal to ops/cpu).
//
//   RowSearch search;
//   search.begin(&best, nullptr, 0);
//   if (!(score <= search.above())) search.take(kernels, score, key);    // keys ascend
//   search.end(kernels);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ops/cpu/fast/best_keys.h"

namespace deepinfer::ops::cpu::fast {

class RowSearch {
 public:
  // blocks: null, or where the best blocks of block_keys keys go.
  void begin(BestKeys* best, BestKeys* blocks, int64_t block_keys) {
    best_ = best;
    blocks_ = blocks;
    block_keys_ = block_keys;
    block_ = -1;
  }
  // A later key that scores no more need not come. NaN: all do.
  float above() const {
    if (blocks_ == nullptr || std::isnan(best_->above)) return best_->above;
    return blocks_->above > best_->above ? best_->above : blocks_->above;
  }

  bool fresh() const { return best_->count == 0 && std::isnan(best_->above); }
  BestKeys* best() const { return best_; }
  BestKeys* blocks() const { return blocks_; }
  int32_t block_of(int32_t key) const { return static_cast<int32_t>(key / block_keys_); }

  void take(const Kernels& kernels, float score, int32_t key) {
    best_->add(kernels, score, key);
    if (blocks_ == nullptr) return;
    const int32_t block = block_of(key);
    if (block == block_) {
      top_ = std::max(top_, score);
    } else {
      end(kernels);
      block_ = block;
      top_ = score;
    }
  }
  // The block that was begun is over.
  void end(const Kernels& kernels) {
    constexpr float kMax = 0x1.fep127f;  // only the newest block counts as infinite
    if (block_ >= 0) blocks_->add(kernels, std::min(top_, kMax), block_);
    block_ = -1;
  }
  // Instead: the newest block is always kept.
  void end_with_newest(const Kernels& kernels, int32_t newest) {
    if (block_ != newest) end(kernels);
    block_ = -1;
    blocks_->add(kernels, std::numeric_limits<float>::infinity(), newest);
  }

 private:
  BestKeys *best_ = nullptr, *blocks_ = nullptr;
  int64_t block_keys_ = 0;
  int32_t block_ = -1;  // of the last keys taken
  float top_ = 0;       // their best score
};

}  // namespace deepinfer::ops::cpu::fast
