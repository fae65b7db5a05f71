// Launches that overlap: the kernel may start while the one before it on the stream still runs, and fetch weights
// meanwhile.
//
//   launch_next(norm_kernel, rows, kThreads, 0, stream, x, w, n);
//
// The kernel must call wait_for_inputs() (hopper.cuh) in every thread, before it reads or writes anything that another
// kernel writes or reads. Kernels launched the plain way need nothing.
#pragma once

#include <cuda_runtime.h>

namespace deepinfer::ops::cuda {

template <class... Parameters, class... Arguments>
void launch_next(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                 Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace deepinfer::ops::cuda
