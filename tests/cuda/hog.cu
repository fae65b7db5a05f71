#include <cuda_runtime.h>

#include "tests/cuda/hog.h"

namespace deepinfer::testing {
namespace {

constexpr unsigned long long kLongest_ns = 20'000'000'000ull;

// One CTA an SM, with all of its shared memory.
__global__ void hog_kernel(const volatile int* free) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    __nanosleep(10000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*free == 0 && now - begin < kLongest_ns);
}

}  // namespace

GpuHog::GpuHog() {
  int sms = 0, shared = 0;
  cudaStream_t stream = nullptr;
  ok_ = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess &&
        cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess &&
        cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) == cudaSuccess &&
        cudaMallocHost(&free_, sizeof(int)) == cudaSuccess &&
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
  if (!ok_) return;
  *free_ = 0;
  stream_ = stream;
  hog_kernel<<<sms, 32, shared, stream>>>(free_);
  ok_ = cudaGetLastError() == cudaSuccess;
}

GpuHog::~GpuHog() {
  if (stream_ == nullptr) return;
  *static_cast<volatile int*>(free_) = 1;
  cudaStreamSynchronize(static_cast<cudaStream_t>(stream_));
  cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
  cudaFreeHost(free_);
}

}  // namespace deepinfer::testing
