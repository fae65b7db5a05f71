// Timing on the GPU, ceilings and result lines for bench_ops_cuda. Times are medians of replays of one CUDA graph that
// holds many calls, so that the host's launches stay out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "bench/bench.h"
#include "tests/cuda/check.h"

namespace bench {

inline constexpr char kName[] = "ops_cuda";

static __global__ void read_kernel(const uint4* p, size_t n, uint32_t* out) {
  uint32_t x = 0;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (x == 0x12345678) *out = x;
}

// Random words under a mask: kCodes e4m3 below 2 and any e2m1; kScales near 2^-7; kBf16 +-2^-6 .. 2^-5. kNormal: bf16
// that are about normally distributed, as activations are.
enum class Fill { kCodes, kScales, kBf16, kNormal };
static __device__ uint32_t normal_bf16(uint32_t z) {
  const int sum = static_cast<int>((z & 255) + (z >> 8 & 255) + (z >> 16 & 255) + (z >> 24)) - 510;
  return __float_as_uint(static_cast<float>(sum) / 148.0f) >> 16;
}
static __global__ void fill_kernel(uint32_t* p, size_t n, uint32_t seed, Fill kind) {
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t z = static_cast<uint32_t>(i) * 2654435761u + seed;
    z = (z ^ (z >> 15)) * 2246822519u;
    z = (z ^ (z >> 13)) * 3266489917u;
    z ^= z >> 16;
    p[i] = kind == Fill::kScales   ? 0x76767676u + (z & 0x03030303u)
           : kind == Fill::kCodes  ? z & 0xbfbfbfbfu
           : kind == Fill::kNormal ? normal_bf16(z) << 16 | normal_bf16((z ^ z >> 11) * 2654435761u)
                                   : (z & 0x807f807fu) | 0x3c803c80u;
  }
}
template <class T>
void fill(check::Device<T>& d, uint32_t seed, Fill kind) {
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(d.p), d.n * sizeof(T) / 4, seed, kind);
  CUDA_OK(cudaGetLastError());
}

inline double median_us(const std::function<void()>& body, int repeats) {
  std::vector<double> t;
  cudaEvent_t a, b;
  CUDA_OK(cudaEventCreate(&a));
  CUDA_OK(cudaEventCreate(&b));
  for (int i = 0; i < repeats + 1; ++i) {
    CUDA_OK(cudaEventRecord(a));
    body();
    CUDA_OK(cudaEventRecord(b));
    CUDA_OK(cudaEventSynchronize(b));
    float ms = 0;
    CUDA_OK(cudaEventElapsedTime(&ms, a, b));
    if (i > 0) t.push_back(ms * 1000);
  }
  CUDA_OK(cudaEventDestroy(a));
  CUDA_OK(cudaEventDestroy(b));
  return median(std::move(t));
}

// Microseconds of one of `calls` calls in a graph.
inline double graph_us(const std::function<void(int, cudaStream_t)>& body, int calls, int repeats = 7) {
  cudaStream_t s;
  CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  cudaGraph_t g;
  cudaGraphExec_t e;
  body(0, s);
  CUDA_OK(cudaStreamSynchronize(s));
  CUDA_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) body(i, s);
  CUDA_OK(cudaStreamEndCapture(s, &g));
  CUDA_OK(cudaGraphInstantiate(&e, g, 0));
  const double us = median_us([&] { cudaGraphLaunch(e, nullptr); }, repeats);
  CUDA_OK(cudaGraphExecDestroy(e));
  CUDA_OK(cudaGraphDestroy(g));
  CUDA_OK(cudaStreamDestroy(s));
  return us / calls;
}

// From pinned host memory to the GPU.
inline double host_copy_gbps() {
  constexpr size_t kBytes = size_t{256} << 20;
  void* host = nullptr;
  check::Device<uint8_t> device(kBytes);
  CUDA_OK(cudaMallocHost(&host, kBytes));
  const double us =
      median_us([&] { CUDA_OK(cudaMemcpyAsync(device.p, host, kBytes, cudaMemcpyHostToDevice, nullptr)); }, 5);
  CUDA_OK(cudaFreeHost(host));
  return kBytes / us * 1e-3;
}

// What this GPU can do, measured in this run.
struct Ceilings {
  double read_gbps = 0;
  double bf16_tflops = 0;
  std::string bf16_is;
  std::string gpu;
};

inline void report_bytes(const Ceilings& c, const std::string& name, double us, double bytes,
                         std::optional<double> goal) {
  report({.bench = kName,
          .name = name,
          .value = bytes / us * 1e-3,
          .unit = "GB/s",
          .ceiling = c.read_gbps,
          .ceiling_is = "physical: read bandwidth of the GPU",
          .goal = goal,
          .goal_is_ratio = true});
}
inline void report_us(const std::string& name, double us) {
  report({.bench = kName, .name = name, .value = us, .unit = "us", .higher_is_better = false});
}

}  // namespace bench
