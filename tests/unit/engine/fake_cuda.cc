// Stands in for libdeepinfer_cuda.so on machines without a GPU: "GPU" 0 answers with the status code in FAKE_CUDA_CODE,
// GPU 1 is the plain CPU backend, others do not exist.
#include <cstdlib>

#include "ops/cpu/cpu_ops.h"
#include "ops/cuda_backend.h"

extern "C" __attribute__((visibility("default"))) void deepinfer_make_cuda_ops(int device,
                                                                               deepinfer::ops::CudaBackend* out) {
  using deepinfer::Code;
  if (device == 1) {
    out->ops = deepinfer::ops::make_plain_ops(1);
  } else if (device == 0) {
    out->status = deepinfer::Status(static_cast<Code>(std::atoi(std::getenv("FAKE_CUDA_CODE"))), "The GPU is a fake.");
  } else {
    out->status = deepinfer::Status(Code::kInvalidArgument, "There is no such GPU.");
  }
}

extern "C" __attribute__((visibility("default"))) double deepinfer_cuda_peak_flops(int device) {
  return device == 1 ? 1e15 : 0;
}
