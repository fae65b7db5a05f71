#include "ops/cuda/make.h"

#include "ops/cuda/backend.h"
#include "ops/cuda_backend.h"

namespace deepinfer::ops::cuda {

Result<std::unique_ptr<Ops>> make(int device, const Options& options) {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::create(device, options));
  return std::unique_ptr<Ops>(std::move(backend));
}

ExpertTraffic expert_traffic(Ops& ops) { return static_cast<Backend&>(ops).expert_traffic(); }

}  // namespace deepinfer::ops::cuda

// What ops/cuda_backend.cc looks up. The caller owns *out.
extern "C" __attribute__((visibility("default"))) void deepinfer_make_cuda_ops(int device, deepinfer::ops::CudaBackend* out) {
  deepinfer::Result<std::unique_ptr<deepinfer::ops::Ops>> made = deepinfer::ops::cuda::make(device);
  out->status = made.status();
  out->ops = made.ok() ? std::move(made).value() : nullptr;
}
