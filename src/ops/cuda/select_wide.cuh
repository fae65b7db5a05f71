// The CTAs of the indexer for heads of 128 channels: what each takes of a row, and its shared memory. Internal to
// select_wide.cu.
#pragma once

#include <algorithm>

#include "ops/cuda/select_keys.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kClusterMax = 8, kVector = 8;
inline constexpr int kHighBits = 11, kHighBins = 1 << kHighBits, kLowBins = 1 << (16 - kHighBits);
// What a row selects: entries and, at the source of candidates, blocks.
inline constexpr int kLists = 2;

__device__ __forceinline__ int cluster_rank() {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return static_cast<int>(r);
}
__device__ __forceinline__ void cluster_add(int* p, int rank, int n) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nred.relaxed.cluster.shared::cluster.add.u32 "
      "[remote], %2;\n}\n" ::"r"(shared_address(p)),
      "r"(rank), "r"(n)
      : "memory");
}

// The part of a row's entries that a CTA scores.
struct Part {
  int first, count;  // of the row's scored entries; the count may be 0

  __device__ Part(int all, int rank, int ranks) {  // ranks: a power of two
    // Whole vectors of keys of candidate blocks.
    constexpr int kUnit = kIndexTile * kVector;
    const int units = (all + kUnit - 1) / kUnit, each = ((units + ranks - 1) >> (31 - __clz(ranks))) * kUnit;
    first = min(rank * each, all);
    count = min(each, all - first);
  }
  __device__ int tiles() const { return (count + kIndexTile - 1) / kIndexTile; }
};

// How a CTA is made up. kFinders: threads that look for a bin.
template <int kGroupCount, int kSlotsEach, int kFetcherCount, int kLocal, int kCtas, bool kInCluster>
struct Shape {
  static constexpr int kGroups = kGroupCount, kFetchers = kFetcherCount, kSlots = kSlotsEach * kGroups,
                       kScorers = 128 * kGroups, kThreads = kScorers + 32 * kFetchers, kWarps = kThreads / 32,
                       kLocalKeys = kLocal, kCtasAnSm = kCtas, kFinders = kScorers >= 512 ? 512 : 256;
  static constexpr bool kCluster = kInCluster;
};

// Keys of the bin in which the last selected one lies, by their lower bits, and keys of larger bins.
struct LowCounts {
  int low[kLowBins], above;
};
struct Slot {
  uint8_t tile[kIndexTileBytes];
  uint64_t full, empty;
};
template <class C>
struct Shared {
  alignas(128) uint16_t keys[C::kLocalKeys];
  union {
    Slot ring[C::kSlots];
    uint16_t block_keys[C::kLocalKeys / kVector];  // after the scores
  };
  alignas(128) IndexQueries queries;
  alignas(16) int high_own[kLists][kHighBins];                          // keys by their upper bits: of this CTA,
  int high_all[C::kCluster ? kLists : 1][C::kCluster ? kHighBins : 1];  // of the cluster
  LowCounts of_warp[kLists][C::kWarps], of_rank[kLists][kClusterMax];
  int found[kLists][2];      // bin, keys in larger bins
  int threshold[kLists][2];  // key, how many that equal it are taken
  int scan[kLists][C::kWarps];
  uint16_t hits[C::kWarps][32];  // vectors that a warp looks into
  // Of the row: here, and not in registers, while it is scored.
  Scored scored;
  Part part;

  __device__ const int* high(int list) const { return C::kCluster ? high_all[list] : high_own[list]; }
};

}  // namespace deepinfer::ops::cuda
