#include "ops/cuda/make.h"

#include "ops/cuda/backend.h"
#include "ops/cuda_backend.h"

namespace deepinfer::ops::cuda {

Result<std::unique_ptr<Ops>> make(int device, const Options& options) {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::create(device, options));
  return std::unique_ptr<Ops>(std::move(backend));
}

ExpertTraffic expert_traffic(Ops& ops) { return static_cast<Backend&>(ops).expert_traffic(); }
std::string placement(const Ops& ops) { return static_cast<const Backend&>(ops).placement(); }

}  // namespace deepinfer::ops::cuda

// What ops/cuda_backend.cc looks up. The caller owns *out.
extern "C" __attribute__((visibility("default"))) void deepinfer_make_cuda_ops(int device,
                                                                               deepinfer::ops::CudaBackend* out) {
  deepinfer::Result<std::unique_ptr<deepinfer::ops::Ops>> made = deepinfer::ops::cuda::make(
      device,
      {.host = out->options.host, .host_experts = out->options.host_experts, .progress = out->options.progress});
  out->status = made.status();
  out->ops = made.ok() ? std::move(made).value() : nullptr;
}

extern "C" __attribute__((visibility("default"))) void deepinfer_cuda_placement(const deepinfer::ops::Ops& ops,
                                                                                std::string* out) {
  *out = deepinfer::ops::cuda::placement(ops);
}

// Dense bf16 of the tensor cores: 4,096 operations a clock and multiprocessor on Hopper, twice that on Blackwell.
extern "C" __attribute__((visibility("default"))) double deepinfer_cuda_peak_flops(int device) {
  int multiprocessors = 0, kilohertz = 0, major = 0;
  if (cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    return 0;
  }
  const double a_clock = major == 9 ? 4096 : major == 10 ? 8192 : 0;
  return a_clock * multiprocessors * 1e3 * kilohertz;
}
