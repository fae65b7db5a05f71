// Scores of index keys for heads of 128 channels (spec/model.md 8.2), exact up to the bf16 chain: both sides are e2m1
// codes with a power of two per 32 channels, so twice the codes, shifted by what a block's scale is below the largest
// of its vector, are 8-bit integers, and int8 tensor cores sum them. Internal to select_wide.cu.
//
// A table of 8 bytes spreads four codes at once: a byte permutation takes the magnitudes of codes without a sign bit
// and 0 for the others (its sign mode, since table bytes are positive). Those with a sign bit come from the flipped
// codes and meet the negated queries.
//
// What has no such integers (scales of one vector more than 8 apart, exponents where a bf16 chain of scaled values
// could leave the normal range) takes the long way: integer sums of 32 channels, added in double.
#pragma once

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/select.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kIndexHeads = 32, kIndexTile = 64;
inline constexpr int kTileScales = kIndexTile * 64;  // bytes of codes of a tile; then 4 scales a key
inline constexpr int kIndexTileBytes = kTileScales + kIndexTile * 4;

// D[64][32] (+)= A[64][32] B[32][32]^T, 8-bit integers, A in registers, B in shared memory (K-major). d as of
// wgmma_bf16; a[0], a[1]: channels 4 quad .. of rows lane / 4 and + 8; a[2], a[3]: channels 16 + 4 quad ..
__device__ __forceinline__ void wgmma_s8(int (&d)[16], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, {%16, %17, %18, %19}, %20, p;\n}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}
// The same of one warp: D[16][8] = A[16][32] B[8][32]^T.
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
      "%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// Bytes of the table chosen by the low four nibbles of `codes`; 0 for nibbles above 7.
__device__ __forceinline__ uint32_t table_bytes(uint2 table, uint32_t codes) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(table.x), "r"(table.y), "r"(codes));
  return y;
}
// Eight codes of two rows as the A operand: those without and those with a sign bit.
__device__ __forceinline__ void spread_codes(const uint2 (&table)[2], uint32_t row0, uint32_t row8,
                                             uint32_t (&positive)[4], uint32_t (&negative)[4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t w = h == 0 ? row0 : row8, flipped = w ^ 0x88888888u;
    positive[h] = table_bytes(table[h], w), positive[2 + h] = table_bytes(table[h], w >> 16);
    negative[h] = table_bytes(table[h], flipped), negative[2 + h] = table_bytes(table[h], flipped >> 16);
  }
}
// Twice the values of e2m1, times 8; a right shift by up to 3 moves no bit into another byte.
constexpr uint2 kMagnitudes8{0x18100800u, 0x60403020u};

__device__ __forceinline__ double power_of_two(int exponent) { return __hiloint2double((exponent + 1023) << 20, 0); }

// Rounded to bf16, negative ones to 0: high to the upper half.
__device__ __forceinline__ __nv_bfloat162 positive_part(float low, float high) {
  uint32_t u;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
  return *reinterpret_cast<const __nv_bfloat162*>(&u);
}

// A row's index queries in shared memory. Operands lie in core matrices of 8 heads x 16 bytes, [group of heads][2 j +
// e]: bytes 4 b .. of core 2 j + e hold channels 32 b + 8 j + 4 e .. of the row's vectors, so that a lane's vector of a
// key, which is block `quad`, needs no exchange. Column 8 i + 2 quad + e is head 8 i + quad + 4 e: each lane finds the
// heads of its chain in its own accumulators.
struct IndexQueries {
  static constexpr int kOperandBytes = kIndexHeads * 128, kGroupBytes = 8 * 128;
  uint8_t positive[kOperandBytes], negative[kOperandBytes];  // shifted codes and their negatives
  uint8_t plain[kOperandBytes];                              // codes as they are: twice the e2m1 value
  int plain_only;                                            // not 0: the row takes the long way
  int exponent[kIndexHeads][4];                              // a code of block b is worth 2^exponent
  uint32_t weight[kIndexHeads];                              // bf16 twice
  alignas(16) uint32_t scaled_weight[4][kIndexHeads / 4];    // times what a shifted code is worth; [chain][place in it]
};

