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

// The same by clusters of `cluster` CTAs.
template <class... Parameters, class... Arguments>
void launch_clusters(int cluster, void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes,
                     cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <class... Parameters, class... Arguments>
void launch_next(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                 Arguments&&... arguments) {
  launch_clusters(1, kernel, grid, threads, shared_bytes, stream, static_cast<Arguments&&>(arguments)...);
}

}  // namespace deepinfer::ops::cuda
