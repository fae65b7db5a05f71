// What both chains of two matrices share (chain_few.h): the ring of weights that a warp streams through both, its
// products, and how CTAs wait for each other. Internal to chain_*.cu.
//
// A warp takes blocks of 16 weight rows: of one quarter of K, where four warps make a group, or of all of K (ORDER.md,
// "linear"). The copy engine brings 16 rows x 128 columns at a time, in the order in which the warp multiplies.
#pragma once

#include "ops/cuda/chain_few.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/problem.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kChainWarps = 16, kChainThreads = 32 * kChainWarps, kChainSlots = 6, kBlockRows = 16;
inline constexpr int kChainSlotBytes = kBlockRows * kChunk;
inline constexpr int kChainRingBytes = kChainWarps * kChainSlots * kChainSlotBytes;
inline constexpr int kChainInputBytes = 64 * 256;  // packed inputs of 64 chunks
inline constexpr int kChainSumBytes = 2 * kChainWarps * kBlockRows * 4;
// The ring begins at a multiple of 1,024 bytes.
inline constexpr int kChainSharedBytes = 1024 + kChainRingBytes + kChainInputBytes + kChainSumBytes;

// One of the two matrices as the kernels see it.
struct ChainPart {
  const uint8_t* scales;
  int k, chunks, quarter;  // quarter: chunks of it; all of them where K is not cut
  int blocks, each;        // blocks of 16 rows; of a CTA, 0: as even as can be
};

struct ChainWeights {
  TensorMap maps[2];
  ChainPart parts[2];
  int32_t* progress;  // finished blocks of the first; CTAs that have seen it
  Shifts shifts;
};

// The blocks of a warp, and its chunks of K.
struct ChainShare {
  int block, end, step, first, last;

  __device__ __forceinline__ ChainShare(const ChainPart& p, int warp) {
    const int cta = blockIdx.x, ctas = gridDim.x;
    const bool cut = p.quarter < p.chunks;
    block = (p.each > 0 ? cta * p.each : cta * p.blocks / ctas) + (cut ? warp / kQuarters : warp);
    end = min(p.blocks, p.each > 0 ? (cta + 1) * p.each : (cta + 1) * p.blocks / ctas);
    step = cut ? kChainWarps / kQuarters : kChainWarps;
    first = cut ? warp % kQuarters * p.quarter : 0;
    last = min(p.chunks, first + p.quarter);
  }
};