// Threads 0 .. 255 fill `to` with the queries of a row: eight threads a head. True if the row must take the long way.
__device__ __forceinline__ bool load_queries(const ScoreArguments& a, int row, IndexQueries* to) {
  const int head = threadIdx.x / 8, block = threadIdx.x / 2 % 4, half = threadIdx.x % 2;
  const bool there = head < a.heads;
  float x[16];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint4 u{};
    if (there)
      u = *reinterpret_cast<const uint4*>(a.q + (static_cast<int64_t>(row) * a.heads + head) * 128 + 32 * block +
                                          16 * half + 8 * i);
    const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      x[8 * i + k] = __uint_as_float(k % 2 ? w[k / 2] & 0xffff0000u : w[k / 2] << 16);
      largest = fmaxf(largest, fabsf(x[8 * i + k]));
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  constexpr int kNone = -1000;
  // Values are multiples of 2^(e - 3) below 2^(e + 1), whatever code the largest has.
  const int e = largest > 0 ? max(static_cast<int>(__float_as_uint(largest) >> 23) - 127, -126) : kNone;
  int top = max(e, __shfl_xor_sync(0xffffffffu, e, 2));
  top = max(top, __shfl_xor_sync(0xffffffffu, top, 4));
  const float w = there ? value(a.weights[static_cast<int64_t>(row) * a.heads + head]) : 0.0f;
  const float scaled = w * __uint_as_float(static_cast<uint32_t>(127 + (abs(top) <= 40 ? top - 6 : 0)) << 23);
  const bool plain_only = top != kNone && ((e != kNone && top - e > 3) || abs(top) > 40 ||
                                           (w != 0 && !(fabsf(scaled) >= 0x1p-40f && fabsf(scaled) <= 0x1p40f)));
  // In two steps, since 2^(3 - e) may be beyond float.
  const int first_step = e != kNone && e < -60 ? 64 : 0;
  const float step = __uint_as_float(static_cast<uint32_t>(127 + first_step) << 23),
              unit = __uint_as_float(static_cast<uint32_t>(130 - first_step - (e == kNone ? 0 : e)) << 23);
  uint8_t* at = to->plain + head / 8 * IndexQueries::kGroupBytes + 4 * half * 128 +
                (2 * (head % 4) + head % 8 / 4) * 16 + 4 * block;
#pragma unroll
  for (int k = 0; k < 4; ++k) {  // core 4 half + k
    uint32_t plain = 0, shifted = 0, negated = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int code = static_cast<int>(x[4 * k + i] * step * unit),
                s = plain_only || e == kNone ? 0 : code << (3 - (top - e));
      plain |= static_cast<uint32_t>(code & 0xff) << (8 * i);
      shifted |= static_cast<uint32_t>(s & 0xff) << (8 * i), negated |= static_cast<uint32_t>(-s & 0xff) << (8 * i);
    }
    const auto offset = at + 128 * k - to->plain;
    *reinterpret_cast<uint32_t*>(to->plain + offset) = plain;
    *reinterpret_cast<uint32_t*>(to->positive + offset) = shifted;
    *reinterpret_cast<uint32_t*>(to->negative + offset) = negated;
  }
  if (half == 0) to->exponent[head][block] = e == kNone ? 0 : e - 3;
  if (threadIdx.x % 8 == 0) {
    const __nv_bfloat162 twice(rounded(w), rounded(w)), scaled_twice(rounded(scaled), rounded(scaled));
    to->weight[head] = *reinterpret_cast<const uint32_t*>(&twice);
    to->scaled_weight[head % 4][head / 4] = *reinterpret_cast<const uint32_t*>(&scaled_twice);
  }
  return plain_only;
}

__device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t u) { return *reinterpret_cast<const __nv_bfloat162*>(&u); }

// The long way: chain `quad` of keys key0 and key0 + 8 of a tile.
__device__ __forceinline__ __nv_bfloat162 plain_chain(const uint8_t* tile, int key0, const IndexQueries& q, int lane) {
  const int quad = lane % 4;
  const uint2 table{kMagnitudes8.x >> 3, kMagnitudes8.y >> 3}, tables[2] = {table, table};
  __nv_bfloat162 chain(rounded(0.0f), rounded(0.0f));
#pragma unroll 1
  for (int i = 0; i < kIndexHeads / 8; ++i) {
    double sum[4] = {};
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
      uint32_t positive[4], negative[4];
      spread_codes(tables, *reinterpret_cast<const uint32_t*>(tile + key0 * 64 + 16 * b + 4 * quad),
                   *reinterpret_cast<const uint32_t*>(tile + (key0 + 8) * 64 + 16 * b + 4 * quad), positive, negative);
      const uint8_t* core = q.plain + i * IndexQueries::kGroupBytes + 2 * quad * 128 + lane / 4 * 16 + 4 * b;
      const uint32_t b0 = *reinterpret_cast<const uint32_t*>(core), b1 = *reinterpret_cast<const uint32_t*>(core + 128);
      int above[4], below[4];
      mma_s8(above, positive, b0, b1);
      mma_s8(below, negative, b0, b1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // A key's code is worth 2^(scale - 127) / 2.
        const int exponent =
            q.exponent[8 * i + quad + k % 2 * 4][b] + tile[kTileScales + (key0 + k / 2 * 8) * 4 + b] - 128;
        sum[k] += static_cast<double>(above[k] - below[k]) * power_of_two(exponent);
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k)
      chain = __hfma2(positive_part(__double2float_rn(sum[k]), __double2float_rn(sum[k + 2])),
                      pair_of(q.weight[8 * i + quad + 4 * k]), chain);
  }
  return chain;
}

// The compiler shall keep x in a register instead of computing it again in every round.
__device__ __forceinline__ void keep(uint32_t& x) { asm volatile("" : "+r"(x)); }

// What a lane of a warpgroup keeps of a row's queries and of its place in a tile: few registers, from which the rest
// follows.
struct IndexOperands {
  uint32_t positive, negative;  // lower halves of matrix descriptors
  uint32_t code_at;             // bytes from the tile's first code to the lane's: keys key0 and key0 + 8

