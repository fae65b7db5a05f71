// The indexer for heads of 128 channels (spec/model.md 8): a cluster of CTAs takes a row, scores its entries and
// selects from the keys of the scores, which stay in shared memory.
//
// Each CTA has a part of the entries, in order. Some warps fetch their keys in tiles of 64 into a ring, warpgroups
// score a tile each (select_keys.cuh). Selection counts keys by their upper bits, all CTAs in one histogram, then by
// the lower ones among those of the bin in which the last selected one lies.
#include <algorithm>

#include "ops/cuda/select_keys.cuh"

namespace deepinfer::ops::cuda {
namespace {

constexpr int kClusterMax = 8, kVector = 8;
constexpr int kHighBits = 11, kHighBins = 1 << kHighBits, kLowBins = 1 << (16 - kHighBits);
// What a row selects: entries and, at the source of candidates, blocks.
constexpr int kLists = 2;

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
// Few rows, one CTA an SM; and rows enough for three, which fill each other's waits. Longer parts keep their keys in
// global memory.
using FewRows = Shape<6, 3, 4, 32768, 1, true>;
using ManyRows = Shape<2, 3, 1, 4096, 3, false>;

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
  // Of the row: here, and not in registers, while it is scored.
  Scored scored;
  Part part;

  __device__ const int* high(int list) const { return C::kCluster ? high_all[list] : high_own[list]; }
};
static_assert(sizeof(Shared<FewRows>) <= 227 << 10 && 3 * (sizeof(Shared<ManyRows>) + 1024) <= 228 << 10);

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

// A warp that fetches tiles first, first + kFetchers, .. into the ring. A lane looks up a piece, which lies in one page
// and in one candidate block; for each 8 keys all lanes copy 16 bytes.
template <class C>
__device__ void fetch(const ScoreArguments& a, const SequenceRows& s, const Scored& scored, const Part& part, int first,
                      Shared<C>* shared) {
  const int lane = threadIdx.x % 32, piece_shift = scored.blocks == nullptr ? 6 : a.candidate_shift,
            each_shift = 6 - piece_shift, pieces = (part.count + (1 << piece_shift) - 1) >> piece_shift,
            tiles = part.tiles(), step = 32 >> each_shift;
  if (first >= tiles) return;
  // The lane's piece of the warp's tiles from number n on; behind the last piece: that one.
  const auto piece_of = [&](int n) {
    return min(((first + C::kFetchers * (n + (lane >> each_shift))) << each_shift) + (lane & ((1 << each_shift) - 1)),
               pieces - 1);
  };
  // Two loads that depend on each other, begun one and two rounds ahead: the candidate block and its page.
  const auto kept = [&](int n) {
    return scored.blocks == nullptr ? 0 : scored.blocks[(part.first >> piece_shift) + piece_of(n)];
  };
  const auto entry_of = [&](int n, int block) {
    return scored.blocks == nullptr ? part.first + (piece_of(n) << piece_shift) : block << piece_shift;
  };
  const auto page_of = [&](int entry) { return a.v.blocks[s.first_block + (entry >> a.page_shift)]; };
  const auto from_lane = [](const std::byte* p, int from) {
    return reinterpret_cast<const std::byte*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(p), from));
  };
  int next_entry = entry_of(0, kept(0)), next_page = page_of(next_entry), next_kept = kept(step);
  int slot = first, round = 0;
  // Scales: two lanes 8 keys.
  const int scale_key = lane / 2 * 8;
#pragma unroll 1
  for (int n = 0; first + C::kFetchers * n < tiles; n += step) {
    const std::byte* page = a.pages + static_cast<int64_t>(next_page) * a.page_stride;
    const int offset = next_entry & ((1 << a.page_shift) - 1);
    const std::byte *codes = page + a.key_offset + offset * 64, *scales = page + a.key_scale_offset + offset * 4;
    next_entry = entry_of(n + step, next_kept);
    next_page = page_of(next_entry);
    next_kept = kept(n + 2 * step);
#pragma unroll 1
    for (int g = 0; g < step && first + C::kFetchers * (n + g) < tiles; ++g) {
      Slot* to = &shared->ring[slot];
      if (round > 0) barrier_wait(&to->empty, (round - 1) & 1);
      const uint32_t at = shared_address(to->tile) + lane * 16;
#pragma unroll
      for (int i = 0; i < kIndexTile / 8; ++i) {
        const std::byte* from = from_lane(codes, (g << each_shift) + (8 * i >> piece_shift));
        async_load<16>(at + i * 512, from + (8 * i & ((1 << piece_shift) - 1)) * 64 + lane * 16);
      }
      const std::byte* from = from_lane(scales, (g << each_shift) + ((scale_key & 63) >> piece_shift));
      if (lane < 16)
        async_load<16>(at + kTileScales, from + (scale_key & ((1 << piece_shift) - 1)) * 4 + lane % 2 * 16);
      barrier_arrive_after_loads(&to->full);
      slot += C::kFetchers;
      if (slot >= C::kSlots) slot -= C::kSlots, ++round;
    }
  }
}

