// Scores of index keys for heads of 128 channels (spec/model.md 8.2), exact up to the bf16 chain: both sides are e2m1
// codes with a power of two per 32 channels. FP8 tensor cores sum 32 channels of codes exactly; the four sums of a head,
// times what a block's scale is above or below the first one's, are added in fp32, exactly as well, since together they
// span less than 24 bits. Internal to select_wide.cu.
//
// A code becomes e4m3 by moving its bits: the sign to the top, the others to where exponent and mantissa meet, which is
// 2^-6 of its value, zero and the subnormal one included.
//
// What spans more (scales of one vector too far apart, exponents where a bf16 chain of scaled values could leave the
// normal range) takes the long way: integer sums of 32 channels, added in double.
#pragma once

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/select.cuh"

namespace deepinfer::ops::cuda {

inline constexpr int kIndexHeads = 32, kIndexTile = 64;
inline constexpr int kTileScales = kIndexTile * 64;  // bytes of codes of a tile; then 4 scales a key
inline constexpr int kIndexTileBytes = kTileScales + kIndexTile * 4;

// D[64][32] = A[64][32] B[32][32]^T, e4m3, A in registers, B in shared memory (K-major). d as of wgmma_bf16; a[0], a[1]:
// K 4 quad .. of rows lane / 4 and + 8; a[2], a[3]: K 16 + 4 quad .. Such sums of 32 keep 13 bits below the largest of
// products and result.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(0));
}
// Integers of one warp: D[16][8] = A[16][32] B[8][32]^T.
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
      "%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// Four matrices of 8 rows x 16 bytes: lane l gives the address of row l mod 8 of matrix l / 8 and gets bytes
// 4 (l mod 4) .. of row l / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// Eight codes as e4m3, times 2^-6: the even ones and the odd ones.
__device__ __forceinline__ uint32_t even_codes(uint32_t w) { return (w << 4 & 0x80808080u) | (w << 2 & 0x1c1c1c1cu); }
__device__ __forceinline__ uint32_t odd_codes(uint32_t w) { return (w & 0x80808080u) | (w >> 2 & 0x1c1c1c1cu); }

// Bytes of a table of twice the magnitudes of e2m1, chosen by the low four nibbles of `codes`; 0 for nibbles above 7.
__device__ __forceinline__ uint32_t magnitudes(uint32_t codes) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(0x03020100u), "r"(0x0c080604u), "r"(codes));
  return y;
}
// Eight codes of two rows as the A operand of integers: those without and those with a sign bit.
__device__ __forceinline__ void spread_codes(uint32_t row0, uint32_t row8, uint32_t (&positive)[4],
                                             uint32_t (&negative)[4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t w = h == 0 ? row0 : row8, flipped = w ^ 0x88888888u;
    positive[h] = magnitudes(w), positive[2 + h] = magnitudes(w >> 16);
    negative[h] = magnitudes(flipped), negative[2 + h] = magnitudes(flipped >> 16);
  }
}

__device__ __forceinline__ double power_of_two(int exponent) { return __hiloint2double((exponent + 1023) << 20, 0); }

// Rounded to bf16, negative ones to 0: high to the upper half.
__device__ __forceinline__ __nv_bfloat162 positive_part(float low, float high) {
  uint32_t u;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
  return *reinterpret_cast<const __nv_bfloat162*>(&u);
}

// Where the 16 bytes of block b of a key lie in a tile: eight keys of one block touch all banks.
__device__ __forceinline__ int code_offset(int key, int b) { return key * 64 + 16 * (b ^ (key / 2 % 4)); }

// A row's index queries in shared memory. Operands lie in core matrices of 8 heads x 16 bytes, [group of heads][core].
// Column 8 i + 2 quad + e is head 8 i + quad + 4 e: each lane finds the heads of its chain in its own accumulators.
struct IndexQueries {
  static constexpr int kOperandBytes = kIndexHeads * 128, kGroupBytes = 8 * 128;
  // e4m3, blocks in proportion; the first one 2^-3 of that. Bytes 4 j .. of core 2 b + e hold channels
  // 32 b + 8 j + e + {0, 2, 4, 6}, as the codes of a key are expanded.
  uint8_t scaled[kOperandBytes];
  // Integers of each block by itself (twice the e2m1 value). Bytes 4 b .. of core 2 j + e hold channels
  // 32 b + 8 j + 4 e ..
  uint8_t plain[kOperandBytes];
  int plain_only;                                          // not 0: the row takes the long way
  int exponent[kIndexHeads][4];                            // an integer of block b is worth 2^exponent
  uint32_t weight[kIndexHeads];                            // bf16 twice
  alignas(16) uint32_t scaled_weight[4][kIndexHeads / 4];  // times a power of two of the head's; [chain][place in it]
};
// Exponents of e4m3 operands: codes of the largest block are below 2^4 times 2^kQueryExponent; the first block's and,
// with that, the scales of the others (below) are 2^-3 of what they would be.
constexpr int kQueryExponent = 4, kFirstBlock = 3;

