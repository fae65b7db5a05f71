// What the kernels of many rows share: copies of tokens, and stores of a tile (internal to linear_many.cu and
// linear_wide.cu).
#pragma once

#include "ops/cuda/problem.cuh"

namespace deepinfer::ops::cuda {

// What CTA `rank` copies of a tile's tokens: all groups of 8 packed rows, or half of them into both CTAs of a pair
// (kShare). At most 16 groups, so they lie in one packed tile or in two that follow each other.
template <bool kShare>
struct TokenCopies {
  const uint8_t* from[2];
  uint32_t bytes[2];
  uint32_t place;  // in the tile's half chunk
  uint32_t all;    // bytes of the tile's half chunk

  __device__ __forceinline__ TokenCopies(const uint8_t* packed, const GroupTile& t, int halves, int half, int rank) {
    const int groups = (t.rows + 7) / 8, middle = kShare ? (groups + 1) / 2 : groups, skip = rank == 1 ? middle : 0,
              first = t.first_row / 8 + skip, mine = rank == 1 ? groups - middle : middle,
              run = min(mine, kPackedGroups - first % kPackedGroups);
    const int64_t tile = (static_cast<int64_t>(first / kPackedGroups) * halves + half) * kPackedGroups,
                  next = tile + static_cast<int64_t>(halves) * kPackedGroups;
    from[0] = packed + (tile + first % kPackedGroups) * kGroupHalfBytes;
    from[1] = packed + next * kGroupHalfBytes;
    bytes[0] = run * kGroupHalfBytes, bytes[1] = (mine - run) * kGroupHalfBytes;
    place = skip * kGroupHalfBytes, all = groups * kGroupHalfBytes;
  }
  // Starts the copy of the next half chunk to `to`, [group][8 cores][8 rows][16 bytes]. The barrier expects `all`.
  __device__ __forceinline__ void start(uint32_t to, uint32_t barrier) {
    to += place;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (bytes[i] > 0) {
        kShare ? bulk_load_multicast(to, from[i], bytes[i], barrier, 3) : bulk_load(to, from[i], bytes[i], barrier);
      }
      to += bytes[i];
      from[i] += kPackedGroups * kGroupHalfBytes;
    }
  }
};

// The same value for all threads of a warp as far as the compiler can see; without that it serialises wgmma.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

}  // namespace deepinfer::ops::cuda
