// Exact selection of the best keys of a row whose CTAs keep a part each: counts by upper bits in one histogram of all
// CTAs, then by lower bits among the keys of the bin in which the last selected one lies. Internal to select_wide.cu.
#pragma once

#include "ops/cuda/select_wide.cuh"

namespace deepinfer::ops::cuda {

template <class C>
__device__ __forceinline__ void meet() {
  C::kCluster ? cluster_sync() : __syncthreads();
}
struct List {
  bool active;
  uint16_t* keys;  // of this CTA, n of them, a multiple of kVector: zeros behind the last
  int n, keep;
};

// Each warp has a part of n keys, in order, whole blocks of up to 64; lanes take vectors in turn: take(v, there), the
// other lanes of a warp's last turn with there = false.
template <class C, class Take>
__device__ __forceinline__ void for_vectors(int n, Take take) {
  constexpr int kShare = 8;
  const int vectors = n / kVector, lane = threadIdx.x % 32,
            each = (vectors + C::kWarps * kShare - 1) / (C::kWarps * kShare) * kShare,
            first = static_cast<int>(threadIdx.x) / 32 * each, end = min(first + each, vectors);
#pragma unroll 1
  for (int v = first; v < end; v += 32) take(v + lane, v + lane < end);
}
__device__ __forceinline__ void load_vector(const List& list, int v, bool there, uint32_t (&w)[4]) {
  uint4 u{};
  if (there) u = *reinterpret_cast<const uint4*>(list.keys + v * kVector);
  w[0] = u.x, w[1] = u.y, w[2] = u.z, w[3] = u.w;
}
// The largest of a vector's keys.
__device__ __forceinline__ int largest(const uint32_t (&w)[4]) {
  const uint32_t m = __vmaxu2(__vmaxu2(w[0], w[1]), __vmaxu2(w[2], w[3]));
  return static_cast<int>(max(m & 0xffff, m >> 16));
}

// Calls take(index, key) for all keys from `least` on, and others, in order: by all lanes, later lanes with later keys,
// key = 0 where there is none. Most vectors have no such key; four of those that have one go at a time, eight lanes each.
template <class C, class Take>
__device__ __forceinline__ void for_large(const List& list, int least, Shared<C>* shared, Take take) {
  const int lane = threadIdx.x % 32;
  uint16_t* hits = shared->hits[threadIdx.x / 32];
  for_vectors<C>(list.n, [&](int v, bool there) {
    uint32_t w[4];
    load_vector(list, v, there, w);
    const bool hit = there && largest(w) >= least;
    const uint32_t all = __ballot_sync(0xffffffffu, hit);
    if (hit) hits[__popc(all & ((1u << lane) - 1))] = static_cast<uint16_t>(lane);
    __syncwarp();
    const int n = __popc(all), first = v - lane;
#pragma unroll 1
    for (int i = lane / kVector; i - lane / kVector < n; i += 32 / kVector) {
      const int index = (first + (i < n ? hits[i] : 0)) * kVector + lane % kVector;
      take(index, i < n ? static_cast<int>(list.keys[index]) : 0);
    }
    __syncwarp();
  });
}

// A pair of bf16 scores as keys (ordered_key).
__device__ __forceinline__ uint32_t ordered_keys(uint32_t scores) {
  const uint32_t x = word_of(__hadd2_rn(pair_of(scores), pair_of(0)));  // -0 becomes +0
  uint32_t signs;                                                       // the sign bit in all bits of its half
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(x));
  return x ^ (signs | 0x80008000u);
}

// Scores become keys, those of candidate blocks too where the second list is active, and both are counted. newest: the
// row's last block, counted from this CTA's first; it is always kept, since it may be a partial one.
template <class C>
__device__ void make_keys(const ScoreArguments& a, const List (&lists)[kLists], int count, int newest,
                          Shared<C>* shared) {
  const int block_shift = a.candidate_shift - 3;
  for_vectors<C>(lists[0].n, [&](int v, bool mine) {
    uint32_t w[4];
    load_vector(lists[0], v, mine, w);
    const int there = mine ? count - v * kVector : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = there >= 2 * i + 2 ? ordered_keys(w[i]) : there == 2 * i + 1 ? ordered_keys(w[i]) & 0xffff : 0;
      if (there > 2 * i) atomicAdd(&shared->high_own[0][(w[i] & 0xffff) >> (16 - kHighBits)], 1);
      if (there > 2 * i + 1) atomicAdd(&shared->high_own[0][w[i] >> (32 - kHighBits)], 1);
    }
    if (mine) *reinterpret_cast<uint4*>(lists[0].keys + v * kVector) = {w[0], w[1], w[2], w[3]};
    int best = largest(w);
    if (!lists[1].active) return;
    for (int o = 1; o < 1 << block_shift; o *= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, o));
    const int block = v >> block_shift;
    if (block << block_shift != v || there <= 0) return;
    const int key = block == newest ? kPinned : min(best, static_cast<int>(kLargestFinite));
    lists[1].keys[block] = static_cast<uint16_t>(key);
    atomicAdd(&shared->high_own[1][key >> (16 - kHighBits)], 1);
  });
}

