// Linear layers on one GPU: time per shape, format and batch as a share of the measured read bandwidth.
// Every repetition reads other weights, rotating over 512 MB or more.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "ops/cuda/linear.h"
#include "tests/cuda/check.h"

using namespace deepinfer::ops::cuda;
using deepinfer::ops::WeightFormat;

namespace {

__global__ void read_kernel(const uint4* p, size_t n, uint32_t* out) {
  uint32_t x = 0;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (x == 0x12345678) *out = x;
}

__global__ void fill_kernel(uint32_t* p, size_t n, uint32_t seed, bool scales) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u + seed;
    z = (z ^ (z >> 15)) * 2246822519u;
    z ^= z >> 13;
    p[i] = scales ? 0x76767676u + (z & 0x03030303u) : z & 0x3f7f3f7fu & 0xbfbfbfbfu;  // neither NaN codes nor huge bf16
  }
}

double median_us(const std::function<void(int)>& body, int repeats) {
  std::vector<float> t;
  cudaEvent_t a, b;
  CUDA_OK(cudaEventCreate(&a));
  CUDA_OK(cudaEventCreate(&b));
  for (int i = 0; i < repeats + 3; ++i) {
    CUDA_OK(cudaEventRecord(a));
    body(i);
    CUDA_OK(cudaEventRecord(b));
    CUDA_OK(cudaEventSynchronize(b));
    float ms;
    CUDA_OK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3) t.push_back(ms * 1000);
  }
  std::sort(t.begin(), t.end());
  return t[t.size() / 2];
}

size_t code_bytes(WeightFormat f, size_t elements) { return f == WeightFormat::kFp8 ? elements : f == WeightFormat::kFp4 ? elements / 2 : 2 * elements; }

// Repetitions inside one graph, so that launch time stays out; returns microseconds per call.
double graph_us(const std::function<void(int, cudaStream_t)>& body, int calls) {
  cudaStream_t s;
  CUDA_OK(cudaStreamCreate(&s));
  cudaGraph_t g;
  cudaGraphExec_t e;
  body(0, s);
  CUDA_OK(cudaStreamSynchronize(s));
  CUDA_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) body(i, s);
  CUDA_OK(cudaStreamEndCapture(s, &g));
  CUDA_OK(cudaGraphInstantiate(&e, g, 0));
  const double us = median_us([&](int) { cudaGraphLaunch(e, nullptr); }, 7);
  CUDA_OK(cudaGraphExecDestroy(e));
  CUDA_OK(cudaGraphDestroy(g));
  CUDA_OK(cudaStreamDestroy(s));
  return us / calls;
}

}  // namespace

int main() {
  if (!check::device_or_skip()) return 0;
  const size_t pool_bytes = size_t{1536} << 20;
  check::Device<uint8_t> pool(pool_bytes), scale_pool(size_t{256} << 20), packed(packed_bytes(8192, 15360)), y(size_t{8192} * 33000 * 2);
  check::Device<uint32_t> out(1);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(pool.p), pool_bytes / 4, 1, false);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(scale_pool.p), scale_pool.n / 4, 2, true);
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(packed.p), packed.n / 4, 3, false);
  double read_us = 1e30;
  for (int blocks : {132 * 4, 132 * 8, 132 * 16}) {
    read_us = std::min(read_us, median_us([&](int) { read_kernel<<<blocks, 512>>>(reinterpret_cast<uint4*>(pool.p), pool_bytes / 16, out.p); }, 15));
  }
  const double gbps = pool_bytes / read_us * 1e-3;
  std::printf("read bandwidth: %.0f GB/s\n", gbps);

  struct Shape {
    const char* name;
    int n, k;
    WeightFormat format;
  };
  const Shape shapes[] = {{"wq_b", 32768, 1280, WeightFormat::kFp8}, {"wo_a", 8192, 4096, WeightFormat::kFp8}, {"wo_b", 5120, 8192, WeightFormat::kFp8},
                          {"wq_a", 1280, 5120, WeightFormat::kFp8},  {"wkv", 512, 5120, WeightFormat::kFp8},   {"engram", 25600, 6144, WeightFormat::kFp8},
                          {"gate", 384, 5120, WeightFormat::kBf16},  {"head/8", 16160, 5120, WeightFormat::kBf16},
                          {"fp4 8 x w1", 18432, 5120, WeightFormat::kFp4}, {"fp4 8 x w2", 40960, 2304, WeightFormat::kFp4}};
  for (const Shape& s : shapes) {
    const size_t elements = static_cast<size_t>(s.n) * s.k, bytes = code_bytes(s.format, elements);
    const size_t scale_bytes = s.format == WeightFormat::kFp8 ? elements / 1024 : s.format == WeightFormat::kFp4 ? elements / 32 : 0;
    const int copies = static_cast<int>(std::min<size_t>(64, pool_bytes / bytes));
    for (int rows : {1, 8, 16, 32, 64, 128, 256, 1024, 4096}) {
      const int calls = std::max(4, std::min(copies, 40));
      const double us = graph_us(
          [&](int i, cudaStream_t stream) {
            const int c = i % copies;
            linear({pool.p + c * bytes, scale_pool.p + (c * scale_bytes) % (scale_pool.n - scale_bytes) / 16 * 16, s.n, s.k, s.format}, packed.p, rows, {y.p, Output::kBf16}, stream);
          },
          calls);
      const double moved = static_cast<double>(bytes + scale_bytes) + 2.0 * rows * (s.n + s.k);
      std::printf("%-11s n=%5d k=%5d rows=%4d  %8.2f us  %6.0f GB/s = %.2f of read  %6.1f TFLOP/s\n", s.name, s.n, s.k, rows, us, moved / us * 1e-3,
                  moved / us * 1e-3 / gbps, 2.0 * elements * rows / us * 1e-6);
    }
  }
  CUDA_OK(cudaGetLastError());
  return 0;
}
