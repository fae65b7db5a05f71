// The indexer for heads of 128 channels (spec/model.md 8): a cluster of CTAs takes a row, scores its entries and
// selects from the keys of the scores, which stay in shared memory.
//
// Each CTA has a part of the entries, in order. Some warps fetch their keys in tiles of 64 into a ring, warpgroups
// score a tile each (select_keys.cuh). Selection counts keys by their upper bits, all CTAs in one histogram, then by
// the lower ones among those of the bin in which the last selected one lies.
#include "ops/cuda/select_best.cuh"

namespace deepinfer::ops::cuda {
namespace {

// Few rows, one CTA an SM; and rows enough for three, which fill each other's waits. Longer parts keep their keys in
// global memory.
using FewRows = Shape<6, 3, 3, 32768, 1, true>;
using ManyRows = Shape<2, 3, 1, 4096, 3, false>;

static_assert(sizeof(Shared<FewRows>) <= 227 << 10 &&
              ManyRows::kCtasAnSm * (sizeof(Shared<ManyRows>) + 1024) <= 228 << 10);

// A warp that fetches tiles first, first + kFetchers, .. into the ring. A lane looks up a piece of 1 << kPieceShift
// keys, which lie in one page and in one candidate block; for each 8 keys all lanes copy 16 bytes.
template <int kPieceShift, class C>
__device__ void fetch_pieces(const ScoreArguments& a, int first_block, const Scored& scored, const Part& part,
                             int first, Shared<C>* shared) {
  constexpr int kEachShift = 6 - kPieceShift, kEach = 1 << kEachShift, kPiece = 1 << kPieceShift,
                kStep = 32 >> kEachShift;
  const int lane = threadIdx.x % 32, pieces = (part.count + kPiece - 1) >> kPieceShift, tiles = part.tiles();
  if (first >= tiles) return;
  // The lane's piece of the warp's tiles from number n on; behind the last piece: that one.
  const auto piece_of = [&](int n) {
    return min(((first + C::kFetchers * (n + (lane >> kEachShift))) << kEachShift) + lane % kEach, pieces - 1);
  };
  // Two loads that depend on each other, begun one and two rounds ahead: the candidate block and its page.
  const auto kept = [&](int n) {
    return scored.blocks == nullptr ? 0 : scored.blocks[(part.first >> kPieceShift) + piece_of(n)];
  };
  const auto entry_of = [&](int n, int block) {
    return scored.blocks == nullptr ? part.first + (piece_of(n) << kPieceShift) : block << kPieceShift;
  };
  const auto page_of = [&](int entry) { return a.v.blocks[first_block + (entry >> a.page_shift)]; };
  const auto from_lane = [](const std::byte* p, int from) {
    return reinterpret_cast<const std::byte*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(p), from));
  };
  int next_entry = entry_of(0, kept(0)), next_page = page_of(next_entry), next_kept = kept(kStep);
  int slot = first, parity = 1;
  // Codes: four lanes a key. Scales: two lanes 8 keys.
  const int code_at = code_offset(lane / 4, lane % 4), scale_key = lane / 2 * 8 & 63;
#pragma unroll 1
  for (int n = 0; first + C::kFetchers * n < tiles; n += kStep) {
    const std::byte* page = a.pages + static_cast<int64_t>(next_page) * a.page_stride;
    const int offset = next_entry & ((1 << a.page_shift) - 1);
    const std::byte *codes = page + a.key_offset + offset * 64, *scales = page + a.key_scale_offset + offset * 4;
    next_entry = entry_of(n + kStep, next_kept);
    next_page = page_of(next_entry);
    next_kept = kept(n + 2 * kStep);
    const int here = min(kStep, (tiles - first - C::kFetchers * n + C::kFetchers - 1) / C::kFetchers);
#pragma unroll 1
    for (int g = 0; g < here; ++g) {
      Slot* to = &shared->ring[slot];
      barrier_wait(&to->empty, parity);
      const uint32_t at = shared_address(to->tile);
#pragma unroll
      for (int p = 0; p < kEach; ++p) {
        const std::byte* from = from_lane(codes, g * kEach + p) + lane * 16;
#pragma unroll
        for (int i = 0; i < kPiece / 8; ++i) async_load<16>(at + code_at + (p * kPiece + 8 * i) * 64, from + i * 512);
      }
      const std::byte* from = from_lane(scales, g * kEach + (scale_key >> kPieceShift));
      if (lane < 16) async_load<16>(at + kTileScales + lane * 16, from + scale_key % kPiece * 4 + lane % 2 * 16);
      barrier_arrive_after_loads(&to->full);
      slot += C::kFetchers;
      if (slot >= C::kSlots) slot -= C::kSlots, parity ^= 1;
    }
  }
}
template <class C>
__device__ void fetch(const ScoreArguments& a, int first_block, const Scored& scored, const Part& part, int first,
                      Shared<C>* shared) {
  const int shift = scored.blocks == nullptr ? 6 : a.candidate_shift;
  if (shift == 6) return fetch_pieces<6>(a, first_block, scored, part, first, shared);
  if (shift == 5) return fetch_pieces<5>(a, first_block, scored, part, first, shared);
  if (shift == 4) return fetch_pieces<4>(a, first_block, scored, part, first, shared);
  fetch_pieces<3>(a, first_block, scored, part, first, shared);
}

// A warpgroup that scores: bf16 scores of whole tiles into shared->keys, or to `far` where that is not null.
template <class C>
__device__ void score(int tiles, uint16_t* far, Shared<C>* shared) {
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  const IndexOperands operands(shared->queries);
  // Lanes 0 and 1 of a quad keep a key each.
  uint16_t* to = (far != nullptr ? far : shared->keys) + group * kIndexTile + operands.key0() + 8 * operands.quad();
  int slot = group, parity = 0;
#pragma unroll 1
  for (int tile = group; tile < tiles; tile += C::kGroups) {
    Slot* in = &shared->ring[slot];
    barrier_wait(&in->full, parity);
    const uint32_t both = score_keys(in->tile, operands, shared->queries, [&] {
      if (operands.first_lane()) barrier_arrive(&in->empty);
    });
    if (operands.quad() < 2) *to = static_cast<uint16_t>(both >> (16 * operands.quad()));
    to += C::kGroups * kIndexTile;
    slot += C::kGroups;
    if (slot >= C::kSlots) slot = group, parity ^= 1;
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
    // Loads that do not wait for each other come first.
    const SequenceRows* sequence = a.v.sequences + a.v.sequence[row];
    const int first_block = sequence->first_block;
    const Scored scored(a, row);
    const Part part(scored.count, rank, ranks);
    if (threadIdx.x == 0) shared->scored = scored, shared->part = part;
    const int blocks = (scored.visible + a.candidate_size - 1) >> a.candidate_shift;
    if (scored.count <= a.topk && (a.kept == nullptr || blocks <= a.candidate_blocks) && a.scores == nullptr) {
      if (rank == 0) take_all<C>(a, row, scored);
      if constexpr (C::kCluster) cluster_wait();
      return;
    }
    if (threadIdx.x >= C::kScorers) {
      fetch(a, first_block, scored, part, (threadIdx.x - C::kScorers) / 32, shared);
    } else {
      if (threadIdx.x < kIndexHeads * 8 && load_queries(a, row, &shared->queries)) shared->queries.plain_only = 1;
      async_proxy_fence();
      group_sync(1, C::kScorers);
      score(part.tiles(), far_keys<C>(a, part), shared);
    }
  }
  __syncthreads();
  if constexpr (C::kCluster) cluster_wait();  // since long: the other CTAs' histograms are ready
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
