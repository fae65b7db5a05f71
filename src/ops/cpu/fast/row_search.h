// One row's search for its best keys, and for its best blocks of keys where it chooses candidates (spec/model.md 8.3,
// 8.4; internal to ops/cpu). Keys that may be among them wait until sixteen can be scored together.
//
//   RowSearch search;
//   search.begin(&best, nullptr, 0, packed_memory);          // RowSearch::memory_bytes(channels)
//   search.wait(key_data, key_scales, channels, key);        // keys ascend; then, where full(), as a KeyPanel from
//   search.take(kernels, score, search.key(i));              // data() and scales(), its keys in turn; clear()
//   search.end(kernels);
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cpu/fast/best_keys.h"

namespace deepinfer::ops::cpu::fast {

class RowSearch {
 public:
  static int64_t memory_bytes(int64_t channels) { return kKeyLanes * (channels / 2 + channels / kIndexGroup); }

  // blocks: null, or where the best blocks of block_keys keys go.
  void begin(BestKeys* best, BestKeys* blocks, int64_t block_keys, uint8_t* memory, int64_t channels) {
    best_ = best;
    blocks_ = blocks;
    block_keys_ = block_keys;
    block_ = -1;
    count_ = 0;
    data_ = memory;
    scales_ = memory + kKeyLanes * channels / 2;
  }
  // A later key that scores no more need not come. NaN: all do.
  float above() const {
    if (blocks_ == nullptr || blocks_->above > best_->above) return best_->above;
    return blocks_->above;
  }

  void wait(const uint8_t* data, const uint8_t* scales, int64_t channels, int32_t key) {
    const int64_t groups = channels / kIndexGroup;
    for (int64_t g = 0; g < groups; ++g) {
      std::memcpy(data_ + (count_ * groups + g) * (kIndexGroup / 2), data + g * (kIndexGroup / 2), kIndexGroup / 2);
      scales_[count_ * groups + g] = scales[g];
    }
    keys_[count_++] = key;
  }
  bool full() const { return count_ == kKeyLanes; }
  int64_t count() const { return count_; }
  int32_t key(int64_t i) const { return keys_[i]; }
  const uint8_t* data() const { return data_; }
  const uint8_t* scales() const { return scales_; }
  void clear() { count_ = 0; }

  void take(const Kernels& kernels, float score, int32_t key) {
    best_->add(kernels, score, key);
    if (blocks_ == nullptr) return;
    const auto block = static_cast<int32_t>(key / block_keys_);
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
  int64_t block_keys_ = 0, count_ = 0;
  uint8_t *data_ = nullptr, *scales_ = nullptr;
  int32_t keys_[kKeyLanes];
  int32_t block_ = -1;  // of the last keys taken
  float top_ = 0;       // their best score
};

}  // namespace deepinfer::ops::cpu::fast
