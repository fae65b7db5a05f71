// The attention core for head_dim 512 and many rows (spec/model.md 6.3, 6.4, 11.3): the same sums in the same order as
// attend_wide.cu, so the same bits. A cluster of two CTAs takes 64 heads of a row, then of another row: each CTA scores
// every other tile of 64 keys and sums the values of half of the channels, so that what passes between them is maxima
// and probabilities.
//
// Eight warps expand records to bf16 in shared memory, first for the scores, then for the values: a key is expanded
// twice, since probabilities are rounded against the maximum of all keys and a row's expanded keys do not fit. Two
// warpgroups multiply: scores with the queries in registers, values with probabilities in shared memory. The expanding
// warps run ahead, into the next row.
//
// A unit, 64 keys x 256 channels, serves both products: four slabs of 64 channels, rows of 128 bytes with 128-byte
// swizzle, K-major for the scores and MN-major for the values. Keys and channels lie in the order of attend_wide.cu.
// Keys are held at 2^-8 of their value, as there.
#include <algorithm>

#include "ops/cuda/attend_expand.cuh"
#include "ops/cuda/launch.h"

namespace deepinfer::ops::cuda {
namespace {

using namespace many;

// Matrix with 128-byte swizzle: rows of 128 bytes, eight of them 1024 bytes. slab: bytes between slabs of 64 columns
// where columns are not K.
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t p, uint32_t slab) {
  return static_cast<uint64_t>((p & 0x3ffff) >> 4) | static_cast<uint64_t>(slab >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | uint64_t{1} << 62;
}
// D[64][128] += A[64][16] B[16][128]: A K-major, B with its rows contiguous.
__device__ __forceinline__ void wgmma_values(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
      "%59, %60, %61, %62, %63"
      "}, %64, %65, 1, 1, 1, 0, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b));
}
// What stands behind reads sums that wgmma wrote.
template <int kCount>
__device__ __forceinline__ void complete(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ uint32_t cluster_address(uint32_t p, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(p), "r"(rank));
  return remote;
}
// Stores a word in a CTA of the cluster and counts its bytes at a barrier there.
__device__ __forceinline__ void store_counted(uint32_t to, float x, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
               "r"(__float_as_uint(x)), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void bulk_store_counted(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive_by(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// Zeros where there is nothing.
__device__ __forceinline__ void async_load_16_or_zeros(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

// Queries of 64 heads on their way into shared memory, 1024 bytes each, 16 bytes at a time so that lanes which read
// them find them in different banks.
__device__ __forceinline__ void load_queries(const AttendArguments& a, int row, int head0, uint32_t to) {
  const bf16* from = a.q + (static_cast<int64_t>(row) * a.heads + head0) * kDim;
  const int unit = threadIdx.x % 64, swap = unit / 8 % 2;
#pragma unroll
  for (int n = 0; n < kHeads * 64 / kMultipliers; ++n) {
    const int head = n * (kMultipliers / 64) + threadIdx.x / 64;
    const bool there = head0 + head < a.heads;
    async_load_16_or_zeros(to + head * 1024 + (unit ^ (swap | (head % 2 << 1))) * 16,
                           from + (there ? head * kDim : 0) + unit * 8, there);
  }
  async_commit();
}
// The A operand of 32 steps: rows lane / 4 and + 8 of the warp's 16 heads.
__device__ __forceinline__ void read_queries(uint32_t from, int warp, int lane, uint32_t (&q)[32][4]) {
  const int quad = lane % 4, swap = quad / 2 | (lane / 4 % 2 << 1);
  const uint32_t row = from + (16 * warp + lane / 4) * 1024 + quad * 64;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 u = shared_load(row + h * 8 * 1024 + c * 256 + (v ^ swap) * 16);
        const int j = 8 * c + 2 * v;
        q[j][h] = __byte_perm(u.x, u.z, 0x5410), q[j][h + 2] = __byte_perm(u.x, u.z, 0x7632);
        q[j + 1][h] = __byte_perm(u.y, u.w, 0x5410), q[j + 1][h + 2] = __byte_perm(u.y, u.w, 0x7632);
      }
    }
  }
}

// Scores of a tile from two units, the second one behind the first.
__device__ __forceinline__ void score_tile(Barriers* barriers, Place& place, uint32_t units,
                                           const uint32_t (&q)[32][4], float (&score)[kHeads / 2], int lane) {
  int slot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    slot[half] = place.slot;
    barrier_wait(&barriers->full[place.slot], place.phase);
    const uint64_t keys = swizzled_descriptor(units + place.slot * kUnitBytes, 16);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 16; ++j)
      wgmma_bf16<kTile>(score, q[16 * half + j], moved(keys, j / 4 * (kSlabBytes / 16) + j % 4 * 2), half + j > 0);
    wgmma_commit();
    place.next();
  }
  wgmma_wait<1>();
  if (lane == 0) barrier_arrive_by(&barriers->empty[slot[0]], 2);
  wgmma_wait<0>();
  if (lane == 0) barrier_arrive_by(&barriers->empty[slot[1]], 2);
  complete(score);
}

// Sums over the thread's places of each 16, v[16 keys][row][place % 2], over the four lanes of a quad: a lane gets
// those of 16 keys number `quad` for both rows.
__device__ __forceinline__ float2 combine_places(const float (&v)[4][2][2], int quad) {
  float two[2][2][2], one[2][2];
  const bool far = quad & 2, near = quad & 1;
#pragma unroll
  for (int g = 0; g < 2; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = v[g][i / 2][i % 2], high = v[2 + g][i / 2][i % 2];
      two[g][i / 2][i % 2] = (far ? high : low) + __shfl_xor_sync(0xffffffffu, far ? low : high, 2);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float low = two[0][i / 2][i % 2], high = two[1][i / 2][i % 2];
    one[i / 2][i % 2] = (near ? high : low) + __shfl_xor_sync(0xffffffffu, near ? low : high, 1);
  }
  return {one[0][0] + one[0][1], one[1][0] + one[1][1]};
}

// Probabilities of a tile, at their place as the A operand, and their sums over 16 keys each.
__device__ __forceinline__ void soften(const float (&score)[kHeads / 2], const float (&top)[2], uint32_t tile,
                                       float* sums, int warp, int lane) {
  const int quad = lane % 4;
  float v[4][2][2];
  uint32_t bits[8][2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float p0 = exponential(score[4 * i + 2 * h] - top[h]), p1 = exponential(score[4 * i + 2 * h + 1] - top[h]);
      const __nv_bfloat162 pair(__float2bfloat16_rn(p0), __float2bfloat16_rn(p1));
      bits[i][h] = *reinterpret_cast<const uint32_t*>(&pair);
      v[i / 2][h][0] = i % 2 ? v[i / 2][h][0] + p0 : p0;
      v[i / 2][h][1] = i % 2 ? v[i / 2][h][1] + p1 : p1;
    }
  }
  const uint32_t row = tile + (16 * warp + lane / 8 % 2 * 8 + lane % 8) * 128 + ((lane % 8) ^ (lane / 16)) * 16;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row ^ (i << 4)),
                 "r"(bits[i][0]), "r"(bits[i][1]), "r"(bits[i + 1][0]), "r"(bits[i + 1][1])
                 : "memory");
  }
  const float2 total = combine_places(v, quad);
  float* to = sums + quad * kHeads + 16 * warp + lane / 4;
  to[0] = total.x, to[8] = total.y;
}

