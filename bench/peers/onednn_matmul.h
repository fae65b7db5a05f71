// oneDNN's bf16 matrix product on the calling thread: y[rows, outputs] (fp32) = x[rows, k] w[outputs, k]^T. Weights are
// reordered to oneDNN's preferred layout beforehand, which is not timed.
#pragma once

#include <cstdint>
#include <memory>

namespace bench {

class OneDnnMatmul {
 public:
  OneDnnMatmul(int64_t rows, int64_t k, int64_t outputs);
  ~OneDnnMatmul();
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bench
