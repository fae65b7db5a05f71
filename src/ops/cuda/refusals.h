// What the CUDA backend says of a GPU that it cannot use: sentences that need no GPU to be tested.
//
//   if (Status s = check_architecture(0, "NVIDIA A100", 8, 0); !s.ok()) return s;
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace deepinfer::ops::cuda {

// kUnsupported unless the GPU is a Hopper one (compute capability 9.0).
inline Status check_architecture(int device, std::string_view name, int major, int minor) {
  if (major == 9 && minor == 0) return {};
  return make_error(Code::kUnsupported,
                    "GPU {} ({}) has compute capability {}.{}, and this build has kernels for Hopper (9.0) alone; "
                    "use the CPU (--device cpu).",
                    device, name, major, minor);
}

// kInvalidArgument unless 0 <= device < count.
inline Status check_number(int device, int count) {
  if (device >= 0 && device < count) return {};
  return make_error(Code::kInvalidArgument, "There is no GPU {}: this machine has {}, counted from 0.", device, count);
}

// kResourceExhausted. All in bytes.
inline Status too_little_memory(uint64_t free, uint64_t total, uint64_t needed) {
  return make_error(Code::kResourceExhausted,
                    "The GPU has {} MiB free of {} MiB, and {} MiB more are needed: use a smaller model, context or "
                    "number of sequences, or the CPU (--device cpu).",
                    free >> 20, total >> 20, needed >> 20);
}

}  // namespace deepinfer::ops::cuda