// A warpgroup that scores: bf16 scores of whole tiles into shared->keys, or to `far` where that is not null.
template <class C>
__device__ void score(int tiles, uint16_t* far, Shared<C>* shared) {
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0), end = tiles * kIndexTile;
  const IndexOperands operands(shared->queries);
  int slot = group, parity = 0;
#pragma unroll 1
  for (int first = group * kIndexTile; first < end; first += C::kGroups * kIndexTile) {
    Slot* in = &shared->ring[slot];
    barrier_wait(&in->full, parity);
    const uint32_t both = score_keys(in->tile, operands, shared->queries, [&] {
      if (operands.first_lane()) barrier_arrive(&in->empty);
    });
    // Lanes 0 and 1 of a quad keep a key each.
    if (operands.quad() < 2) {
      const int i = first + operands.key0() + 8 * operands.quad();
      (far != nullptr ? far : shared->keys)[i] = static_cast<uint16_t>(both >> (16 * operands.quad()));
    }
    slot += C::kGroups;
    if (slot >= C::kSlots) slot = group, parity ^= 1;
  }
}

// ---- selection
template <class C>
__device__ __forceinline__ void meet() {
  C::kCluster ? cluster_sync() : __syncthreads();
}
struct List {
  bool active;
  uint16_t* keys;  // of this CTA, n of them, a multiple of kVector: zeros behind the last
  int n, keep;
};

// Each warp has a part of n keys, in order; lanes take vectors in turn: take(vector).
template <class C, class Take>
__device__ __forceinline__ void for_vectors(int n, Take take) {
  const int vectors = n / kVector, each = (vectors + C::kWarps * 32 - 1) / (C::kWarps * 32) * 32,
            first = threadIdx.x / 32 * each;
#pragma unroll 1
  for (int v = first; v < min(first + each, vectors); v += 32) take(v + static_cast<int>(threadIdx.x % 32));
}
__device__ __forceinline__ void load_vector(const List& list, int v, uint32_t (&w)[4]) {
  uint4 u{};
  if (v * kVector < list.n) u = *reinterpret_cast<const uint4*>(list.keys + v * kVector);
  w[0] = u.x, w[1] = u.y, w[2] = u.z, w[3] = u.w;
}
__device__ __forceinline__ int key_of(const uint32_t (&w)[4], int e) {
  return static_cast<int>(w[e / 2] >> (16 * (e % 2)) & 0xffff);
}