// Scaled scores wait in shared memory for the maximum; -infinity for keys that are not there.
__device__ __forceinline__ void keep_scores(float (&score)[kHeads / 2], const Tiles& tiles, int t, float scale,
                                            float4* to, int quad) {
#pragma unroll
  for (int i = 0; i < kHeads / 2; ++i) score[i] *= scale;
  if (!tiles.whole(t)) {
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) {
      if (!tiles.there(t, i / 4 * 8 + quad + i % 2 * 4)) score[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    to[i * kGroup] = {score[4 * i], score[4 * i + 1], score[4 * i + 2], score[4 * i + 3]};
}

__device__ __forceinline__ uint32_t output_pair(float x, float y) {
  const __nv_bfloat162 pair(__float2bfloat16_rn(x), __float2bfloat16_rn(y));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void multiply_rows(const AttendArguments& a, int rows, uint8_t* shared, int rank, int group,
                                              int warp, int lane) {
  constexpr int kMost = (kMaxTiles / 2 + 1) / 2;  // tiles that a warpgroup scores
  const auto meet = [] { group_sync(1, kMultipliers); };
  auto* barriers = reinterpret_cast<Barriers*>(shared + kBarriers);
  const uint32_t units = kept_shared_address(shared), probabilities = kept_shared_address(shared + kProbabilities);
  const int quad = lane % 4, local = 16 * warp + lane / 4, thread = threadIdx.x % kGroup,
            items = rows * ((a.heads + kHeads - 1) / kHeads), step = gridDim.x / 2;
  const float scale = a.scale * 256.0f;
  float4* kept = reinterpret_cast<float4*>(shared + kProbabilities) + thread;
  const float* sums = reinterpret_cast<const float*>(shared + kSums);
  Place place;
  uint32_t phase = 0;  // of the row, at the barriers that pass once a row
  int item = blockIdx.x / 2;
  if (item < items) load_queries(a, item % rows, item / rows * kHeads, probabilities);
#pragma unroll 1
  for (; item < items; item += step, phase ^= 1) {
    const int row = item % rows, head0 = item / rows * kHeads;
    const RowKeys list(a, row);
    const Tiles tiles = tiles_of(list);
    const int mine = (tiles.count - rank + 1) / 2;  // tiles that this CTA scores
    if (threadIdx.x == 0) {
      barrier_expect(&barriers->maxima, kMaximaBytes);
      barrier_expect(&barriers->probabilities, (tiles.count - mine) * (kTileProbabilities + kSumBytes));
    }
    {
      uint32_t q[32][4];
      async_wait<0>();
      meet();
      read_queries(probabilities, warp, lane, q);
      meet();
#pragma unroll 1
      for (int m = 0; m < mine; ++m) {
        if (m % 2 != group) {
          place.next(), place.next();
          continue;
        }
        float score[kHeads / 2];
        score_tile(barriers, place, units, q, score, lane);
        keep_scores(score, tiles, rank + 2 * m, scale, kept + m * (kScoreBytes / 16), quad);
      }
    }
    float score[kMost][kHeads / 2], top[2] = {-1e30f, -1e30f};
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float4 v{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (group + 2 * k < mine) v = kept[(group + 2 * k) * (kScoreBytes / 16) + i * kGroup];
        score[k][4 * i] = v.x, score[k][4 * i + 1] = v.y, score[k][4 * i + 2] = v.z, score[k][4 * i + 3] = v.w;
        top[0] = fmaxf(top[0], fmaxf(v.x, v.y)), top[1] = fmaxf(top[1], fmaxf(v.z, v.w));
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
      top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
    }
    // This warp has read all scores that it kept: only now may the other CTA's probabilities come.
    if (quad < 2) {
      const uint32_t to = cluster_address(
                         shared_address(shared + kMaxima) + ((2 * rank + group) * kHeads + local) * 4, quad),
                     barrier = cluster_address(shared_address(&barriers->maxima), quad);
      store_counted(to, top[0], barrier), store_counted(to + 8 * 4, top[1], barrier);
    }
    barrier_wait(&barriers->maxima, phase);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* of = reinterpret_cast<const float*>(shared + kMaxima) + local + 8 * h;
      top[h] = fmaxf(fmaxf(of[0], of[kHeads]), fmaxf(of[2 * kHeads], of[3 * kHeads]));
    }
    meet();  // nobody reads kept scores any more
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (group + 2 * k >= mine) continue;
      const int t = rank + 2 * (group + 2 * k);
      uint8_t* to_sums = shared + kSums + t * kSumBytes;
      soften(score[k], top, probabilities + t * kTileProbabilities, reinterpret_cast<float*>(to_sums), warp, lane);
      async_proxy_fence();
      group_sync(2 + group, kGroup);
      if (thread == 0) {
        const uint32_t barrier = cluster_address(shared_address(&barriers->probabilities), 1 - rank),
                       tile = probabilities + t * kTileProbabilities, sum = shared_address(to_sums);
        bulk_store_counted(cluster_address(tile, 1 - rank), tile, kTileProbabilities, barrier);
        bulk_store_counted(cluster_address(sum, 1 - rank), sum, kSumBytes, barrier);
      }
    }
    meet();
    barrier_wait(&barriers->probabilities, phase);
    if (threadIdx.x == 0) barrier_arrive_remote(shared_address(&barriers->taken), 1 - rank);

    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] = 0;
    float sum[2] = {0, 0};
    int before = 0;
#pragma unroll 1
    for (int t = 0; t < tiles.count; ++t) {
      barrier_wait(&barriers->full[place.slot], place.phase);
      const uint64_t p = swizzled_descriptor(probabilities + t * kTileProbabilities, 16),
                     v = swizzled_descriptor(units + place.slot * kUnitBytes + group * 2 * kSlabBytes, kSlabBytes);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < kTile / 16; ++j)
        wgmma_values(acc, moved(p, 2 * j), moved(v, j * (2048 / 16)));
      wgmma_commit();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[0] += sums[(4 * t + i) * kHeads + local], sum[1] += sums[(4 * t + i) * kHeads + local + 8];
      wgmma_wait<1>();
      if (t > 0 && lane == 0) barrier_arrive(&barriers->empty[before]);
      before = place.slot;
      place.next();
    }
    wgmma_wait<0>();
    complete(acc);
    if (tiles.count > 0 && lane == 0) barrier_arrive(&barriers->empty[before]);
    float inverse[2];  // 2^8 over the denominator
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = head0 + local + 8 * h;
      inverse[h] = head < a.heads ? 256.0f / (sum[h] + __expf(a.sink[head] - top[h])) : 0.0f;
    }
    barrier_wait(&barriers->taken, phase);
    meet();  // nobody reads probabilities any more
    if (item + step < items) load_queries(a, (item + step) % rows, (item + step) / rows * kHeads, probabilities);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = head0 + local + 8 * h;
      if (head >= a.heads) continue;
      bf16* to = a.out + (static_cast<int64_t>(row) * a.heads + head) * kDim + (2 * rank + group) * 128 + 32 * quad;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const auto value = [&](int i, int b) { return acc[4 * (4 * w + i) + 2 * h + b] * inverse[h]; };
        *reinterpret_cast<uint4*>(to + 8 * w) = {output_pair(value(0, 0), value(1, 0)),
                                                 output_pair(value(2, 0), value(3, 0)),
                                                 output_pair(value(0, 1), value(1, 1)),
                                                 output_pair(value(2, 1), value(3, 1))};
      }
    }
  }
}

