// FP8 tensor cores with a promotion to fp32 every 32 columns, the way not taken (docs/cuda.md): its rate in prefill,
// and how many of its bf16 results are not the correctly rounded ones. The backend expands FP8 to bf16, exactly.
//
//   const double us = graph_us([&](int, cudaStream_t s) { native_fp8(x, w, y, rows, n, k, s); }, 4);
//   const double wrong = native_fp8_wrong_share();
//
// x and w lie in tiles of 128 rows x 128 columns, kNativeTileBytes each: codes as core matrices [16 groups][8 cores]
// [8 rows][16 bytes], then four ue8m0 scales a row (a weight's scale stands at each of its 32 rows). y: bf16 [rows][n].
// rows, n and k are multiples of 128.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cuda/hopper.cuh"
#include "tests/cuda/check.h"
#include "tests/cuda/codes.h"

namespace bench {

inline constexpr int kNativeTile = 128, kNativeCodeBytes = kNativeTile * 128,
                     kNativeTileBytes = kNativeCodeBytes + kNativeTile * 4, kNativeStages = 6;

// D[64][128] = A[64][32] B[128][32]^T, e4m3, both in shared memory.
__device__ __forceinline__ void wgmma_e4m3(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "
      "%59, %60, %61, %62, %63}, %64, %65, p, 1, 1;\n}\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]),
        "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]), "=f"(d[16]),
        "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]),
        "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31]), "=f"(d[32]),
        "=f"(d[33]), "=f"(d[34]), "=f"(d[35]), "=f"(d[36]), "=f"(d[37]), "=f"(d[38]), "=f"(d[39]), "=f"(d[40]),
        "=f"(d[41]), "=f"(d[42]), "=f"(d[43]), "=f"(d[44]), "=f"(d[45]), "=f"(d[46]), "=f"(d[47]), "=f"(d[48]),
        "=f"(d[49]), "=f"(d[50]), "=f"(d[51]), "=f"(d[52]), "=f"(d[53]), "=f"(d[54]), "=f"(d[55]), "=f"(d[56]),
        "=f"(d[57]), "=f"(d[58]), "=f"(d[59]), "=f"(d[60]), "=f"(d[61]), "=f"(d[62]), "=f"(d[63])
      : "l"(a), "l"(b));
}

// A CTA takes 128 tokens x 128 weight rows: two warpgroups of 64 tokens, and a thread that copies tiles in. The next
// product is under way while one is promoted.
static __global__ __launch_bounds__(384, 1) void native_fp8_kernel(const uint8_t* x, const uint8_t* w, __nv_bfloat16* y,
                                                                   int chunks, int n) {
  using namespace deepinfer::ops::cuda;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t full[kNativeStages], empty[kNativeStages];
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0), warp = threadIdx.x % 128 / 32,
            lane = threadIdx.x % 32, quad = lane % 4;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kNativeStages; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 8);
    barrier_init_fence();
  }
  __syncthreads();
  if (group == 2) {
    registers_down<40>();
    if (threadIdx.x % 128 != 0) return;
    for (int c = 0; c < chunks; ++c) {
      const int s = c % kNativeStages, round = c / kNativeStages;
      if (round > 0) barrier_wait(empty + s, (round - 1) & 1);
      uint8_t* to = shared + s * 2 * kNativeTileBytes;
      barrier_expect(full + s, 2 * kNativeTileBytes);
      bulk_load(to, x + (static_cast<int64_t>(blockIdx.y) * chunks + c) * kNativeTileBytes, kNativeTileBytes, full + s);
      bulk_load(to + kNativeTileBytes, w + (static_cast<int64_t>(blockIdx.x) * chunks + c) * kNativeTileBytes,
                kNativeTileBytes, full + s);
    }
    return;
  }
  registers_up<232>();
  float total[64], acc[2][64];