__device__ __forceinline__ uint32_t e4m3_bytes(const float (&v)[4]) {
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
  return low | static_cast<uint32_t>(high) << 16;
}

// Threads 0 .. 255 fill `to` with the queries of a row: eight threads a head. True if the row must take the long way.
__device__ __forceinline__ bool load_queries(const ScoreArguments& a, int row, IndexQueries* to) {
  const int head = threadIdx.x / 8, block = threadIdx.x / 2 % 4, half = threadIdx.x % 2;
  const bool there = head < a.heads;
  // On its way together with the queries.
  const float w = there ? value(a.weights[static_cast<int64_t>(row) * a.heads + head]) : 0.0f;
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
  const float scaled = w * __uint_as_float(static_cast<uint32_t>(127 + (abs(top) <= 40 ? top - 6 : 0)) << 23);
  const bool plain_only = top != kNone && ((e != kNone && top - e > 3) || abs(top) > 40 ||
                                           (w != 0 && !(fabsf(scaled) >= 0x1p-40f && fabsf(scaled) <= 0x1p40f)));
  // In two steps, since 2^(3 - e) may be beyond float.
  const int first_step = e != kNone && e < -60 ? 64 : 0;
  const float step = __uint_as_float(static_cast<uint32_t>(127 + first_step) << 23),
              unit = __uint_as_float(static_cast<uint32_t>(130 - first_step - (e == kNone ? 0 : e)) << 23);
  const int row_at = head / 8 * IndexQueries::kGroupBytes + (2 * (head % 4) + head % 8 / 4) * 16;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t plain = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      plain |= static_cast<uint32_t>(static_cast<int>(x[4 * k + i] * step * unit) & 0xff) << (8 * i);
    *reinterpret_cast<uint32_t*>(to->plain + row_at + (4 * half + k) * 128 + 4 * block) = plain;
  }
  // An integer of this block is worth this much in the scaled operand.
  const int worth = plain_only || e == kNone ? 0 : e - top + kQueryExponent - (block == 0 ? kFirstBlock : 0);
  const float scale = __uint_as_float(static_cast<uint32_t>(127 + worth) << 23);
