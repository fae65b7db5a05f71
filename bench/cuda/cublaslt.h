// NVIDIA's matrix library as a peer: cublasLt opened at run time where it is present (library path, or a wheel's folder
// in LD_LIBRARY_PATH), so that the benchmark needs neither its headers nor its libraries to build.
//
//   CublasLt lt = CublasLt::open();
//   // best of its first choices; 0 if it refuses
//   if (lt.present()) us = lt.multiply_us(CublasLt::kFp8, n, k, rows, w, x, y);
//
// y[rows][n] = x[rows][k] w[n][k]^T, fp32 sums, bf16 output; FP8: e4m3 with one scale a tensor.
// The constants are those of cublasLt.h (CUDA 13).
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include <cuda_runtime.h>

namespace bench {

class CublasLt {
 public:
  enum Type { kBf16 = 14, kFp8 = 28 };

  static CublasLt open() {
    CublasLt lt;
    void* library = ::dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return lt;
    bool ok = true;
    const auto find = [&](auto* f, const char* name) {
      *f = reinterpret_cast<std::remove_pointer_t<decltype(f)>>(::dlsym(library, name));
      ok = ok && *f != nullptr;
    };
    find(&lt.create_, "cublasLtCreate");
    find(&lt.desc_create_, "cublasLtMatmulDescCreate");
    find(&lt.desc_set_, "cublasLtMatmulDescSetAttribute");
    find(&lt.layout_create_, "cublasLtMatrixLayoutCreate");
    find(&lt.preference_create_, "cublasLtMatmulPreferenceCreate");
    find(&lt.preference_set_, "cublasLtMatmulPreferenceSetAttribute");
    find(&lt.heuristic_, "cublasLtMatmulAlgoGetHeuristic");
    find(&lt.matmul_, "cublasLtMatmul");
    if (!ok || lt.create_(&lt.handle_) != 0) lt.handle_ = nullptr;
    if (lt.handle_ != nullptr &&
        (cudaMalloc(&lt.workspace_, kWorkspace) != cudaSuccess || cudaMalloc(&lt.one_, 4) != cudaSuccess))
      lt.handle_ = nullptr;
    const float one = 1;
    if (lt.handle_ != nullptr) cudaMemcpy(lt.one_, &one, 4, cudaMemcpyHostToDevice);
    return lt;
  }
  bool present() const { return handle_ != nullptr; }

  // `time` measures a closure that queues one product on the given stream. w: `copies` matrices, one behind the other,
  // that calls take in turn.
  double multiply_us(Type type, int n, int k, int rows, const void* w, const void* x, void* y,
                     const std::function<double(const std::function<void(cudaStream_t)>&)>& time,
                     size_t copies = 1) const {
    void *desc = nullptr, *a = nullptr, *b = nullptr, *d = nullptr, *preference = nullptr;
    const int32_t transpose = 1;
    const int8_t fast = 1;
    desc_create_(&desc, kCompute32F, kFloat);
    desc_set_(desc, kTransA, &transpose, sizeof transpose);
    if (type == kFp8) {
      desc_set_(desc, kScaleA, &one_, sizeof one_);
      desc_set_(desc, kScaleB, &one_, sizeof one_);
      desc_set_(desc, kFastAccumulation, &fast, sizeof fast);
    }
    layout_create_(&a, type, k, n, k);
    layout_create_(&b, type, k, rows, k);
    layout_create_(&d, kBf16, n, rows, n);
    preference_create_(&preference);
    const size_t workspace = kWorkspace;
    preference_set_(preference, kWorkspaceLimit, &workspace, sizeof workspace);
    Heuristic found[8];
    int count = 0;
    double best = 0;
    if (heuristic_(handle_, desc, a, b, d, d, preference, 8, found, &count) != 0) return 0;
    const float alpha = 1, beta = 0;
    for (int i = 0; i < std::min(count, 4); ++i) {
      int status = 0;
      size_t calls = 0;
      const size_t bytes = static_cast<size_t>(n) * k * (type == kFp8 ? 1 : 2);
      const double us = time([&](cudaStream_t stream) {
        const void* copy = static_cast<const uint8_t*>(w) + calls++ % copies * bytes;
        status |= matmul_(handle_, desc, &alpha, copy, a, x, b, &beta, y, d, y, d, &found[i].algorithm, workspace_,
                          kWorkspace, stream);
      });
      if (status == 0 && (best == 0 || us < best)) best = us;
    }
    return best;
  }

 private:
  static constexpr size_t kWorkspace = size_t{64} << 20;
  static constexpr int kCompute32F = 68, kFloat = 0, kTransA = 3, kScaleA = 17, kScaleB = 18, kFastAccumulation = 25,
                       kWorkspaceLimit = 1;
  struct Algorithm {
    uint64_t data[8];
  };
  struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
  };
  int (*create_)(void**) = nullptr;
  int (*desc_create_)(void**, int, int) = nullptr;
  int (*desc_set_)(void*, int, const void*, size_t) = nullptr;
  int (*layout_create_)(void**, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*preference_create_)(void**) = nullptr;
  int (*preference_set_)(void*, int, const void*, size_t) = nullptr;
  int (*heuristic_)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*) = nullptr;
  int (*matmul_)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                 void*, void*, const Algorithm*, void*, size_t, cudaStream_t) = nullptr;
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  float* one_ = nullptr;
};

}  // namespace bench