#pragma unroll
  for (int i = 0; i < 64; ++i) total[i] = 0;
  const int row = 64 * group + 16 * warp + lane / 4;
  uint32_t token_scales[2], weight_scales[4];
  const auto multiply = [&](const uint8_t* a, const uint8_t* b, int j, float(&d)[64]) {
    wgmma_fence();
    wgmma_e4m3(d, matrix_descriptor(a + group * 8 * 1024 + 2 * j * 128, 128, 1024),
               matrix_descriptor(b + 2 * j * 128, 128, 1024));
    wgmma_commit();
  };
  const auto promote = [&](int j, const float(&d)[64]) {
    float f[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const uint32_t exponent =
            __byte_perm(token_scales[h], 0, 0x4440 + j) + __byte_perm(weight_scales[q], 0, 0x4440 + j);
        f[h][q] = __uint_as_float((exponent - 127) << 23);
      }
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] = fmaf(d[i], f[i / 2 % 2][i / 16], total[i]);
  };
  for (int c = 0; c < chunks; ++c) {
    const int s = c % kNativeStages;
    barrier_wait(full + s, c / kNativeStages & 1);
    const uint8_t *a = shared + s * 2 * kNativeTileBytes, *b = a + kNativeTileBytes;
#pragma unroll
    for (int h = 0; h < 2; ++h)
      token_scales[h] = *reinterpret_cast<const uint32_t*>(a + kNativeCodeBytes + (row + 8 * h) * 4);
#pragma unroll
    for (int q = 0; q < 4; ++q)
      weight_scales[q] = *reinterpret_cast<const uint32_t*>(b + kNativeCodeBytes + 32 * q * 4);
    multiply(a, b, 0, acc[0]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j < 3) {
        multiply(a, b, j + 1, acc[(j + 1) % 2]);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + s);
      }
#pragma unroll
      for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[j % 2][i])::"memory");
      promote(j, acc[j % 2]);
    }
  }
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    const int token = blockIdx.y * kNativeTile + row + 8 * (i / 2 % 2),
              column = blockIdx.x * kNativeTile + 8 * (i / 4) + 2 * quad;
    *reinterpret_cast<__nv_bfloat162*>(y + static_cast<int64_t>(token) * n + column) =
        __floats2bfloat162_rn(total[i], total[i + 1]);
  }
}

inline void native_fp8(const uint8_t* x, const uint8_t* w, void* y, int rows, int n, int k, cudaStream_t stream) {
  constexpr int kBytes = kNativeStages * 2 * kNativeTileBytes;
  cudaFuncSetAttribute(native_fp8_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  native_fp8_kernel<<<dim3(n / kNativeTile, rows / kNativeTile), 384, kBytes, stream>>>(
      x, w, static_cast<__nv_bfloat16*>(y), k / 128, n);
}

// Random scales into tiles of random codes.
static __global__ void native_scales_kernel(uint8_t* p, size_t tiles) {
  for (size_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    p[t * kNativeTileBytes + kNativeCodeBytes + threadIdx.x] = 118 + (t + threadIdx.x) % 4;
  }
}

// Of products of normal values in e4m3 with random scales, against sums in double.
inline double native_fp8_wrong_share() {
  constexpr int kRows = 128, kN = 256, kK = 2048, kChunks = kK / 128;
  check::Random random(3);
  std::vector<uint8_t> tiles[2];
  std::vector<double> values[2];
  for (int m = 0; m < 2; ++m) {
    const int rows = m == 0 ? kRows : kN, shared_by = m == 0 ? 1 : 32;
    tiles[m].assign(static_cast<size_t>(rows / 128) * kChunks * kNativeTileBytes, 0);
    values[m].resize(static_cast<size_t>(rows) * kK);
    for (int i = 0; i < rows / shared_by * (kK / 32); ++i) {
      const int first = i / (kK / 32) * shared_by, b = i % (kK / 32), scale = 120 + random.below(4);
      for (int r = first; r < first + shared_by; ++r) {
        uint8_t* tile = tiles[m].data() + (static_cast<size_t>(r / 128) * kChunks + b / 4) * kNativeTileBytes;
        tile[kNativeCodeBytes + r % 128 * 4 + b % 4] = static_cast<uint8_t>(scale);
        for (int e = 0; e < 32; ++e) {
          const double v = std::fmin(std::fmax(random.normal() * 130, -448), 448);
          const uint8_t code = __nv_fp8_e4m3(static_cast<float>(v)).__x;
          const int c = b % 4 * 32 + e;
          tile[r % 128 / 8 * 1024 + c / 16 * 128 + r % 8 * 16 + c % 16] = code;
          values[m][static_cast<size_t>(r) * kK + b * 32 + e] = check::e4m3_value(code) * std::ldexp(1.0, scale - 127);
        }
      }
    }
  }
  const check::Device<uint8_t> x(tiles[0]), w(tiles[1]);
  check::Device<uint16_t> y(kRows * kN);
  y.poison();
  native_fp8(x.p, w.p, y.p, kRows, kN, kK, nullptr);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<uint16_t> got = y.get();
  int wrong = 0;
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kN; ++o) {
      double sum = 0;
      for (int c = 0; c < kK; ++c)
        sum += values[0][static_cast<size_t>(r) * kK + c] * values[1][static_cast<size_t>(o) * kK + c];
      wrong += got[static_cast<size_t>(r) * kN + o] != check::bf16_bits(static_cast<float>(sum));
    }
  }
  return static_cast<double>(wrong) / (kRows * kN);
}

}  // namespace bench