#pragma unroll
  for (int k = 0; k < 4; ++k) {  // channels 8 (k / 2) + k % 2 + {0, 2, 4, 6} of the 16
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = plain_only ? 0.0f : x[8 * (k / 2) + k % 2 + 2 * i] * step * unit * scale;
    *reinterpret_cast<uint32_t*>(to->scaled + row_at + (2 * block + k % 2) * 128 + 4 * (2 * half + k / 2)) =
        e4m3_bytes(v);
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
__device__ __forceinline__ uint32_t word_of(__nv_bfloat162 x) { return *reinterpret_cast<const uint32_t*>(&x); }

// The long way: chain `quad` of keys key0 and key0 + 8 of a tile.
__device__ __forceinline__ __nv_bfloat162 plain_chain(const uint8_t* tile, int key0, const IndexQueries& q, int lane) {
  const int quad = lane % 4;
  __nv_bfloat162 chain(rounded(0.0f), rounded(0.0f));
#pragma unroll 1
  for (int i = 0; i < kIndexHeads / 8; ++i) {
    double sum[4] = {};
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
      uint32_t positive[4], negative[4];
      spread_codes(*reinterpret_cast<const uint32_t*>(tile + code_offset(key0, b) + 4 * quad),
                   *reinterpret_cast<const uint32_t*>(tile + code_offset(key0 + 8, b) + 4 * quad), positive, negative);
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
  uint32_t queries;  // lower half of a matrix descriptor
  uint32_t load_at;  // bytes from the tile's first code to the 16 whose address the lane gives
  uint32_t place;    // the lane's keys are key0 = place / 4 and key0 + 8, its chain is place mod 4
  uint32_t range;    // twice: a first scale plus this is below 128, except where the row takes the long way

  __device__ __forceinline__ IndexOperands(const IndexQueries& q)
      : queries(static_cast<uint32_t>(matrix_descriptor(q.scaled, 128, IndexQueries::kGroupBytes))),
        load_at(code_offset(16 * (threadIdx.x % 128 / 32) + threadIdx.x % 8, threadIdx.x % 32 / 8)),
        place(16 * 4 * (threadIdx.x % 128 / 32) + threadIdx.x % 32),
        range(q.plain_only != 0 ? 0x01000100u : 0u - 0x003f003fu) {
    keep(queries), keep(load_at), keep(place), keep(range);
  }
  __device__ __forceinline__ int key0() const { return place / 4; }
  __device__ __forceinline__ int quad() const { return place % 4; }
  __device__ __forceinline__ bool first_lane() const { return place % 32 == 0; }
  __device__ __forceinline__ uint64_t block(int b) const {
    return (static_cast<uint64_t>(IndexQueries::kGroupBytes >> 4) << 32 | queries) + b * (2 * 128 / 16);
  }
};

// wgmma writes and reads these registers after it was issued, which the compiler does not know: stands behind the wait
// that ends that.
__device__ __forceinline__ void settle(float (&d)[16], const uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+f"(d[i])::"memory");
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" ::"r"(a[i]));
}

// bf16 scores of the lane's two keys of a tile, the same in the four lanes of a quad. One warpgroup; `release` is
// called once the tile has been read.
template <class Release>
__device__ __forceinline__ uint32_t score_keys(const uint8_t* tile, const IndexOperands& operands,
                                               const IndexQueries& q, Release release) {
  const uint32_t at = shared_address(tile);
  uint32_t code[2][4];
  load_matrices(code[0], at + operands.load_at), load_matrices(code[1], at + operands.load_at + 8 * 64);
  const auto* scales = reinterpret_cast<const uint32_t*>(tile + kTileScales) + operands.key0();
  const uint32_t scale[2] = {scales[0], scales[8]};
  // Exponents of 2^(how far each block's scale is above the first one's - 3): kExponents in all but the last three bits.
  constexpr uint32_t kExponents = 0x78787878u, kLastBits = 0x07070707u;
  const uint32_t above[2] = {scale[0] - __byte_perm(scale[0], 0, 0) + kExponents + 0x04040404u,
                             scale[1] - __byte_perm(scale[1], 0, 0) + kExponents + 0x04040404u};
  const uint32_t first = __byte_perm(scale[0], scale[1], 0x0400) & 0x00ff00ffu;  // of both keys
  const bool plain = __any_sync(0xffffffffu, ((((above[0] ^ kExponents) | (above[1] ^ kExponents)) & ~kLastBits) |
                                              ((first + operands.range) & 0xff80ff80u)) != 0);
  uint32_t factor = (first + 0x00080008u) << 7;  // 2^(first - 119): what a sum of each key is worth
  uint32_t plain_sum = 0;
  if (plain) {
    plain_sum = word_of(plain_chain(tile, operands.key0(), q, threadIdx.x % 32));
    factor = 0x3f803f80u;
    __syncwarp();  // all lanes have read the tile
  }
  const auto ratio = [&](int h, int b) {
    const uint32_t x = b == 1 ? above[h] << 15 : b == 2 ? above[h] << 7 : above[h] >> 1;
    return __uint_as_float(x & 0x7f800000u);
  };
  uint32_t a[2][4];
  const auto expand = [&](int b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) a[b % 2][h] = even_codes(code[h][b]), a[b % 2][2 + h] = odd_codes(code[h][b]);
  };
  float dot[16], sum[16];
  expand(0);
  wgmma_fence();
  wgmma_e4m3(dot, a[0], operands.block(0));
  wgmma_commit();
  expand(1);
  wgmma_fence();
  wgmma_e4m3(sum, a[1], operands.block(1));
  wgmma_commit();
  wgmma_wait<0>();
  settle(dot, a[0]), settle(sum, a[1]);
#pragma unroll
  for (int b = 1; b < 4; ++b) {
    const float r[2] = {ratio(0, b), ratio(1, b)};
#pragma unroll
    for (int i = 0; i < 16; ++i) dot[i] = fmaf(sum[i], r[i / 2 % 2], dot[i]);
    if (b == 3) break;
    expand(b + 1);
    wgmma_fence();
    wgmma_e4m3(sum, a[(b + 1) % 2], operands.block(b + 1));
    wgmma_commit();
    if (b == 2) release();  // the last product was issued by all lanes together, which had read their codes
    wgmma_wait<0>();
    settle(sum, a[(b + 1) % 2]);
  }
  const auto* scaled = reinterpret_cast<const uint4*>(q.scaled_weight[operands.quad()]);
  const uint4 weights[2] = {scaled[0], scaled[1]};
  __nv_bfloat162 chain(rounded(0.0f), rounded(0.0f));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int j = i / 2 * 4 + i % 2;
    const uint4 w = weights[i / 4];
    chain = __hfma2(positive_part(dot[j], dot[j + 2]),
                    pair_of(i % 4 == 0   ? w.x
                            : i % 4 == 1 ? w.y
                            : i % 4 == 2 ? w.z
                                         : w.w),
                    chain);
  }
  chain = pair_of(plain ? plain_sum : word_of(chain));
  const __nv_bfloat162 c = __hadd2_rn(chain, __shfl_xor_sync(0xffffffffu, chain, 2)),
                       total = __hadd2_rn(c, __shfl_xor_sync(0xffffffffu, c, 1));
  const __nv_bfloat162 scores = __hmul2(total, pair_of(factor));
  return word_of(scores);
}

}  // namespace deepinfer::ops::cuda
