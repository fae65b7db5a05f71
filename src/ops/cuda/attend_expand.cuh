// attend_many.cu's shared memory, and its warps that expand records to bf16. Internal to it; it says how keys lie.
#pragma once

#include "ops/cuda/attend_keys.cuh"

namespace deepinfer::ops::cuda::many {

inline constexpr int kMultipliers = 2 * kGroup, kExpanders = 8, kThreads = kMultipliers + 32 * kExpanders;
inline constexpr int kSlabBytes = kTile * 128, kUnitBytes = 4 * kSlabBytes, kUnits = 3;
inline constexpr int kPartRow = 128 + 16, kPartBytes = 8 * kPartRow, kParts = 3;  // of a warp: 8 keys' codes, scales
inline constexpr int kSumBytes = 4 * kHeads * 4;                                  // of a tile: [16 keys][head]
inline constexpr int kTileProbabilities = kHeads * 128;
// Bytes in shared memory.
inline constexpr int kProbabilities = kUnits * kUnitBytes;  // [tile][head]; before: queries, then scores [tile]
inline constexpr int kRaw = kProbabilities + kMaxTiles * kTileProbabilities;
inline constexpr int kRecords = kRaw + kExpanders * kParts * kPartBytes;  // [warp][tile][8 keys] addresses
inline constexpr int kSums = kRecords + kWideKeys * 8;
inline constexpr int kMaxima = kSums + kMaxTiles * kSumBytes;  // [CTA][warpgroup][head]
inline constexpr int kMaximaBytes = 4 * kHeads * 4;
inline constexpr int kBarriers = kMaxima + kMaximaBytes;
inline constexpr int kSharedBytes = kBarriers + (2 * kUnits + 3) * 8;
static_assert(kSharedBytes <= 227 << 10 && kMaxTiles / 2 * kScoreBytes <= kMaxTiles * kTileProbabilities);

struct Barriers {
  uint64_t full[kUnits], empty[kUnits];
  uint64_t maxima, probabilities;  // of both CTAs are here
  uint64_t taken;                  // the other CTA has this one's probabilities
};

__device__ __forceinline__ void store_16(uint32_t to, const uint32_t (&u)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(u[0]), "r"(u[1]), "r"(u[2]), "r"(u[3])
               : "memory");
}

// A place in the ring of units.
struct Place {
  int slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++slot == kUnits) slot = 0, phase ^= 1;
  }
};

__device__ __forceinline__ Tiles tiles_of(const RowKeys& list) {
  const int entries = list.entries(), window_tiles = (list.in_window + kTile - 1) / kTile;
  return {list.in_window, entries, window_tiles, window_tiles + (entries + kTile - 1) / kTile};
}

// The parts of a row's records in the order in which they are expanded: 128 channels of a window's tile, 256 of the
// entries'.
struct Cursor {
  int tile, part;
  bool values;

  __device__ __forceinline__ Cursor(const Tiles& tiles, int rank) : tile(rank), part(0), values(false) {
    if (tile >= tiles.count) to_values(tiles, rank);
  }
  __device__ __forceinline__ void to_values(const Tiles& tiles, int rank) {
    values = true, tile = 0, part = tiles.is_window(0) ? 2 * rank : rank;
  }
  __device__ __forceinline__ bool done(const Tiles& tiles) const { return values && tile >= tiles.count; }
  __device__ __forceinline__ void next(const Tiles& tiles, int rank) {
    const bool window = tiles.is_window(tile);
    if (part < (values ? (window ? 2 * rank + 1 : rank) : (window ? 3 : 1))) {
      ++part;
    } else if (values) {
      ++tile, part = tiles.is_window(tile) ? 2 * rank : rank;
    } else {
      tile += 2, part = 0;
      if (tile >= tiles.count) to_values(tiles, rank);
    }
  }
};

// A row's tiles, and where the warp's 8 keys of each lie; places without a key get the record of another one of their
// kind. Loads that do not hang on each other are on their way together.
__device__ __forceinline__ Tiles place_records(const AttendArguments& a, const RowKeys& list, uint64_t* records,
                                               int warp, int lane) {
  constexpr int kEach = (kMaxTiles * 8 + 31) / 32;
  const int window_tiles = (list.in_window + kTile - 1) / kTile;
  int entry[kEach], block[kEach], first = 0;
  if (list.limit > 0) {
    first = list.selected[0];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * 32 + lane, at = (i / 8 - window_tiles) * kTile + 8 * warp + key_at(i % 8);
      entry[n] = list.selected[min(max(at, 0), list.limit - 1)];
    }
  }
  const Tiles tiles = tiles_of(list);
  if (tiles.entries > 0) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = n * 32 + lane, at = (i / 8 - window_tiles) * kTile + 8 * warp + key_at(i % 8);
      if (at < 0 || at >= tiles.entries) entry[n] = first;
      block[n] = list.block(a, entry[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = n * 32 + lane, tile = i / 8, key = tile * kTile + 8 * warp + key_at(i % 8);
    if (tile < tiles.count)
      records[i] = reinterpret_cast<uint64_t>(tiles.is_window(tile)
                                                  ? list.window_record(a, key < tiles.in_window ? key : 0)
                                                  : list.entry_record(a, entry[n], block[n]));
  }
  __syncwarp();
  return tiles;
}