__global__ __launch_bounds__(kThreads, 1) void attend_many_kernel(const AttendArguments a, int rows) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int rank = blockIdx.x % 2, warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0),
            lane = threadIdx.x % 32;
  auto* barriers = reinterpret_cast<Barriers*>(shared + kBarriers);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kUnits; ++i) {
      barrier_init(&barriers->full[i], kExpanders);
      barrier_init(&barriers->empty[i], kMultipliers / 32);
    }
    barrier_init(&barriers->maxima, 1), barrier_init(&barriers->probabilities, 1), barrier_init(&barriers->taken, 1);
    barrier_init_fence();
  }
  cluster_sync();
  wait_for_inputs();
  start_next_kernel();
  if (warp < kMultipliers / 32) {
    registers_up<192>();
    multiply_rows(a, rows, shared, rank, warp / 4, warp % 4, lane);
  } else {
    registers_down<64>();
    expand_rows(a, rows, shared, rank, warp - kMultipliers / 32, lane);
  }
  cluster_sync();  // the other CTA's copies have come
}

}  // namespace

int attend_many_at_once() {
  static const int pairs = [] {
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return processors / 2;
  }();
  return pairs;
}

void attend_many(const AttendArguments& a, int rows, cudaStream_t stream) {
  cudaFuncSetAttribute(attend_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  const int items = rows * ((a.heads + kHeads - 1) / kHeads);
  launch_clusters(2, attend_many_kernel, dim3(static_cast<unsigned>(2 * std::min(items, attend_many_at_once()))),
                  kThreads, kSharedBytes, stream, a, rows);
}

}  // namespace deepinfer::ops::cuda
