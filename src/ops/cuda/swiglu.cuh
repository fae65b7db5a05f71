// SwiGLU of one channel (spec/model.md 9): silu(min(gate, limit)) * clamp(up), not rounded.
#pragma once

namespace deepinfer::ops::cuda {

__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
  return g / (1.0f + expf(-g)) * u;
}

}  // namespace deepinfer::ops::cuda
