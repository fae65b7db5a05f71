#include "ops/cuda_backend.h"

#include <dlfcn.h>

#include <atomic>
#include <filesystem>
#include <system_error>

namespace deepinfer::ops {
namespace {

using Placement = void (*)(const Ops&, std::string*);

std::string library_path(const std::string& directory) { return directory + "/libdeepinfer_cuda.so"; }

// Of the library that was opened last; a program opens one.
std::atomic<Placement>& placement_of_library() {
  static std::atomic<Placement> function{nullptr};
  return function;
}

}  // namespace

double cuda_peak_flops(int device, const std::string& directory) {
  // Open already, or there is no backend to ask about.
  void* library = ::dlopen(library_path(directory).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  const auto peak = reinterpret_cast<double (*)(int)>(::dlsym(library, "deepinfer_cuda_peak_flops"));
  const double flops = peak != nullptr ? peak(device) : 0;
  ::dlclose(library);
  return flops;
}

Result<std::unique_ptr<Ops>> open_cuda_ops(int device, const std::string& directory, CudaOptions options) {
  const std::string path = library_path(directory);
  if (std::error_code error; !std::filesystem::exists(path, error)) {
    return make_error(Code::kNotFound,
                      "There is no CUDA backend here: {} is missing. Build it with the preset `cuda`, or use the CPU "
                      "(--device cpu).",
                      path);
  }
  // Kept open for the life of the process: the backend's code lives in it.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return make_error(Code::kUnavailable,
                      "The CUDA backend cannot be opened ({}); build it again, or use the CPU (--device cpu).",
                      ::dlerror());
  }
  using Make = void (*)(int, CudaBackend*);
  const auto make = reinterpret_cast<Make>(::dlsym(library, "deepinfer_make_cuda_ops"));
  if (make == nullptr) return make_error(Code::kInternal, "{} is not a CUDA backend of this program", path);
  CudaBackend out;
  out.options = std::move(options);
  make(device, &out);
  if (!out.status.ok()) return out.status;
  placement_of_library() = reinterpret_cast<Placement>(::dlsym(library, "deepinfer_cuda_placement"));
  return std::move(out.ops);
}

std::string cuda_placement(const Ops& ops) {
  const Placement placement = placement_of_library();
  std::string text;
  if (placement != nullptr && ops.capabilities().backend == "cuda") placement(ops, &text);
  return text;
}

}  // namespace deepinfer::ops