// Copies a box of the map that begins at `column` (bytes) and `row`.
__device__ __forceinline__ void tensor_load(uint32_t to, const TensorMap* map, int column, int row, uint32_t barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

// A warp's weights. Rows of a slot lie as the copy engine swizzles them: 16 bytes number i of row r at i ^ r % 8. So
// that the eight lanes that read at a time meet different banks, lane l takes row row_of(l / 4) (and that + 8).
class ChainStream {
 public:
  __device__ __forceinline__ ChainStream(const ChainWeights& w, uint32_t ring, uint64_t* full, int warp)
      : w_(w), first_(w.parts[0], warp), second_(w.parts[1], warp), ahead_(first_), policy_(read_once()) {
    ring_ = ring + warp * kChainSlots * kChainSlotBytes;
    full_ = shared_address(full + warp * kChainSlots);
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kChainSlots; ++i) barrier_init(full + warp * kChainSlots + i, 1);
      barrier_init_fence();
    }
    __syncwarp();
    enter(0);
    for (int i = 0; i < kChainSlots; ++i) issue(i);
  }
  template <int kMatrix>
  __device__ __forceinline__ const ChainShare& share() const {
    if constexpr (kMatrix == 0) {
      return first_;
    } else {
      return second_;
    }
  }
  __device__ __forceinline__ static int row_of(int m) { return m / 2 | m % 2 * 4; }

  // Scales of a block: lane c holds those of chunk number c of the warp's.
  template <int kMatrix>
  __device__ __forceinline__ uint32_t scales(int block) const {
    const ChainPart& p = w_.parts[kMatrix];
    const ChainShare& s = share<kMatrix>();
    const int chunk = s.first + static_cast<int>(threadIdx.x) % 32;
    if (block >= s.end || chunk >= s.last) return 0;
    return *reinterpret_cast<const uint32_t*>(p.scales + static_cast<int64_t>(block / 2) * (p.k / 32) + chunk * 4);
  }

  // Sums of a block over the warp's chunks, whose packed inputs begin at shared address x. Element 0: row row_of(lane /
  // 4), element 2: that + 8.
  __device__ __forceinline__ void multiply(int chunks, uint32_t x, uint32_t scales, float (&acc)[4]) {
    using F = Fragment<WeightFormat::kFp8>;
    const int lane = threadIdx.x % 32, quad = lane % 4, row = row_of(lane / 4);
    const uint32_t mine = row * kChunk, place[2] = {(quad ^ row) * 16u, ((quad + 4) ^ row) * 16u};
    x += quad * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = 0;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      uint4 b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = shared_load(x + i * 64);
      x += 256;
      barrier_wait(full_ + 8 * slot_, phases_ >> slot_ & 1);
      phases_ ^= 1u << slot_;
      const uint32_t at = ring_ + slot_ * kChainSlotBytes + mine;
      uint4 v[2][2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) v[h][i] = shared_load(at + h * 8 * kChunk + place[i]);
      }
      uint32_t f[F::kFactors];
      F::factors(__shfl_sync(0xffffffffu, scales, c), 0, quad, f);
      // Copies go into the slot that was read last: what was read from it has been used.
      __syncwarp();
      if (free_slot_ >= 0) issue(free_slot_);
      free_slot_ = slot_;
      if (++slot_ == kChainSlots) slot_ = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uint32_t a[4];
        F::expand(v, j, f, w_.shifts, a);
        mma_bf16(acc, a, j % 2 ? b[j / 2].z : b[j / 2].x, j % 2 ? b[j / 2].w : b[j / 2].y);
      }
    }
  }

  // All blocks of the warp in one of the matrices: put(block, v) by the whole warp, lane r < 16 with the sum of row r.
  // x: shared address of packed inputs; sums: kChainSumBytes; scales: of the first block.
  template <int kMatrix, class Put>
  __device__ __forceinline__ void product(uint32_t x, float* sums, uint32_t scales_of_block, Put put) {
    const ChainPart& p = w_.parts[kMatrix];
    const ChainShare& s = share<kMatrix>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool cut = p.quarter < p.chunks;
    int turn = 0;
#pragma unroll 1
    for (int block = s.block; block < s.end; block += s.step, turn ^= 1) {
      const uint32_t scales_now = scales_of_block;
      scales_of_block = scales<kMatrix>(block + s.step);
      float acc[4];
      multiply(s.last - s.first, x + s.first * 256, scales_now, acc);
      float* to = sums + turn * kChainWarps * kBlockRows;
      if (lane % 4 == 0) {
        to[warp * kBlockRows + row_of(lane / 4)] = acc[0];
        to[warp * kBlockRows + row_of(lane / 4) + 8] = acc[2];
      }
      if (cut) {
        group_sync(1 + warp / kQuarters, 32 * kQuarters);
        if (warp % kQuarters != 0) continue;
      } else {
        __syncwarp();
      }
      const float* q = to + warp * kBlockRows + lane % kBlockRows;
      put(block, cut ? ((q[0] + q[kBlockRows]) + q[2 * kBlockRows]) + q[3 * kBlockRows] : q[0]);
    }
  }

 private:
  __device__ __forceinline__ void enter(int matrix) {
    matrix_ = matrix;
    if (matrix_ == 0 && first_.block >= first_.end) matrix_ = 1;
    if (matrix_ == 1 && second_.block >= second_.end) matrix_ = 2;
    ahead_ = matrix_ == 0 ? first_ : second_;
    chunk_ = ahead_.first;
  }
  __device__ __forceinline__ void issue(int slot) {
    if (matrix_ == 2) return;
    if (threadIdx.x % 32 == 0) {
      const uint32_t barrier = full_ + 8 * slot;
      barrier_expect(barrier, kChainSlotBytes);
      tensor_load(ring_ + slot * kChainSlotBytes, &w_.maps[matrix_], chunk_ * kChunk, ahead_.block * kBlockRows,
                  barrier, policy_);
    }
    if (++chunk_ < ahead_.last) return;
    chunk_ = ahead_.first, ahead_.block += ahead_.step;
    if (ahead_.block >= ahead_.end) enter(matrix_ + 1);
  }

  const ChainWeights& w_;
  ChainShare first_, second_, ahead_;  // ahead_: copied next
  uint64_t policy_;
  uint32_t ring_, full_, phases_ = 0;
  int slot_ = 0, free_slot_ = -1;  // free_slot_: read before slot_
  int matrix_, chunk_;             // copied next
};

// Tells the others that a block of the first matrix is stored, by the warp that has stored it.
__device__ __forceinline__ void chain_block_done(int32_t* progress) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(progress) : "memory");
}

// The whole CTA waits for all blocks of the first matrix; the last CTA leaves zeros behind.
__device__ __forceinline__ void chain_meet(int32_t* progress, int blocks) {
  if (threadIdx.x == 0) {
    // An acquire empties the L1 cache, which others of the SM use: one, at the end.
    int done;
    do {
      asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(progress) : "memory");
    } while (done < blocks);
    __threadfence();
  }
  __syncthreads();
}
__device__ __forceinline__ void chain_leave(int32_t* progress) {
  if (threadIdx.x != 0 || atomicAdd(progress + 1, 1) != static_cast<int>(gridDim.x) - 1) return;
  progress[0] = progress[1] = 0;
}

// Host side. each: of ChainPart.
inline ChainPart chain_part(const LinearWeights& w, int each) {
  static_assert(kWholeChunks >= (kQuarters - 1) * (kQuarters - 1));  // no quarter of a cut K is empty
  const int chunks = w.k / kChunk;
  return {w.scales, w.k, chunks, chunks <= kWholeChunks ? chunks : (chunks + kQuarters - 1) / kQuarters,
          w.n / kBlockRows, each};
}
inline bool chain_takes(const ChainMatrix& m, int chunks_max) {
  return m.map != nullptr && m.w.format == WeightFormat::kFp8 && m.w.n % 32 == 0 && m.w.k % kChunk == 0 &&
         m.w.k / kChunk <= chunks_max;
}

}  // namespace deepinfer::ops::cuda
