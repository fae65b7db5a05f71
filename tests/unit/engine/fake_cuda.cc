// Stands in for libdeepinfer_cuda.so on machines without a GPU: "GPU" 0 answers with the status code in FAKE_CUDA_CODE,
// GPU 1 is the plain CPU backend, GPU 2 is lost after FAKE_CUDA_ROW_SETS row sets, GPU 3 refuses with what it was told
// of the host and tells a progress, others do not exist.
#include <cstdlib>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/stages/backend.h"
#include "ops/cuda_backend.h"

namespace {

using deepinfer::Code;
using deepinfer::Status;

int setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

class LostGpu : public deepinfer::ops::cpu::Backend<float> {
 public:
  explicit LostGpu(deepinfer::ops::Capabilities c) : Backend(std::move(c), true, 1) {}
  Status begin(deepinfer::ops::Rows set, const deepinfer::ops::RowBatch& batch) override {
    ++begun_;
    return begun_ > 2 * setting("FAKE_CUDA_ROW_SETS") ? lost() : Backend::begin(set, batch);
  }
  Status synchronize() override { return begun_ > setting("FAKE_CUDA_ROW_SETS") ? lost() : Backend::synchronize(); }

 private:
  static Status lost() { return Status(Code::kUnavailable, "The GPU is taken for lost."); }

  int begun_ = 0;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void deepinfer_make_cuda_ops(int device,
                                                                               deepinfer::ops::CudaBackend* out) {
  if (device == 1) {
    out->ops = deepinfer::ops::make_plain_ops(1);
  } else if (device == 2) {
    out->ops = std::make_unique<LostGpu>(deepinfer::ops::make_plain_ops(1)->capabilities());
  } else if (device == 0) {
    out->status = Status(static_cast<Code>(setting("FAKE_CUDA_CODE")), "The GPU is a fake.");
  } else if (device == 3) {
    const deepinfer::ops::CudaOptions& o = out->options;
    if (o.progress) o.progress(2, 5);
    out->status = deepinfer::make_error(Code::kUnavailable, "The host computes {} with {}.", o.host_experts,
                                        o.host != nullptr ? o.host->capabilities().backend : "nothing");
  } else {
    out->status = Status(Code::kInvalidArgument, "There is no such GPU.");
  }
}

extern "C" __attribute__((visibility("default"))) double deepinfer_cuda_peak_flops(int device) {
  return device == 1 ? 1e15 : 0;
}
