// FP8 and FP4 weights as the kernels read them.
#include "ops/cuda/linear.h"
#include "ops/cuda/weights.cuh"

namespace deepinfer::ops::cuda {
namespace {

__global__ void arrange_words_kernel(uint32_t* words, size_t n) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) words[i] = spread_fp8(words[i]);
}

// A thread a word of 8 codes.
__global__ void arrange_kernel(const uint8_t* codes, const uint8_t* scales, int n, int chunks, uint8_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int words = chunks * 16, word = static_cast<int>(i % words), chunk = word / 16;
  const int64_t row = i / words;
  if (row >= (n + 31) / 32 * 32) return;
  uint8_t* tile = out + fp4_tile(static_cast<int>(row / 16), chunk, chunks);
  const uint32_t w = row < n ? *reinterpret_cast<const uint32_t*>(codes + (row * words + word) * 4) : 0;
  *reinterpret_cast<uint32_t*>(tile + row % 16 * 64 + word % 16 * 4) = spread_fp4(w);
  if (word % 16 == 0)
    *reinterpret_cast<uint32_t*>(tile + 1024 + row % 16 * 4) =
        row < n ? *reinterpret_cast<const uint32_t*>(scales + (row * chunks + chunk) * 4) : 0;
}

}  // namespace

void arrange_fp8(void* codes, size_t bytes, cudaStream_t stream) {
  arrange_words_kernel<<<static_cast<unsigned>((bytes / 4 + 255) / 256), 256, 0, stream>>>(
      static_cast<uint32_t*>(codes), bytes / 4);
}

size_t arranged_fp4_bytes(int n, int k) {
  return static_cast<size_t>((n + 31) / 32) * (k / kChunk) * 2 * kFp4TileBytes;
}

void arrange_fp4(const void* codes, const uint8_t* scales, int n, int k, void* out, cudaStream_t stream) {
  const int64_t words = static_cast<int64_t>((n + 31) / 32 * 32) * (k / 8);
  arrange_kernel<<<static_cast<unsigned>((words + 255) / 256), 256, 0, stream>>>(
      static_cast<const uint8_t*>(codes), scales, n, k / kChunk, static_cast<uint8_t*>(out));
}

}  // namespace deepinfer::ops::cuda