// Scores become keys, those of candidate blocks too where the second list is active, and both are counted. newest: the
// row's last block, counted from this CTA's first; it is always kept, since it may be a partial one.
template <class C>
__device__ void make_keys(const ScoreArguments& a, const List (&lists)[kLists], int count, int newest,
                          Shared<C>* shared) {
  const int in_block = a.candidate_size / kVector;
  for_vectors<C>(lists[0].n, [&](int v) {
    uint32_t w[4];
    load_vector(lists[0], v, w);
    int best = 0;
#pragma unroll
    for (int e = 0; e < kVector; e += 2) {
      uint32_t keys = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (v * kVector + e + h >= count) continue;
        const int key = ordered_key(__ushort_as_bfloat16(static_cast<uint16_t>(key_of(w, e + h))));
        atomicAdd(&shared->high_own[0][key >> (16 - kHighBits)], 1);
        best = max(best, key);
        keys |= static_cast<uint32_t>(key) << (16 * h);
      }
      w[e / 2] = keys;
    }
    if (v * kVector < lists[0].n) *reinterpret_cast<uint4*>(lists[0].keys + v * kVector) = {w[0], w[1], w[2], w[3]};
    if (!lists[1].active) return;
    for (int o = 1; o < in_block; o *= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, o));
    const int block = v / in_block;
    if (v % in_block != 0 || v * kVector >= count) return;
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
    for_vectors<C>(lists[l].n, [&](int v) {
      uint32_t w[4];
      load_vector(lists[l], v, w);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const int bin = key_of(w, e) >> (16 - kHighBits);
        above += bin > high;
        if (bin == high) atomicAdd(&mine->low[key_of(w, e) % kLowBins], 1);
      }
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
    if (lane < rank + warp) {
      const LowCounts& c = lane < rank ? shared->of_rank[l][lane] : shared->of_warp[l][lane - rank];
      greater = c.above, equal = c.low[threshold % kLowBins];
      for (int k = threshold % kLowBins + 1; k < kLowBins; ++k) greater += c.low[k];
    }
    greater = __reduce_add_sync(0xffffffffu, greater), equal = __reduce_add_sync(0xffffffffu, equal);
    for_vectors<C>(lists[l].n, [&](int v) {
      uint32_t w[4];
      load_vector(lists[l], v, w);
      uint32_t above = 0, same = 0;  // a bit a key
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        above |= (key_of(w, e) > threshold ? 1u : 0u) << e;
        same |= (key_of(w, e) == threshold ? 1u : 0u) << e;
      }
      const int mine = __popc(above) | __popc(same) << 16;
      int before = mine;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, o);
        if (lane >= o) before += other;
      }
      const int all = __shfl_sync(0xffffffffu, before, 31);
      before -= mine;
      const int g = greater + (before & 0xffff), q = equal + (before >> 16);
      greater += all & 0xffff, equal += all >> 16;
#pragma unroll 1
      for (uint32_t left = above | same; left != 0; left &= left - 1) {
        const int e = __ffs(static_cast<int>(left)) - 1;
        const uint32_t lower = (1u << e) - 1;
        const int ties_before = q + __popc(same & lower);
        // Position: all greater ones before, and those ties before that are taken.
        if ((above >> e & 1) != 0 || ties_before < ties)
          take(l, v * kVector + e, g + __popc(above & lower) + min(ties_before, ties));
      }
    });
  }
}

// A row of which every entry and, where blocks are kept, every block is taken.
template <class C>
__device__ void take_all(const ScoreArguments& a, int row, const Scored& scored) {
  for (int i = threadIdx.x; i < a.topk; i += C::kThreads)
    a.selected[static_cast<int64_t>(row) * a.topk + i] = i < scored.count ? scored.entry(i, a.candidate_shift) : -1;
  if (a.kept != nullptr && threadIdx.x == 0) a.kept[static_cast<int64_t>(row) * a.candidate_blocks] = -1;
}

// Where keys lie that are more than shared memory holds.
template <class C>
__device__ uint16_t* far_keys(const ScoreArguments& a, const Part& part) {
  return part.count <= C::kLocalKeys ? nullptr : a.keys + static_cast<int64_t>(blockIdx.y) * a.columns + part.first;
}

