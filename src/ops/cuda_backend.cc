#include "ops/cuda_backend.h"

#include <dlfcn.h>

namespace deepinfer::ops {

Result<std::unique_ptr<Ops>> open_cuda_ops(int device, const std::string& directory) {
  // Kept open for the life of the process: the backend's code lives in it.
  const std::string path = directory + "/libdeepinfer_cuda.so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return make_error(Code::kUnavailable, "the CUDA backend cannot be opened ({}); build it with the preset `cuda` or use the CPU (--backend plain)", ::dlerror());
  }
  using Make = void (*)(int, CudaBackend*);
  const auto make = reinterpret_cast<Make>(::dlsym(library, "deepinfer_make_cuda_ops"));
  if (make == nullptr) return make_error(Code::kInternal, "{} is not a CUDA backend of this program", path);
  CudaBackend out;
  make(device, &out);
  if (!out.status.ok()) return out.status;
  return std::move(out.ops);
}

}  // namespace deepinfer::ops