  __device__ __forceinline__ IndexOperands(const IndexQueries& q)
      : positive(static_cast<uint32_t>(descriptor(q.positive))),
        negative(static_cast<uint32_t>(descriptor(q.negative))),
        code_at((16 * (threadIdx.x % 128 / 32) + threadIdx.x % 32 / 4) * 64 + threadIdx.x % 4 * 16) {
    keep(positive), keep(negative), keep(code_at);
  }
  __device__ __forceinline__ int key0() const { return code_at / 64; }
  __device__ __forceinline__ int quad() const { return code_at / 16 % 4; }
  __device__ __forceinline__ bool first_lane() const { return (code_at & 0x1f0) == 0; }
  __device__ __forceinline__ static uint64_t descriptor(const uint8_t* operand) {
    return matrix_descriptor(operand, 128, IndexQueries::kGroupBytes);
  }
  // Of step j.
  __device__ __forceinline__ static uint64_t step(uint32_t lower, int j) {
    return (static_cast<uint64_t>(IndexQueries::kGroupBytes >> 4) << 32 | lower) + j * (2 * 128 / 16);
  }
};

// wgmma reads these registers after it was issued, which the compiler does not know: stands behind the wait that ends
// the reading.
__device__ __forceinline__ void keep_alive(const uint32_t (&a)[4], const uint32_t (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" ::"r"(a[i]), "r"(b[i]));
}

// bf16 scores of the lane's two keys of a tile, the same in the four lanes of a quad. One warpgroup; `release` is
// called once the tile has been read.
template <class Release>
__device__ __forceinline__ uint32_t score_keys(const uint8_t* tile, const IndexOperands& operands,
                                               const IndexQueries& q, Release release) {
  const uint4 code[2] = {*reinterpret_cast<const uint4*>(tile + operands.code_at),
                         *reinterpret_cast<const uint4*>(tile + operands.code_at + 8 * 64)};
  const uint8_t* scales = tile + kTileScales + operands.code_at / 16;
  const uint32_t scale = scales[0] | static_cast<uint32_t>(scales[32]) << 16;  // of both keys
  uint32_t top = __vmaxu2(scale, __shfl_xor_sync(0xffffffffu, scale, 1));
  top = __vmaxu2(top, __shfl_xor_sync(0xffffffffu, top, 2));
  const uint32_t below = top - scale;
  const bool plain =
      __any_sync(0xffffffffu, ((below & 0xfffcfffcu) | ((top - 0x003f003fu) & 0xff80ff80u)) != 0) || q.plain_only != 0;
  uint2 table[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t shift = below >> (16 * h) & 3;
    table[h] = {kMagnitudes8.x >> shift, kMagnitudes8.y >> shift};
  }
  // Few registers, so that there are many warps: two steps are under way.
  uint32_t positive[2][4], negative[2][4];
  int dot[16];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto word = [&](const uint4& u) { return j == 0 ? u.x : j == 1 ? u.y : j == 2 ? u.z : u.w; };
    if (j >= 2) {
      wgmma_wait<1>();
      keep_alive(positive[j % 2], negative[j % 2]);
    }
    spread_codes(table, word(code[0]), word(code[1]), positive[j % 2], negative[j % 2]);
    wgmma_fence();
    wgmma_s8(dot, positive[j % 2], IndexOperands::step(operands.positive, j), j > 0);
    wgmma_s8(dot, negative[j % 2], IndexOperands::step(operands.negative, j), true);
    wgmma_commit();
  }
  if (!plain) release();
  const auto* scaled = reinterpret_cast<const uint4*>(q.scaled_weight[operands.quad()]);
  const uint4 weights[2] = {scaled[0], scaled[1]};
  wgmma_wait<0>();
#pragma unroll
  for (int j = 0; j < 2; ++j) keep_alive(positive[j], negative[j]);
  __nv_bfloat162 chain(rounded(0.0f), rounded(0.0f));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = i / 2 * 4 + i % 2;
    const uint4 w = weights[i / 4];
    // Below 2^24: exact.
    chain = __hfma2(positive_part(static_cast<float>(dot[at]), static_cast<float>(dot[at + 2])),
                    pair_of(i % 4 == 0   ? w.x
                            : i % 4 == 1 ? w.y
                            : i % 4 == 2 ? w.z
                                         : w.w),
                    chain);
  }
  uint32_t factor = (top - 0x00040004u) << 7;  // 2^(top - 131): what a shifted code of each key is worth
  if (plain) {
    chain = plain_chain(tile, operands.key0(), q, threadIdx.x % 32);
    __syncwarp();  // all lanes have read it; above, the products see to that
    release();
    factor = 0x3f803f80u;
  }
  const __nv_bfloat162 c = __hadd2_rn(chain, __shfl_xor_sync(0xffffffffu, chain, 2)),
                       total = __hadd2_rn(c, __shfl_xor_sync(0xffffffffu, c, 1));
  const __nv_bfloat162 scores = __hmul2(total, pair_of(factor));
  return *reinterpret_cast<const uint32_t*>(&scores);
}

}  // namespace deepinfer::ops::cuda