// The bin, counted from the largest, in which the keep-th key of each list lies, and the keys in larger bins.
template <class C>
__device__ void find_bins(const List (&lists)[kLists], Shared<C>* shared) {
  constexpr int kEach = kHighBins / C::kFinders;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            first = kHighBins - 1 - static_cast<int>(threadIdx.x) * kEach;
  int count[kLists][kEach], sum[kLists], seen[kLists];
#pragma unroll
  for (int l = 0; l < kLists; ++l) {
    sum[l] = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      sum[l] += count[l][i] = threadIdx.x < C::kFinders && lists[l].active ? shared->high(l)[first - i] : 0;
    seen[l] = sum[l];
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, seen[l], o);
      if (lane >= o) seen[l] += other;
    }
    if (lane == 31) shared->scan[l][warp] = seen[l];
  }
  __syncthreads();
#pragma unroll
  for (int l = 0; l < kLists; ++l) {
    seen[l] += __reduce_add_sync(0xffffffffu, lane < warp ? shared->scan[l][lane] : 0) - sum[l];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (seen[l] < lists[l].keep && seen[l] + count[l][i] >= lists[l].keep)
        shared->found[l][0] = first - i, shared->found[l][1] = seen[l];
      seen[l] += count[l][i];
    }
  }
  __syncthreads();
}

// Counts the keys of found bins by their lower bits, for each warp's part and, in all CTAs, for each CTA's.
template <class C>
__device__ void count_low(const List (&lists)[kLists], int rank, int ranks, Shared<C>* shared) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int l = 0; l < kLists; ++l) {
    if (!lists[l].active) continue;
    const int high = shared->found[l][0];
    LowCounts* mine = &shared->of_warp[l][warp];
    int above = 0;
    for_large(lists[l], high << (16 - kHighBits), shared, [&](int, int key) {
      const int bin = key >> (16 - kHighBits);
      above += bin > high;
      if (bin == high && key != 0) atomicAdd(&mine->low[key % kLowBins], 1);
    });
    above = __reduce_add_sync(0xffffffffu, above);
    if (threadIdx.x % 32 == 0) mine->above = above;
  }
  __syncthreads();
  constexpr int kEach = sizeof(LowCounts) / 4;
  if (threadIdx.x < kLists * kEach) {
    const int l = threadIdx.x / kEach, i = threadIdx.x % kEach;
    int sum = 0;
    for (int w = 0; w < C::kWarps; ++w) sum += reinterpret_cast<const int*>(&shared->of_warp[l][w])[i];
    int* to = reinterpret_cast<int*>(&shared->of_rank[l][rank]) + i;
    if constexpr (!C::kCluster) *to = sum;
    for (int r = 0; C::kCluster && r < ranks; ++r) cluster_store(shared_address(to), r, sum);
  }
}

// The key of the last selected one, by one warp a list.
template <class C>
__device__ void find_threshold(int l, int keep, int ranks, Shared<C>* shared) {
  const int lane = threadIdx.x % 32;
  int n = 0;
  for (int r = 0; lane < kLowBins && r < ranks; ++r) n += shared->of_rank[l][r].low[lane];
  int from_here = n;  // keys of this and larger values
#pragma unroll
  for (int o = 1; o < kLowBins; o *= 2) {
    const int other = __shfl_down_sync(0xffffffffu, from_here, o);
    if (lane + o < kLowBins) from_here += other;
  }
  const int above = shared->found[l][1] + from_here - n;
  if (lane < kLowBins && above < keep && above + n >= keep)
    shared->threshold[l][0] = shared->found[l][0] * kLowBins + lane, shared->threshold[l][1] = keep - above;
}

// The `keep` best keys of the cluster's parts of each active list, whose keys have been counted: calls take(list, index
// in this CTA's part, position), positions ascending with the index over all parts.
template <class C, class Take>
__device__ void select_best(const List (&lists)[kLists], int rank, int ranks, Shared<C>* shared, Take take) {
  if constexpr (C::kCluster) {
    for (int i = threadIdx.x; i < kLists * kHighBins; i += C::kThreads) {
      const int n = shared->high_own[0][i];
      for (int r = 0; n > 0 && r < ranks; ++r) cluster_add(&shared->high_all[0][i], r, n);
    }
  }
  meet<C>();
  find_bins(lists, shared);
  count_low(lists, rank, ranks, shared);
  meet<C>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int l = 0; l < kLists; ++l) {
    if (warp == l && lists[l].active) find_threshold(l, lists[l].keep, ranks, shared);
  }
  __syncthreads();
#pragma unroll
  for (int l = 0; l < kLists; ++l) {
    if (!lists[l].active) continue;
    const int threshold = shared->threshold[l][0], ties = shared->threshold[l][1];
    // Of the CTAs and warps before.
    int greater = 0, equal = 0;
    for (int i = lane; i < rank + warp; i += 32) {  // with a full part, more than a lane each
      const LowCounts& c = i < rank ? shared->of_rank[l][i] : shared->of_warp[l][i - rank];
      greater += c.above, equal += c.low[threshold % kLowBins];
      for (int k = threshold % kLowBins + 1; k < kLowBins; ++k) greater += c.low[k];
    }
    greater = __reduce_add_sync(0xffffffffu, greater), equal = __reduce_add_sync(0xffffffffu, equal);
    for_large(lists[l], threshold, shared, [&](int index, int key) {
      const uint32_t above = __ballot_sync(0xffffffffu, key > threshold),
                     same = __ballot_sync(0xffffffffu, key == threshold), lower = (1u << lane) - 1;
      const int ties_before = equal + __popc(same & lower);
      // Position: all greater ones before, and those ties before that are taken.
      if (key > threshold || (key == threshold && ties_before < ties))
        take(l, index, greater + __popc(above & lower) + min(ties_before, ties));
      greater += __popc(above), equal += __popc(same);
    });
  }
}

}  // namespace deepinfer::ops::cuda
