// A small test harness for programs built by nvcc alone: CHECK counts, failures name the place, main returns the
// verdict.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

namespace check {

inline int failures = 0;
inline int passes = 0;

template <class... Args>
void that(bool ok, const char* file, int line, const char* format, Args... args) {
  if (ok) {
    ++passes;
    return;
  }
  if (++failures <= 50) {
    std::printf("FAIL %s:%d ", file, line);
    std::printf(format, args...);
    std::printf("\n");
  }
}

inline void cuda(cudaError_t e, const char* file, int line) {
  if (e == cudaSuccess) return;
  std::printf("CUDA error at %s:%d: %s\n", file, line, cudaGetErrorString(e));
  std::exit(1);
}

// True if there is a GPU; otherwise says loudly that the tests were skipped.
inline bool device_or_skip() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) return true;
  std::printf("SKIPPED: no CUDA device here; these tests ran nothing\n");
  return false;
}

inline int verdict(const char* name) {
  std::printf("%s: %d passed, %d failed\n", name, passes, failures);
  return failures == 0 ? 0 : 1;
}

// Device memory that frees itself.
template <class T>
struct Device {
  T* p = nullptr;
  size_t n = 0;
  explicit Device(size_t count) : n(count) { cuda(cudaMalloc(&p, count * sizeof(T)), __FILE__, __LINE__); }
  explicit Device(const std::vector<T>& v) : Device(v.size()) { set(v); }
  ~Device() { cudaFree(p); }
  Device(const Device&) = delete;
  void set(const std::vector<T>& v) {
    cuda(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), __FILE__, __LINE__);
  }
  void poison() { cuda(cudaMemset(p, 0xff, n * sizeof(T)), __FILE__, __LINE__); }
  std::vector<T> get() const {
    std::vector<T> v(n);
    cuda(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), __FILE__, __LINE__);
    return v;
  }
};

// Seeded random words.
struct Random {
  unsigned long long s;
  explicit Random(unsigned long long seed) : s(seed) {}
  unsigned long long word() {
    unsigned long long z = (s += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(word() >> 11) * 0x1p-53; }
  int below(int n) { return static_cast<int>(word() % static_cast<unsigned long long>(n)); }
  double normal() {  // sum of twelve
    double t = -6;
    for (int i = 0; i < 12; ++i) t += uniform();
    return t;
  }
};

}  // namespace check

#define CHECK(ok, ...) ::check::that((ok), __FILE__, __LINE__, __VA_ARGS__)
#define CUDA_OK(call) ::check::cuda((call), __FILE__, __LINE__)