template <class C>
__global__ __launch_bounds__(C::kThreads, C::kCtasAnSm) void select_wide_kernel(const ScoreArguments a) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<C>* shared = reinterpret_cast<Shared<C>*>(memory);
  const int rank = C::kCluster ? cluster_rank() : 0, ranks = C::kCluster ? gridDim.x : 1,
            row = a.first_row + blockIdx.y;
  constexpr int kCounts = sizeof(shared->high_own) + (C::kCluster ? sizeof(shared->high_all) : 0);
  for (int i = threadIdx.x; i < kCounts / 16; i += C::kThreads) reinterpret_cast<uint4*>(shared->high_own)[i] = {};
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared->of_warp) / 4); i += C::kThreads)
    reinterpret_cast<int*>(shared->of_warp)[i] = 0;
  if (threadIdx.x == 0) {
    shared->queries.plain_only = 0;
    for (Slot& slot : shared->ring) barrier_init(&slot.full, 32), barrier_init(&slot.empty, 4);
    barrier_init_fence();
  }
  __syncthreads();
  if constexpr (C::kCluster) cluster_arrive();  // histograms are ready for the other CTAs
  wait_for_inputs();
  start_next_kernel();
  {
    const Scored scored(a, row);
    const Part part(scored.count, rank, ranks);
    if (threadIdx.x == 0) shared->scored = scored, shared->part = part;
    if constexpr (C::kCluster) cluster_wait();
    const int blocks = (scored.visible + a.candidate_size - 1) >> a.candidate_shift;
    if (scored.count <= a.topk && (a.kept == nullptr || blocks <= a.candidate_blocks) && a.scores == nullptr) {
      if (rank == 0) take_all<C>(a, row, scored);
      return;
    }
    if (threadIdx.x >= C::kScorers) {
      fetch(a, a.v.sequences[a.v.sequence[row]], scored, part, (threadIdx.x - C::kScorers) / 32, shared);
    } else {
      if (threadIdx.x < kIndexHeads * 8 && load_queries(a, row, &shared->queries)) shared->queries.plain_only = 1;
      async_proxy_fence();
      group_sync(1, C::kScorers);
      score(part.tiles(), far_keys<C>(a, part), shared);
    }
  }
  __syncthreads();
  const Scored scored = shared->scored;
  const Part part = shared->part;
  uint16_t* far = far_keys<C>(a, part);
  uint16_t* keys = far != nullptr ? far : shared->keys;
  if (a.scores != nullptr) {
    for (int i = threadIdx.x; i < part.count; i += C::kThreads)
      a.scores[static_cast<int64_t>(row) * a.score_columns + scored.entry(part.first + i, a.candidate_shift)] =
          value(__ushort_as_bfloat16(keys[i]));
    __syncthreads();
  }
  const int blocks = (scored.visible + a.candidate_size - 1) >> a.candidate_shift,
            first_block = part.first >> a.candidate_shift,
            blocks_here = (part.count + a.candidate_size - 1) >> a.candidate_shift;
  const bool all = scored.count <= a.topk, all_blocks = a.kept == nullptr || blocks <= a.candidate_blocks;
  if (rank == 0 && all) take_all<C>(a, row, scored);
  if (all && all_blocks) return;
  if (rank == 0 && all_blocks && a.kept != nullptr && threadIdx.x == 0)
    a.kept[static_cast<int64_t>(row) * a.candidate_blocks] = -1;
  uint16_t* block_keys = far != nullptr ? a.maxima + static_cast<int64_t>(blockIdx.y) * a.maxima_columns + first_block
                                        : shared->block_keys;
  const List lists[kLists] = {
      {!all, keys, part.tiles() * kIndexTile, a.topk},
      {!all_blocks, block_keys, (blocks_here + kVector - 1) / kVector * kVector, a.candidate_blocks}};
  if (!all_blocks && blocks_here + static_cast<int>(threadIdx.x) < lists[1].n)
    block_keys[blocks_here + threadIdx.x] = 0;
  make_keys(a, lists, part.count, blocks - 1 - first_block, shared);
  __syncthreads();
  int32_t* selected = a.selected + static_cast<int64_t>(row) * a.topk;
  int32_t* kept = a.kept + static_cast<int64_t>(row) * a.candidate_blocks;
  select_best(lists, rank, ranks, shared, [&](int list, int i, int position) {
    if (list == 0) {
      selected[position] = scored.entry(part.first + i, a.candidate_shift);
    } else {
      kept[position] = first_block + i;
    }
  });
}

template <class C>
void launch(const ScoreArguments& a, int rows, unsigned ranks, cudaStream_t stream) {
  cudaFuncSetAttribute(select_wide_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<C>));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ranks, static_cast<unsigned>(rows));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = sizeof(Shared<C>);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = ranks;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = C::kCluster ? 2 : 1;
  cudaLaunchKernelEx(&config, select_wide_kernel<C>, a);
}

}  // namespace

bool select_wide_fits(const ScoreArguments& a) {
  return a.key_data_bytes == 64 && a.key_scale_bytes == 4 && a.heads <= kIndexHeads && a.page_shift >= 6 &&
         a.candidate_size == 1 << a.candidate_shift && a.candidate_size >= kVector && a.candidate_size <= kIndexTile &&
         (a.page_stride | a.key_offset | a.key_scale_offset) % 16 == 0;
}

void select_wide(const ScoreArguments& a, int rows, int multiprocessors, cudaStream_t stream) {
  if (rows > ManyRows::kCtasAnSm * multiprocessors) return launch<ManyRows>(a, rows, 1, stream);
  unsigned ranks = 1;
  while (ranks < kClusterMax && 2 * static_cast<int>(ranks) * rows <= multiprocessors) ranks *= 2;
  launch<FewRows>(a, rows, ranks, stream);
}

}  // namespace deepinfer::ops::cuda