// A part of 8 keys on its way into shared memory.
__device__ __forceinline__ void load_part(const Tiles& tiles, const Cursor& c, const uint64_t* records, uint32_t to,
                                          int lane) {
  const uint64_t* of = records + c.tile * 8;
  const int key = lane / 8, piece = lane % 8;
  const auto *low = reinterpret_cast<const uint8_t*>(of[key]), *high = reinterpret_cast<const uint8_t*>(of[4 + key]),
             *own = reinterpret_cast<const uint8_t*>(of[piece]);  // read together, before the copies begin
  const int at = c.part * 128 + piece * 16;
  async_load<16>(to + key * kPartRow + piece * 16, low + at);
  async_load<16>(to + (4 + key) * kPartRow + piece * 16, high + at);
  if (lane < 8)
    async_load<16>(to + lane * kPartRow + 128, own + (tiles.is_window(c.tile) ? kDim : kDim / 2 + 16 * c.part));
}

__device__ __forceinline__ uint2 shared_load_8(uint32_t p) {
  uint2 u;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(u.x), "=r"(u.y) : "r"(p) : "memory");
  return u;
}

// 256 channels of entries: lane / 8 says which 64 of a slab, lane % 8 which key. from: the key's row; to: its row of
// the first slab.
__device__ __forceinline__ void expand_entries(uint32_t from, uint32_t to, int lane) {
  const int slab = lane / 8, half = slab % 2;
  uint2 code[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) code[q] = shared_load_8(from + slab / 2 * 64 + q * 16 + half * 8);
  const uint2 scales = shared_load_8(from + 128 + slab / 2 * 8);
  uint32_t factor[4];
#pragma unroll
  for (int q = 0; q < 4; ++q)
    factor[q] = entry_factor(__byte_perm(q < 2 ? scales.x : scales.y, 0, (q % 2 ? 0x4242 : 0x4040) + half * 0x0101));
  const uint32_t row = to + slab * kSlabBytes + lane % 8 * 16;
#pragma unroll
  for (int w = 0; w < 2; ++w) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      uint32_t pairs[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) pairs[q] = entry_pair(w == 0 ? code[q].x : code[q].y, b, factor[q]);
      store_16(row ^ ((4 * w + b) << 4), pairs);
    }
  }
}
// 128 channels of a window's keys, chunk `part`: lane / 8 says which 8 of each 32.
__device__ __forceinline__ void expand_window(uint32_t from, uint32_t to, int part, int lane) {
  const int w = lane / 8;
  uint2 code[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) code[q] = shared_load_8(from + q * 32 + w * 8);
  const uint32_t scales = shared_load_word(from + 128 + 4 * part);
  const uint32_t row = to + (part % 2 * 2 + w / 2) * kSlabBytes + ((lane % 8) ^ (w % 2 * 4)) * 16;
  uint32_t factor[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) factor[q] = window_factor(__byte_perm(scales, 0, 0x4040 + q * 0x0101));
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    uint32_t pairs[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) pairs[q] = window_pair(code[q].x, code[q].y, b, factor[q]);
    store_16(row ^ (b << 4), pairs);
  }
}

__device__ __forceinline__ void expand_rows(const AttendArguments& a, int rows, uint8_t* shared, int rank, int warp,
                                            int lane) {
  auto* barriers = reinterpret_cast<Barriers*>(shared + kBarriers);
  uint64_t* records = reinterpret_cast<uint64_t*>(shared + kRecords) + warp * kMaxTiles * 8;
  const uint32_t raw = kept_shared_address(shared + kRaw + warp * kParts * kPartBytes),
                 units = kept_shared_address(shared + warp * 8 * 128 + lane % 8 * 128);
  Place place;
#pragma unroll 1
  for (int item = blockIdx.x / 2; item < rows * ((a.heads + kHeads - 1) / kHeads); item += gridDim.x / 2) {
    const RowKeys list(a, item % rows);
    const Tiles tiles = place_records(a, list, records, warp, lane);
    Cursor ahead(tiles, rank);
    uint32_t to = raw, from = raw, codes = 0;  // 4 bits for each part on its way: 1, of the window, which
    const auto load_next = [&] {
      codes <<= 4;
      if (!ahead.done(tiles)) {
        codes |= 1 | tiles.is_window(ahead.tile) << 1 | ahead.part << 2;
        load_part(tiles, ahead, records, to, lane);
        ahead.next(tiles, rank);
      }
      async_commit();
      to = to == raw + (kParts - 1) * kPartBytes ? raw : to + kPartBytes;
    };
#pragma unroll
    for (int n = 0; n < kParts - 1; ++n) load_next();
#pragma unroll 1
    while (const uint32_t code = codes >> 4 * (kParts - 2) & 15) {
      const bool window = code & 2;
      const int part = code >> 2;
      async_wait<kParts - 2>();
      __syncwarp();
      if (!window || part % 2 == 0) barrier_wait(&barriers->empty[place.slot], place.phase ^ 1);
      const uint32_t key = from + lane % 8 * kPartRow, unit = units + place.slot * kUnitBytes;
      window ? expand_window(key, unit, part, lane) : expand_entries(key, unit, lane);
      if (!window || part % 2 == 1) {
        async_proxy_fence();
        __syncwarp();
        if (lane == 0) barrier_arrive(&barriers->full[place.slot]);
        place.next();
      }
      load_next();  // where the part before this one was, which all lanes have read
      from = from == raw + (kParts - 1) * kPartBytes ? raw : from + kPartBytes;
    }
    __syncwarp();
  }
}

}  // namespace deepinfer::ops::cuda::many
